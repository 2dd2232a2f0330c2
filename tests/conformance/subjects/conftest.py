"""The module that the tests of this folder write their subjects into."""

import sys

import pytest

from tests.conformance.subjects.own_layer import RIGHT


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module `mine` into the current folder, which is not on sys.path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    def write(text: str) -> None:
        sys.modules.pop("mine", None)
        (tmp_path / "mine.py").write_text(RIGHT + text)

    yield write
    sys.modules.pop("mine", None)
