"""`mha cache`, and the option of `mha check` that leaves it alone."""

import os
import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner

from mha.cli.main import main
from mha_core.backend import Backend, use_compile_cache
from mha_core.files.kept import Kept, pieces

pytestmark = pytest.mark.same_on_newest  # it is about the command line


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MHA_COMPILE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def mha(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def test_it_says_where_and_how_much_and_clears(folder):
    assert mha("cache").output == f"{folder}: 0 files, 0.0 MB\n"
    for key in ("one", "two"):
        Kept(folder / "jax").put(key, bytes(1_000_000))
    assert mha("cache").output == f"{folder}: 2 files, 2.0 MB\n"
    result = mha("cache", "clear")
    assert (result.exit_code, result.output) == (0, f"{folder}: 2 files removed\n")
    assert not folder.exists()


def test_it_says_that_it_is_off(monkeypatch):
    monkeypatch.setenv("MHA_COMPILE_CACHE", "off")
    assert mha("cache").output.startswith("off: MHA_COMPILE_CACHE")
    assert mha("cache", "clear").exit_code == 0


def test_what_can_not_be_removed_is_said(folder, monkeypatch):
    Kept(folder).put("key", b"data")
    monkeypatch.setattr("pathlib.Path.unlink", lambda self, **told: None)
    result = mha("cache", "clear")
    assert result.exit_code == 2
    assert f"1 of 1 files in {folder} could not be removed" in result.output


CHECK = "check", "--backend", "jax", "--case", "ragged-square", "--dtype", "float32", "--path", "compiled"


# A program is one file, and where it is found before it is traced another.
@pytest.mark.parametrize(("options", "kept"), [((), 2), (("--no-compile-cache",), 0)])
def test_check_keeps_programs_unless_told_otherwise(folder, backend_names, options, kept):
    if "jax" not in backend_names:
        pytest.skip("of the four, only JAX keeps programs")
    assert mha(*CHECK, *options).exit_code == 0
    assert folder.exists() == bool(kept)
    assert len(list(pieces(folder / "jax"))) == kept


@pytest.mark.nightly("kept programs harm nobody")
def test_neither_a_full_disk_nor_another_writer_changes_a_verdict(tmp_path, backend_names):
    if "jax" not in backend_names:
        pytest.skip("of the four, only JAX keeps programs")
    command = [sys.executable, "-c", "from mha.cli.main import run; run()", *CHECK]

    def start(folder, largest=resource.RLIM_INFINITY):
        told = {"MHA_COMPILE_CACHE": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env={**os.environ, **told}, **pipes)
        # As on a full disk, writing more to a file is an OSError: Python ignores the signal.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        return process

    shared, full = tmp_path / "shared", tmp_path / "full"
    for process in (start(shared), start(shared), start(full, largest=50)):
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert output.splitlines()[-1] == "All 1 results are equal to the reference."
    assert len(list(pieces(shared / "jax"))) == 2
    assert list(pieces(full)) == []


@pytest.mark.parametrize(("setting", "used"), [("off", None), ("/somewhere", "/somewhere/made-up")])
def test_a_backend_is_given_a_folder_of_its_own_or_none(monkeypatch, setting, used):
    given = []

    class MadeUp(Backend):
        name = "made-up"

        def use_cache(self, folder):
            given.append(None if folder is None else str(folder))

    MadeUp.__abstractmethods__ = frozenset()
    monkeypatch.setenv("MHA_COMPILE_CACHE", setting)
    use_compile_cache(MadeUp())
    assert given == [used]
