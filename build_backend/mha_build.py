"""The build backend: setuptools', and in a wheel every package stands under `mha_parity`.

The clone's packages have short names at its top (`backends`, `conformance`), and other people's packages may have them
too. `PLACES` of mha_parity/__init__.py says where each goes. Imports are rewritten, and so are names of modules in
strings, such as "backends.torch.native"; lines keep their numbers. The syntax tree of a file with such strings is then
compared with what it must be: a word that may be a name or not ends the build.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parents[1]

DOOR = "mha_parity/__init__.py"
"""The clone's own: in a wheel `mha/__init__.py` takes its place."""

DATA = "conformance/cases/data"

LEFT_OUT = (DOOR, f"{DATA}/make_minilm.py", f"{DATA}/LICENSE-all-MiniLM-L6-v2")
"""Files that no command needs; the licence stands with the metadata."""

TEXTS = (".py", ".toml", ".json", ".j2", ".md")
"""Files with names of modules."""


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Build an sdist, and return its file name."""
    with _apart():
        name: str = build_meta.build_sdist(sdist_directory, config_settings)
    return name


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel, and return its file name."""
    with _apart() as folder:
        name: str = build_meta.build_wheel(folder, config_settings)
        Names.of_the_clone().move(Path(folder, name), Path(wheel_directory, name))
    return name


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    """Write the metadata of the wheel, and return its folder."""
    with _apart():
        name: str = build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
    names = Names.of_the_clone()
    for path in Path(metadata_directory, name).iterdir():
        if path.is_file():
            path.write_bytes(names.metadata(path.name, path.read_bytes()))
    return name


