"""Draws mutants: one small change of the code each, by a seed.

A mutant is an operator, a comparison, a condition or a number that is another, or a line that is left out. Not
changed are texts, annotations, decorators, and what stands outside functions but for numbers.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

ROOMS = ("mha_core", "backends", "conformance/bounds", "conformance/judging", "mha/convert", "mha/port")
"""The rooms that are changed, in turns: small ones get as many mutants as large ones."""

OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}

COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """One change: lines and columns of `path` as ast counts them, and what takes their place."""

    path: str
    start: tuple[int, int]
    end: tuple[int, int]
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.start[0]}:{self.start[1]}: {_short(self.old)} -> {_short(self.new)}"

    def of(self, text: str) -> str:
        """The text of the file with this change."""
        data = text.encode()
        lines = _starts(data)
        start, end = (lines[line - 1] + column for line, column in (self.start, self.end))
        return (data[:start] + self.new.encode() + data[end:]).decode()


def _starts(data: bytes) -> list[int]:
    """Where each line of a text starts."""
    return list(accumulate((len(line) for line in data.splitlines(keepends=True)), initial=0))


def _short(code: str) -> str:
    words = " ".join(code.split())
    return words if len(words) <= 60 else f"{words[:57]}..."


def draw(root: Path, seed: int, count: int) -> list[Mutant]:
    """Random mutants, from each room in turn; no two are equal."""
    rng = random.Random(seed)
    chosen: list[list[Mutant]] = []
    for room in ROOMS:
        every = [mutant for path in sorted((root / room).rglob("*.py")) for mutant in mutants_of(root, path)]
        chosen.append(rng.sample(every, min(len(every), -(-count // len(ROOMS)))))
    turns = [one for turn in range(max(map(len, chosen))) for some in chosen for one in some[turn : turn + 1]]
    return turns[:count]


def mutants_of(root: Path, path: Path) -> Iterator[Mutant]:
    """Every mutant of one file."""
    data = path.read_bytes()
    lines = _starts(data)
    name = path.relative_to(root).as_posix()
    for node, new in _changes(ast.parse(data), inside=False):
        start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        old = data[lines[start[0] - 1] + start[1] : lines[end[0] - 1] + end[1]].decode()
        yield Mutant(name, start, end, old, new)


def _changes(node: ast.AST, inside: bool) -> Iterator[tuple[ast.AST, str]]:
    """(what is replaced, by which code) of a node and those in it; `inside` a function or not."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
            continue
        if isinstance(node, ast.arguments) and field not in ("defaults", "kw_defaults"):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue
        within = inside or isinstance(node, (ast.FunctionDef, ast.Lambda))
        for child in value if isinstance(value, list) else [value]:
            # What stands in a formatted text has no place of its own.
            if isinstance(child, ast.AST) and not isinstance(child, (ast.JoinedStr, ast.Import, ast.ImportFrom)):
                yield from _of_one(child, within)
                yield from _changes(child, within)


def _of_one(node: ast.AST, inside: bool) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.Constant):
        yield from ((node, new) for new in _of_constant(node.value))
    elif not inside:
        return
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield node, f"({ast.unparse(ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))})"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
        yield node, f"({ast.unparse(other)})"
    elif isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):  # one of its conditions is left out
            rest = [value for place, value in enumerate(node.values) if place != index]
            left = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            yield node, f"({ast.unparse(left)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    elif (
        isinstance(node, (ast.Raise, ast.Continue, ast.Break, ast.AugAssign))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or (isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript)))
    ):
        yield node, "pass"


def _of_constant(value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        yield str(value + 1)
    elif isinstance(value, float):
        yield repr(value * 2 if value else 1.0)
