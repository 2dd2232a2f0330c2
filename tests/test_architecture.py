"""The rules of docs/architecture.md: imports only downward, no circle of modules, files and folders of limited size."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("mha_core", "backends", "conformance", "mha", "mha_parity", "lessons")

LARGEST_FOLDER = 12
"""Modules of one folder, without its `__init__`."""

LONGEST_FILE = 350
"""Lines of one module."""


def circles(*packages: str) -> list[tuple[str, ...]]:
    """Pairs of modules of which each reaches the other by imports, those for type checkers alone included."""
    graph = grimp.build_graph(*packages, cache_dir=None)
    edges = [(module, other) for module in graph.modules for other in graph.find_modules_directly_imported_by(module)]
    return sorted({(a, b) if a < b else (b, a) for a, b in edges if graph.chain_exists(importer=b, imported=a)})


def test_imports_go_downward():
    # In a process of its own: it configures logging anew, which closes the stream of TensorFlow's and JAX's handler.
    code = "from importlinter.cli import lint_imports; exit(lint_imports(no_cache=True, no_logo=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_stands_in_a_circle():
    assert circles(*PACKAGES) == []


@pytest.mark.parametrize("how", ["from made_up import first", "if TYPE_CHECKING:\n    from made_up import first"])
def test_a_circle_is_found(how, tmp_path, monkeypatch):
    folder = tmp_path / "made_up"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "first.py").write_text("from made_up import second\n")
    (folder / "second.py").write_text(f"from typing import TYPE_CHECKING\n{how}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert circles("made_up") == [("made_up.first", "made_up.second")]


def modules() -> list[Path]:
    """Every module of the packages, the site and the tests, from the root of the repository."""
    return [
        path.relative_to(ROOT)
        for package in (*PACKAGES, "docs", "tests")
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def test_a_folder_can_be_taken_in_at_a_glance():
    sizes = Counter(path.parent.as_posix() for path in modules() if path.name != "__init__.py")
    assert {folder: size for folder, size in sizes.items() if size > LARGEST_FOLDER} == {}


def test_a_file_is_not_too_long():
    lengths = {path.as_posix(): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}
