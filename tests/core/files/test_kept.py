"""Data that is kept from run to run: found again whole or not at all, and never an error."""

import errno
import os
import sys
from pathlib import Path

import pytest

from mha_core.files.kept import Kept, folder_for, kept_folder, machine, passed_over, pieces, remove, trim


def only_file(folder):
    (path,) = [path for path, _ in pieces(folder)]
    return path


def test_what_was_put_is_found_by_another_process_and_replaced(tmp_path):
    Kept(tmp_path / "a" / "b").put("key", b"one")
    assert Kept(tmp_path / "a" / "b").get("key") == b"one"
    Kept(tmp_path / "a" / "b").put("key", b"two")
    assert Kept(tmp_path / "a" / "b").get("key") == b"two"
    assert Kept(tmp_path / "a").get("key") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    ],
)
def test_a_damaged_piece_is_not_found_and_can_be_put_again(tmp_path, damage):
    kept = Kept(tmp_path)
    kept.put("key", b"0123456789")
    path = only_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert kept.get("key") is None
    kept.put("key", b"0123456789")
    assert kept.get("key") == b"0123456789"


def test_a_piece_under_the_name_of_another_is_not_found(tmp_path):
    kept = Kept(tmp_path)
    kept.put("one", b"1")
    path = only_file(tmp_path)
    kept.put("two", b"2")
    path.write_bytes(next(other for other, _ in pieces(tmp_path) if other != path).read_bytes())
    assert kept.get("one") is None
    assert kept.get("two") == b"2"


def test_where_nothing_can_be_written_or_read_nothing_is_kept(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("no folder")
    kept = Kept(in_the_way / "cache")
    kept.put("key", b"data")
    assert kept.get("key") is None
    trim(in_the_way)
    assert remove(in_the_way) == 0

    kept = Kept(tmp_path / "cache")
    kept.put("key", b"data")
    path = only_file(tmp_path / "cache")
    path.unlink()
    path.mkdir()  # not even root can write to this name
    kept.put("key", b"data")
    assert kept.get("key") is None


@pytest.mark.parametrize("step", ["pathlib.Path.write_bytes", "os.replace"])
def test_on_a_full_disk_nothing_is_left_and_what_is_there_is_read(tmp_path, monkeypatch, step):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    Kept(tmp_path).put("there", b"data")
    path = only_file(tmp_path)
    monkeypatch.setattr(step, full)
    Kept(tmp_path).put("key", b"data")
    assert (Kept(tmp_path).get("there"), Kept(tmp_path).get("key")) == (b"data", None)
    assert list(tmp_path.rglob("*.kept")) == [path]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only_is_read(tmp_path):
    kept = Kept(tmp_path)
    kept.put("key", b"data")
    tmp_path.chmod(0o500)
    try:
        kept.put("another", b"data")
        assert kept.get("key") == b"data"
        assert kept.get("another") is None
    finally:
        tmp_path.chmod(0o700)


def test_only_pieces_are_removed(tmp_path):
    Kept(tmp_path / "jax" / "one").put("key", b"data")
    Kept(tmp_path / "jax" / "two").put("key", b"data")
    left_behind = only_file(tmp_path / "jax" / "one").with_name(f".{'0' * 16}.{'a' * 64}.kept")
    left_behind.write_bytes(b"half")
    own = tmp_path / "jax" / "two" / "notes.txt"
    own.write_text("not ours")
    assert remove(tmp_path) == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own]
    assert not (tmp_path / "jax" / "one").exists()


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    kept = Kept(tmp_path)
    for number in range(8):
        kept.put(str(number), bytes(1000))
        os.utime(max((path for path, _ in pieces(tmp_path)), key=lambda path: path.stat().st_mtime), (number, number))
    kept.get("0")
    trim(tmp_path, 10_000)
    assert len(list(pieces(tmp_path))) == 8
    trim(tmp_path, 6_000)
    found = [number for number in range(8) if kept.get(str(number)) is not None]
    assert found == [0, 7]


def test_the_folder_follows_the_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("MHA_COMPILE_CACHE", str(tmp_path / "mine"))
    assert kept_folder() == tmp_path / "mine"
    for word in ("off", "OFF"):
        monkeypatch.setenv("MHA_COMPILE_CACHE", word)
        assert kept_folder() is None
    monkeypatch.delenv("MHA_COMPILE_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert kept_folder() == tmp_path / "xdg" / "mha-parity"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
        assert kept_folder() == Path.home() / ".cache" / "mha-parity"


def test_a_user_without_a_home_keeps_nothing(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MHA_COMPILE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert kept_folder() is None


def test_folders_of_different_versions_flags_and_machines_differ():
    versions = {"jax": "0.7.1", "jaxlib": "0.7.1"}
    names = {
        folder_for(versions, ["--flag", machine()]),
        folder_for(versions, ["--flag", machine()]),  # the same again
        folder_for(versions, ["--other", machine()]),
        folder_for(versions, ["--flag", "another machine"]),
        folder_for({**versions, "jax": "0.7.2"}, ["--flag", machine()]),
    }
    assert len(names) == 4
    assert all(name.startswith("jax-0.7.") for name in names)
    assert "/" not in folder_for({"jax": "../../etc"}, [])


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has other means")
def test_what_others_own_or_may_write_is_passed_over_and_said(tmp_path, monkeypatch):
    kept = Kept(tmp_path / "kept" / "inner")
    kept.put("key", b"data")
    assert (tmp_path / "kept").stat().st_mode & 0o777 == kept.folder.stat().st_mode & 0o777 == 0o700
    (piece,) = kept.folder.iterdir()
    for path, mode in ((piece, 0o666), (piece, 0o620), (kept.folder, 0o777), (kept.folder, 0o770)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert kept.get("key") is None
        assert passed_over(tmp_path / "kept").startswith(f"passed over: 1 piece in {tmp_path / 'kept'}, which others")
        if path == kept.folder:
            kept.put("other", b"data")
            assert list(kept.folder.iterdir()) == [piece]
        path.chmod(before)
        assert (kept.get("key"), passed_over(tmp_path / "kept")) == (b"data", "")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert kept.get("key") is None
    assert passed_over(tmp_path / "kept")
