"""The rules of docs/architecture.md: imports only downward, and no circle of modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("mha_core", "backends", "conformance", "mha", "mha_parity", "lessons")


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
