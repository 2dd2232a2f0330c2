"""What is written for a user: whole or not at all, through links, into devices, with the mode that was there."""

import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from mha_core import AttentionConfig, SpecError, init_weights, load_weights, save_weights
from mha_core.files.writing import check_different, check_output, write_json, write_whole, written_whole

pytestmark = pytest.mark.same_on_newest  # it is about files


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path):
    (tmp_path / "link").symlink_to("deep/real.json")
    (tmp_path / "deep").mkdir()
    write_whole(tmp_path / "link", b"first")  # the target is not there yet
    write_whole(tmp_path / "link", b"second")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "deep" / "real.json").read_bytes() == b"second"
    assert os.listdir(tmp_path / "deep") == ["real.json"]


def test_the_mode_of_what_was_there_is_kept_and_the_umask_is_not_touched(tmp_path, monkeypatch):
    path = tmp_path / "private.json"
    path.write_bytes(b"old")
    path.chmod(0o640)
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to the process"))
    write_whole(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    (plain := tmp_path / "plain").touch()
    write_whole(tmp_path / "new", b"new")
    assert (tmp_path / "new").stat().st_mode == plain.stat().st_mode


def test_a_device_and_a_pipe_are_written_into(tmp_path):
    before = os.stat("/dev/null")
    write_json("/dev/null", {"a": 1})
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert os.stat("/dev/null").st_ino == before.st_ino
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_whole(tmp_path / "pipe", b"through")
    reader.join(10)
    assert read == [b"through"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_weights_go_through_a_link_too(tmp_path):
    config = AttentionConfig(6, 2, bias=True)
    (tmp_path / "link.safetensors").symlink_to("real.safetensors")
    save_weights(tmp_path / "link.safetensors", config, init_weights(config, seed=0))
    assert (tmp_path / "link.safetensors").is_symlink()
    assert load_weights(tmp_path / "real.safetensors")[0] == config


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_named_with_the_file():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_whole("/dev/full", b"some")


def interrupted(path):
    with written_whole(path) as temporary:
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt


def test_nothing_is_left_where_writing_fails(tmp_path):
    (tmp_path / "there").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "there")
    assert os.listdir(tmp_path) == ["there"]
    assert (tmp_path / "there").read_bytes() == b"old"


def test_a_name_of_the_greatest_length_can_be_written(tmp_path):
    name = "a" * 250 + ".json"
    with written_whole(tmp_path / name) as temporary:
        assert temporary.name.endswith(".json")
        temporary.write_bytes(b"whole")
    assert os.listdir(tmp_path) == [name]


def test_a_path_is_absolute_from_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = check_output("report.json", what="--json")
    monkeypatch.chdir("/")
    write_whole(path, b"here")
    assert os.listdir(tmp_path) == ["report.json"]


def test_what_cannot_be_written_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "there").touch()
    for path, message in (
        (tmp_path, "--json must name a file. Got the folder"),
        (tmp_path / "none" / "a", "--json needs an existing folder. There is no"),
        ("a\0b", "--json must name a file. Got 'a"),
        (tmp_path / "circle", "--json must name a file. Got"),
    ):
        with pytest.raises(SpecError, match=message):
            check_output(path, what="--json")
    with pytest.raises(SpecError, match="there is already there; --force replaces it"):
        check_output(tmp_path / "there", what="out", force="--force")


def test_one_file_for_two_reports_is_refused_through_links_too(tmp_path):
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(SpecError, match="--json and --html must name different files"):
        check_different(json=tmp_path / "real", html=tmp_path / "link")
    check_different(json=tmp_path / "real", html=tmp_path / "other", out=None)
    check_different(json=Path("/dev/null"), html=Path("/dev/null"))


def test_an_open_file_is_written_where_it_stands_and_not_emptied(tmp_path):
    with (tmp_path / "log").open("w+b") as log:
        log.write(b"first\n")
        log.flush()
        (tmp_path / "link").symlink_to(f"/dev/fd/{log.fileno()}")
        for path in (f"/dev/fd/{log.fileno()}", f"/proc/self/fd/{log.fileno()}", tmp_path / "link"):
            write_whole(check_output(path, what="--json"), b"more\n")
    assert (tmp_path / "log").read_bytes() == b"first\n" + 3 * b"more\n"
    with (
        (tmp_path / "log").open("rb") as log,
        pytest.raises(SpecError, match="--json needs a file that can be written"),
    ):
        check_output(f"/dev/fd/{log.fileno()}", what="--json")


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no memory that looks like a disk")
def test_a_file_in_memory_is_a_regular_file():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "report"
        path.write_bytes(b"old")
        with pytest.raises(SpecError, match="must name different files"):
            check_different(json=path, html=path)
        with pytest.raises(SpecError, match="is already there; --force replaces it"):
            check_output(path, what="out", force="--force")


def test_files_that_rules_protect_are_refused_before_anything_runs(tmp_path, monkeypatch):
    (tmp_path / "there").touch()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "there" and access(path, mode))
    with pytest.raises(SpecError, match="--json needs a file that can be written to"):
        check_output(tmp_path / "there", what="--json")
    monkeypatch.undo()
    tmp_path.chmod(0o1777)
    check_output(tmp_path / "there", what="--json")
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(SpecError, match="--json can't replace somebody else's file"):
        check_output(tmp_path / "there", what="--json")


def test_the_owner_stays_and_nobody_else_reads_what_is_private_meanwhile(tmp_path, monkeypatch):
    (tmp_path / "private").touch(0o600)
    asked: list[tuple[int, int]] = []
    owner = os.stat_result((0o100600, 1, 1, 1, 4321, 8765, 0, 0, 0, 0))
    monkeypatch.setattr(os, "chown", lambda path, *owner: asked.append(owner))
    with written_whole(tmp_path / "private") as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        stat_of = Path.stat
        monkeypatch.setattr(Path, "stat", lambda path, **how: owner if path.name == "private" else stat_of(path, **how))
    assert asked == [(4321, 8765)]