@contextmanager
def _apart() -> Iterator[str]:
    """A folder for the build: `build/` of the clone keeps files that are gone, and they would be in the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "build.cfg")
        config.write_text(f"[build]\nbuild_base = {folder}/base\n[egg_info]\negg_base = {folder}\n")
        before = os.environ.get("DIST_EXTRA_CONFIG")
        os.environ["DIST_EXTRA_CONFIG"] = str(config)
        try:
            yield folder
        finally:
            del os.environ["DIST_EXTRA_CONFIG"]
            if before is not None:
                os.environ["DIST_EXTRA_CONFIG"] = before


class Names:
    """A translation of modules' names in a clone into their names in a wheel.

    Args:
        places: package at the top of the clone -> its place in `mha_parity`; "" for the one that becomes `mha_parity`.
        inside: the modules right below the package whose place is "".
    """

    def __init__(self, places: Mapping[str, str], inside: set[str]) -> None:
        self.places = {short: f"mha_parity.{place}".rstrip(".") for short, place in places.items()}
        (root,) = (short for short, place in places.items() if not place)
        others = "|".join(set(places) - {root})
        here = r"(?<![\w./-])"
        ends = r"(?=\.[A-Za-z_*{])"  # a name of a module has a point and a name behind it; other words have not
        self._named = re.compile(
            rf"{here}(?:(?P<other>{others}){ends}|(?P<root>{root})(?=\.(?:{'|'.join(sorted(inside))})\b)"
            rf"|(?<=from )(?P<all>{others}|{root})(?= import )|(?P<own>mha_core)\b(?!\.))"
        )

    @classmethod
    def of_the_clone(cls) -> Names:
        tree = ast.parse((ROOT / DOOR).read_bytes())
        (value,) = (
            node.value
            for node in tree.body
            if isinstance(node, ast.AnnAssign | ast.Assign) and ast.unparse(node).startswith("PLACES")
        )
        assert value is not None
        inside = {path.stem for path in (ROOT / "mha").iterdir() if path.suffix in ("", ".py") and path.stem[0] != "_"}
        return cls(ast.literal_eval(value), inside)

    # Of a wheel ------------------------------------------------------------------------------------------

    def move(self, old: Path, new: Path) -> None:
        """Write the wheel `new`: the files of `old` at their new places, in a fixed order and with a fixed date."""
        files: dict[str, bytes] = {}
        with zipfile.ZipFile(old) as wheel:
            for path in wheel.namelist():
                if path not in LEFT_OUT and not path.endswith(("/RECORD", "/")):
                    files[self.path(path)] = self.content(path, wheel.read(path))
            info = next(path for path in wheel.namelist() if path.endswith(".dist-info/RECORD"))
        lines = []
        with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
            for path in sorted(files, key=lambda path: (".dist-info/" in path, path)):
                wheel.writestr(_entry(path), files[path])
                digest = base64.urlsafe_b64encode(hashlib.sha256(files[path]).digest()).rstrip(b"=").decode()
                lines.append(f"{path},sha256={digest},{len(files[path])}\n")
            wheel.writestr(_entry(info), "".join([*lines, f"{info},,\n"]))

    def path(self, path: str) -> str:
        """Return the path in a wheel of a file of the clone.

        A file of metadata keeps its path.
        """
        top, slash, rest = path.partition("/")
        return f"{self.places[top].replace('.', '/')}/{rest}" if slash and top in self.places else path

    def content(self, path: str, content: bytes) -> bytes:
        """Return what a file holds in a wheel."""
        if ".dist-info/" in path:
            return self.metadata(path.rpartition("/")[2], content)
        if path.endswith(".py"):
            return self.code(content.decode(), path).encode()
        return self.text(content.decode()).encode() if path.endswith(TEXTS) else content

    def metadata(self, name: str, content: bytes) -> bytes:
        """Return a metadata file's content in a wheel: entry points name modules."""
        if name == "top_level.txt":
            return b"mha_parity\n"
        return self.text(content.decode()).encode() if name == "entry_points.txt" else content

    # Of a text -------------------------------------------------------------------------------------------

    def text(self, text: str, following: str = "") -> str:
        """Return a text with modules' names as in a wheel; `following`: the text behind it, which may end a name."""
        return self._named.sub(self._long, text + following).removesuffix(following)

    def _long(self, found: re.Match[str]) -> str:
        return self.places[found.group()]

    def code(self, source: str, path: str) -> str:
        """Return a module's source, line by line, with names as in a wheel. Raises SyntaxError for unclear names."""
        tree = ast.parse(source, path)
        lines = source.encode().split(b"\n")
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line) + 1)
        data = source.encode()
        edits: dict[tuple[int, int], bytes] = {}
        names_in_strings = False
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                edits.update(self._imports(node, data, starts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names_in_strings = names_in_strings or self._named.search(f"{node.value}{{") is not None
        if names_in_strings:
            edits.update(self._strings(nodes, data, starts))
        pieces, done = [], 0
        for (first, last), long in sorted(edits.items()):
            pieces += [data[done:first], long]
            done = last
        new = b"".join([*pieces, data[done:]]).decode()
        if names_in_strings and ast.dump(ast.parse(new, path)) != ast.dump(_Expected(self).visit(tree)):
            raise SyntaxError(f"{path}: the names of modules in it can't be told from other words")
        return new

    def _strings(self, nodes: list[ast.AST], data: bytes, starts: list[int]) -> Iterator[tuple[tuple[int, int], bytes]]:
        for node in nodes:
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                start = starts[node.lineno - 1] + node.col_offset
                end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
                text = data[start:end].decode()
                for found in self._named.finditer(text):
                    first = start + len(text[: found.start()].encode())
                    yield (first, first + len(found.group().encode())), self._long(found).encode()

    def _imports(
        self, node: ast.Import | ast.ImportFrom, data: bytes, starts: list[int]
    ) -> Iterator[tuple[tuple[int, int], bytes]]:
        if isinstance(node, ast.ImportFrom):
            if node.level == 0 and (short := (node.module or "").partition(".")[0]) in self.places:
                first = starts[node.lineno - 1] + node.col_offset + len("from ")
                yield (first, first + len(short)), self.places[short].encode()
            return
        for alias in node.names:
            short, dot, _ = alias.name.partition(".")
            if short in self.places:
                if dot and alias.asname is None:
                    raise SyntaxError(f"`import {alias.name}` binds {short}: write `from {short} import ...`, or `as`")
                first = starts[alias.lineno - 1] + alias.col_offset
                binds = f" as {short}" if alias.asname is None and not dot else ""
                yield (first, first + len(short)), f"{self.places[short]}{binds}".encode()


class _Expected(ast.NodeTransformer):
    """Changes the tree of a module of the clone to that which it must have in a wheel."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        short, dot, rest = (node.module or "").partition(".")
        if node.level == 0 and short in self._names.places:
            node.module = f"{self._names.places[short]}{dot}{rest}"
        return node

    def _module(self, node: ast.alias) -> None:
        short, dot, rest = node.name.partition(".")
        if short in self._names.places:
            node.asname = node.asname or short
            node.name = f"{self._names.places[short]}{dot}{rest}"

    def visit_Import(self, node: ast.Import) -> ast.AST:
        for alias in node.names:
            self._module(alias)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        for part, following in zip(node.values, [*node.values[1:], None], strict=True):
            if isinstance(part, ast.Constant):
                part.value = self._names.text(part.value, "{" if following is not None else "")
            else:
                self.generic_visit(part)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            node.value = self._names.text(node.value)
        return node


def _entry(path: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o100644 << 16
    return entry
