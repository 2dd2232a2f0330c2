"""Reads the construction and the call of one attention layer in somebody's file. The file is parsed, never run."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mha.phrases.native import Arguments, Native
from mha.phrases.said import Calling, Making
from mha.phrases.table import NATIVES
from mha_core.errors import SpecError, shown

LARGEST = 1_000_000
"""Most bytes of a file."""


@dataclass(frozen=True)
class Source:
    """What a file says of one layer.

    Attributes:
        native: whose layer.
        making, calling: how it is made and called; the standard words where the file lacks one of them.
        made_in, called_in: the lines; 0 where the file lacks it.
        notes: what had to be supposed.
        left: arguments that have no place elsewhere, as they stand there.
    """

    native: Native
    making: Making
    calling: Calling
    made_in: int
    called_in: int
    notes: tuple[str, ...]
    left: tuple[str, ...]


def read_file(path: Path) -> Source:
    """`read` of a file. SpecError if it can't be read."""
    try:
        if path.stat().st_size > LARGEST:
            raise SpecError(f"{path} must have at most {LARGEST} bytes. Got {path.stat().st_size}.")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} can't be read: {error}") from error
    return read(text, str(path))


def read(text: str, name: str = "the file") -> Source:
    r"""The one layer that the code makes and calls; `name` is that of the file, for messages.

    Raises:
        SpecError: it is no Python; makes no layer that is known here, or several; or gives an argument that its layer
            has not, or that can't be read without running the code.

    >>> source = read("attend = nn.MultiheadAttention(64, 4)\ny, _ = attend(x, x, x, key_padding_mask=padded)")
    >>> source.native.path, source.making.head_width, source.calling.padding.text, source.calling.padding.attend
    ('torch.nn.MultiheadAttention', '16', 'padded', False)
    """
    try:
        return _Reader(ast.parse(text), name).source()
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, SpecError):
            raise
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise SpecError(f"{name}{line} can't be read as Python: {type(error).__name__}") from error


