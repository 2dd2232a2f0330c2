"""`public`: the reference of what a package shows at its top; `layers`: the same of the four backends, in tabs.

    ```{public} mha
    ```

    ```{layers} MultiHeadAttention
    ```

`public` imports the package, which must need no framework. `layers` reads the backends' sources, so that a build takes
seconds and needs none. Docstrings are Google's style in both.
"""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

from _ext.common import FRAMEWORKS, tabs

ROOT = Path(__file__).parents[3]
CALLS = ("forward", "call", "__call__")
"""What a layer's call is named in one framework or another."""

Documented = ast.ClassDef | ast.FunctionDef


def as_rst(docstring: str, what: str = "class") -> str:
    """A docstring of Google's style as reStructuredText."""
    how: Any = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)
    kind: Any = what
    return str(GoogleDocstring(docstring, how, what=kind))


def google_style(_: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Convert what autodoc found; a property's text has no sections, and a colon in it ends no type."""
    if what not in ("property", "attribute", "data"):
        lines[:] = as_rst("\n".join(lines), what).splitlines()


def members_of(package: str) -> str:
    """Directives of autodoc for `__all__` of the package."""
    module = import_module(package)
    lines = []
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            lines += [f".. autoclass:: {package}.{name}", "   :members:", ""]
        elif callable(value):
            lines += [f".. autofunction:: {package}.{name}", ""]
        else:
            lines += [f".. py:data:: {package}.{name}", f"   :value: {value!r}", ""]
    return "\n".join(lines)


def definition_of(package: str, name: str) -> Documented:
    """The class or function that a package's `__init__` imports by this name, from its source."""
    for node in ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            source = (ROOT / f"{str(node.module).replace('.', '/')}.py").read_text("utf-8")
            for found in ast.parse(source).body:
                if isinstance(found, Documented) and found.name == name:
                    return found
    raise ValueError(f"{package} shows no {name}")


def arguments_of(function: ast.FunctionDef) -> str:
    """The arguments without their types, as a call is written.

    >>> arguments_of(ast.parse("def f(self, x: int, *, scale: float = 1.0) -> int: ...").body[0])
    'x, *, scale=1.0'
    """
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None
    arguments.args = [argument for argument in arguments.args if argument.arg != "self"]
    return ast.unparse(arguments)


def fields_of(layer: ast.ClassDef) -> str:
    """What a class is built with: the arguments of `__init__`, or the fields of a dataclass."""
    for node in layer.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return arguments_of(node)
    fields = [node for node in layer.body if isinstance(node, ast.AnnAssign)]
    shown = [(ast.unparse(field.target), field.value) for field in fields]
    return ", ".join(
        name if value is None else f"{name}={ast.unparse(value)}" for name, value in shown if not name.startswith("_")
    )


def described(package: str, name: str) -> str:
    """The reference of one class or function of a backend; of a class also its call."""
    found = definition_of(package, name)
    what = "class" if isinstance(found, ast.ClassDef) else "function"
    arguments = fields_of(found) if isinstance(found, ast.ClassDef) else arguments_of(found)
    text = [f".. py:{what}:: {package}.{name}({arguments})", "", indent(as_rst(doc(found), what), "   "), ""]
    for node in found.body if isinstance(found, ast.ClassDef) else ():
        if isinstance(node, ast.FunctionDef) and node.name in CALLS and ast.get_docstring(node):
            call = [f".. py:method:: {node.name}({arguments_of(node)})", "", indent(as_rst(doc(node), "method"), "   ")]
            text += [indent("\n".join(call), "   "), ""]
    return "\n".join(text)


def doc(node: Documented) -> str:
    """The docstring; a public name without one stops the build."""
    text = ast.get_docstring(node)
    if not text:
        raise ValueError(f"{node.name} has no docstring")
    return text


def public(package: str) -> str:
    """One entry for each public name."""
    return f"````{{eval-rst}}\n{members_of(package)}\n````"


def layers(name: str) -> str:
    """A tab for each backend."""
    return tabs(
        {backend: f"````{{eval-rst}}\n{described(f'backends.{backend}', name)}\n````" for backend in FRAMEWORKS}
    )
