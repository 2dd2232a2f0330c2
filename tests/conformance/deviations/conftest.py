"""The table of known deviations that the tests of this folder write."""

import sys
from pathlib import Path

import pytest

from tests.conformance.deviations.listed_layer import LAYER, toml


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Write a table next to the module that it is about; gives its path."""
    (tmp_path / "their_layer.py").write_text(LAYER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_layer", raising=False)

    def write(*entries: dict) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(toml(*entries))
        return path

    yield write
    sys.modules.pop("their_layer", None)
