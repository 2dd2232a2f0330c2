"""Source code by symbol, read from files: no framework is imported for it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import mha_core
from mha.learn.exercise import NUMPY, Exercise
from mha_core.errors import SpecError

HOME = Path(mha_core.__file__).parents[1]


@cache
def source(symbol: str) -> str:
    """The source of "module:function" or "module:Class.method", with its decorators.

    >>> print(source("mha_core.heads:merge_heads").splitlines()[0])
    def merge_heads(x: NDArray) -> NDArray:
    >>> source("mha_core.heads:merge_headz")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: mha_core.heads has no 'merge_headz'
    """
    module, _, path = symbol.partition(":")
    text = HOME.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    body: list[ast.stmt] = ast.parse(text).body
    for name in path.split("."):
        node = next((one for one in body if getattr(one, "name", None) == name), None)
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            raise SpecError(f"{module} has no {path!r}")
        body = node.body
    assert isinstance(node, (ast.FunctionDef, ast.ClassDef))
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] for line in lines)


def answers(exercise: Exercise, framework: str) -> dict[str, str]:
    """Symbol -> source of the real function of an exercise: NumPy's, and the framework's."""
    symbols = list(exercise.answer)
    for name in dict.fromkeys((framework, exercise.dialect)):
        if name != NUMPY:
            symbols += [f"backends.{name}.{symbol}" for symbol in exercise.answer_in]
    return {symbol: source(symbol) for symbol in symbols}