class _Reader:
    """One file."""

    def __init__(self, tree: ast.Module, name: str) -> None:
        self.tree, self.name = tree, name
        self.imports = dict(_imports(tree))
        own = (ast.ClassDef, ast.FunctionDef)
        self.imports |= {node.name: f"{name}.{node.name}" for node in ast.walk(tree) if isinstance(node, own)}
        self.assigned = _assigned(tree)
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]

    def source(self) -> Source:
        """What the file says."""
        found = [(call, native) for call in self.calls if (native := self._native(call.func)) is not None]
        if not found:
            known = ", ".join(native.path for native in NATIVES.values())
            raise SpecError(
                f"{self.name} makes or calls no attention that is known here (known: {known}){self._near()}"
            )
        if len(found) > 1:
            lines = ", ".join(f"{native.path} in line {call.lineno}" for call, native in found)
            raise SpecError(f"{self.name} must make or call one attention. It has several: {lines}.")
        [(call, native)] = found
        notes: list[str] = []
        left: list[str] = []
        if native.is_function:
            making, made_in = Making(), 0
            called: ast.Call | None = call
        else:
            given = self._bind(call, native, native.made_with, native.made_by_place)
            making, notes = native.read_making(given)
            made_in, left = call.lineno, given.left()
            called = self._call_of(call, native)
        calling = Calling()
        if called is not None:
            skipped = 1 if native.method and _ends(called.func, native.method) else 0
            given = self._bind(called, native, native.called_with, native.positional, skipped=skipped)
            calling, more = native.read_calling(given, making)
            notes, left = [*notes, *more], [*left, *given.left()]
            if not self._weights_are_used(called):
                calling = replace(calling, weights="")
        else:
            notes = [*notes, "no call of the layer was found: a plain one stands here"]
        called_in = called.lineno if called is not None else 0
        return Source(native, making, calling, made_in, called_in, tuple(notes), tuple(left))

    def _native(self, function: ast.expr) -> Native | None:
        """The native that a call is of; None if it is something else. SpecError if its name is that of several."""
        path = self._path(function)
        if not path:
            return None
        known = [native for native in NATIVES.values() if path in (native.path, *native.others)]
        if not known and not self._is_imported(function):
            known = [native for native in NATIVES.values() if _is_end(path, native)]
        if len(known) > 1:
            choices = ", ".join(native.path for native in known)
            raise SpecError(
                f"{path} in line {function.lineno} of {self.name} is the name of several: {choices}. Import it in "
                "the file."
            )
        return known[0] if known else None

    def _path(self, function: ast.expr) -> str:
        """The dotted name of a function with what was imported in place of its first part; "" if it has none."""
        names: list[str] = []
        while isinstance(function, ast.Attribute):
            names.append(function.attr)
            function = function.value
        if not isinstance(function, ast.Name):
            return ""
        path = ".".join([self.imports.get(function.id, function.id), *reversed(names)])
        return path.replace("tensorflow.keras.", "keras.", 1)

    def _is_imported(self, function: ast.expr) -> bool:
        while isinstance(function, ast.Attribute):
            function = function.value
        return isinstance(function, ast.Name) and function.id in self.imports

    def _near(self) -> str:
        """A hint where a call has the last name of a layer, and is of another package."""
        last = {native.path.rpartition(".")[2]: native for native in NATIVES.values()}
        for call in self.calls:
            path = self._path(call.func)
            if path.rpartition(".")[2] in last:
                return f"; {shown(path)} in line {call.lineno} is none of them"
        return ""

    def _call_of(self, made: ast.Call, native: Native) -> ast.Call | None:
        """The call of the layer that was made: there and then, or by the name that it was given.

        Raises:
            SpecError: there are several that differ.
        """
        inner: ast.expr = made
        parent = self.parents[inner]
        while isinstance(parent, ast.Attribute) and isinstance(outer := self.parents[parent], ast.Call):
            inner = outer  # layer = nn.MultiheadAttention(64, 4).eval()
            parent = self.parents[inner]
        if isinstance(parent, ast.Call) and parent.func is inner:
            return parent
        if isinstance(parent, ast.AnnAssign):
            name = ast.unparse(parent.target)
        elif isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            name = ast.unparse(parent.targets[0])
        else:
            return None
        ways = {name, f"{name}.{native.method}"} if native.method else {name}
        calls = [call for call in self.calls if ast.unparse(call.func) in ways]
        if len({ast.unparse(call) for call in calls}) > 1:
            lines = ", ".join(str(call.lineno) for call in calls)
            raise SpecError(f"{self.name} must call {name} in one way. It has several calls of it, in lines {lines}.")
        return calls[0] if calls else None

    def _bind(
        self, call: ast.Call, native: Native, known: tuple[str, ...], positional: int, *, skipped: int = 0
    ) -> Arguments:
        """The arguments by name."""
        where = f"{native.path} in line {call.lineno} of {self.name}"
        values: dict[str, str] = {}
        for name, value in zip(known[:positional], call.args[skipped:], strict=False):
            if isinstance(value, ast.Starred):
                raise SpecError(f"{where} is given {ast.unparse(value)}, which can't be read without running it")
            values[name] = ast.unparse(value)
        if len(call.args) - skipped > positional:
            raise SpecError(
                f"{where} takes at most {positional} arguments by position. Got {len(call.args) - skipped}."
            )
        for keyword in call.keywords:
            if keyword.arg is None:
                text = f"**{ast.unparse(keyword.value)}"
                raise SpecError(f"{where} is given {shown(text)}, which can't be read without running it")
            if keyword.arg not in known:
                raise SpecError(
                    f"{where} is given {keyword.arg!r}, which is not known of it (known: {', '.join(known)})"
                )
            if keyword.arg in values:
                raise SpecError(f"{where} is given {keyword.arg!r} twice")
            values[keyword.arg] = ast.unparse(keyword.value)
        return Arguments(native.path, values, self.assigned)

    def _weights_are_used(self, call: ast.Call) -> bool:
        """False where the second outcome is thrown away, as by `output, _ =` or `[0]`."""
        parent = self.parents.get(call)
        if isinstance(parent, ast.Subscript):
            return ast.unparse(parent.slice) != "0"
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
            return not ast.unparse(parent.targets[0].elts[-1]).startswith("_")
        return True


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name in the file -> what it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _assigned(tree: ast.Module) -> Mapping[str, str]:
    """Name -> the code that it is assigned, of names that are assigned once."""
    found = [
        (ast.unparse(node.targets[0]), node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and len(node.targets) == 1
    ]
    times = Counter(name for name, _ in found)
    return {name: ast.unparse(value) for name, value in found if times[name] == 1}


def _is_end(path: str, native: Native) -> bool:
    """Whether a name without an import may be this one."""
    return any(known == path or known.endswith(f".{path}") for known in (native.path, *native.others) if "." in known)


def _ends(function: ast.expr, method: str) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == method
