"""Hashes of code: every change of a file changes them."""

import os
from importlib.util import find_spec
from types import ModuleType

import pytest

from mha_core.files.source import installed_stamp, source_hash


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "made_up_package"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("one = 1")
    (folder / "inner" / "two.py").write_text("two = 2")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


CHANGES = {
    "content": lambda folder: (folder / "inner" / "two.py").write_text("two = 3"),
    "name": lambda folder: (folder / "inner" / "two.py").rename(folder / "inner" / "three.py"),
    "place": lambda folder: (folder / "inner" / "two.py").rename(folder / "two.py"),
    "new": lambda folder: (folder / "new.py").write_text(""),
    "gone": lambda folder: (folder / "inner" / "two.py").unlink(),
    "moved over": lambda folder: ((folder / "__init__.py").write_text("one = "), (folder / "a.py").write_text("1")),
}


def hash_of(name: str) -> str:
    package = ModuleType(name)
    package.__path__ = find_spec(name).submodule_search_locations
    return source_hash(package)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("hashed", [hash_of, installed_stamp])
def test_every_change_is_seen(package, change, hashed):
    before = hashed("made_up_package")
    assert hashed("made_up_package") == before
    CHANGES[change](package)
    assert hashed("made_up_package") != before


def test_a_file_that_is_only_written_again_is_the_same_source(package):
    before = hash_of("made_up_package"), installed_stamp("made_up_package")
    os.utime(package / "__init__.py", (1, 1))
    assert hash_of("made_up_package") == before[0]
    assert installed_stamp("made_up_package") != before[1]


def test_what_is_no_code_does_not_count(package):
    before = hash_of("made_up_package"), installed_stamp("made_up_package")
    (package / "notes.txt").write_text("notes")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "two.py").write_text("kept by Python")
    assert installed_stamp("made_up_package") == before[1]


def test_a_package_that_is_not_there_has_no_stamp():
    with pytest.raises(FileNotFoundError, match="made_up_nothing"):
        installed_stamp("made_up_nothing")
