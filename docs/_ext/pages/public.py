"""`public`: the reference of what a package shows at its top; `layers`: the same of the four backends, in tabs.

    ```{public} mha
    ```

    ```{layers} MultiHeadAttention
    ```

`public` imports the package, which must need no framework. `layers` reads the backends' sources, so that a build takes
seconds and needs none.
"""

import ast
import inspect
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

from _ext.common import FRAMEWORKS, tabs

ROOT = Path(__file__).parents[3]
CALLS = ("__init__", "forward", "call", "__call__")
"""How a layer is made, and what its call is named in one framework or another."""

Documented = ast.ClassDef | ast.FunctionDef


def google_style(_: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Convert what autodoc found; a property's text has no sections, and a colon in it ends no type."""
    if what not in ("property", "attribute", "data"):
        how: Any = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)
        kind: Any = what
        lines[:] = str(GoogleDocstring("\n".join(lines), how, what=kind)).splitlines()


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


def outline(package: str, name: str) -> str:
    """A class or function of a backend as Python without its code: signatures and docstrings."""
    found = definition_of(package, name)
    if not ast.get_docstring(found):
        raise ValueError(f"{name} of {package} has no docstring")
    calls = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name in CALLS]
    kept = [node for node in calls if isinstance(found, ast.ClassDef)]
    for node in kept:
        node.body = node.body[: bool(ast.get_docstring(node))] or [ast.Expr(ast.Constant(...))]
    fields = [node for node in found.body if isinstance(node, ast.AnnAssign)]
    found.body = [found.body[0], *fields, *kept]
    lines = ast.unparse(found).splitlines()
    return "\n".join(_wrapped(line) if line.lstrip().startswith("def ") else line for line in lines)


def _wrapped(signature: str) -> str:
    """A signature in lines that fit the page."""
    indent = " " * (len(signature) - len(signature.lstrip()) + 8)
    return textwrap.fill(signature, 80, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True)


def public(package: str) -> str:
    """One entry for each public name."""
    return f"````{{eval-rst}}\n{members_of(package)}\n````"


def layers(name: str) -> str:
    """A tab for each backend."""
    return tabs({backend: f"```python\n{outline(f'backends.{backend}', name)}\n```" for backend in FRAMEWORKS})
