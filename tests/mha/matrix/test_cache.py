"""The cache: where it is, what it removes, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mha.matrix.environments.cache import Cache, default_root
from mha_core import SpecError


def test_the_folder_is_the_users_cache_and_can_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("MHA_MATRIX_CACHE", raising=False)
    assert default_root() == tmp_path / "xdg" / "mha-parity-matrix"
    monkeypatch.setenv("MHA_MATRIX_CACHE", str(tmp_path / "mine"))
    assert default_root() == tmp_path / "mine"


def test_what_a_process_left_half_made_is_removed_once_it_is_gone(tmp_path):
    cache = Cache(tmp_path)
    cache.prepare()
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    left, at_work, whole = (
        cache.environments / name for name in (f"a.making-{gone.stdout.strip()}", f"b.making-{os.getpid()}", "c")
    )
    for folder in (left, at_work, whole):
        (folder / "bin").mkdir(parents=True)
    cache.prepare()
    assert sorted(path.name for path in cache.environments.iterdir()) == sorted([at_work.name, "c"])


def test_clear_removes_all_of_its_own_and_nothing_else(tmp_path):
    cache = Cache(tmp_path / "cache")
    assert cache.clear() == 0
    cache.prepare()
    (cache.results / "a.json").write_text("12345")
    assert cache.clear() == 5
    assert not cache.root.exists()

    cache.prepare()
    (cache.root / "notes.txt").write_text("mine")
    cache.clear()
    assert [path.name for path in cache.root.iterdir()] == ["notes.txt"]


def test_clear_refuses_a_folder_that_is_not_its_own(tmp_path):
    (tmp_path / "results").mkdir()
    with pytest.raises(SpecError, match="was not made by `mha matrix`"):
        Cache(tmp_path).clear()
    assert (tmp_path / "results").exists()
