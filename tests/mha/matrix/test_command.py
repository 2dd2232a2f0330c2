"""`mha matrix` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from mha.cli.main import main
from tests.mha.matrix.made_up import result, uv
from tests.mha.matrix.test_programs import gone
from tests.mha.matrix.test_run import finds, reports

pytestmark = pytest.mark.same_on_newest  # it is about the command line

SET = """
[[set]]
name = "{name}"
requirements = ["{requirement}"]
backends = ["torch"]
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MHA_COMPILE_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(monkeypatch, tmp_path):
    """A function that puts a made-up uv first on the path."""

    def make(**commands):
        folder = uv(tmp_path / "made", **{"inside": finds(), "check": reports(), **commands})
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return make


def mha(*arguments):
    return CliRunner().invoke(main, ["matrix", *map(str, arguments)])


def file_of(folder, *sets):
    path = folder / "sets.toml"
    path.write_text("".join(SET.format(name=name, requirement=need) for name, need in sets))
    return path


def test_one_set_that_fails_leaves_the_others_their_results(tmp_path, made, cache):
    made()
    path = file_of(tmp_path, ("bad", "nowhere==1"), ("good", "torch>=2.5"))
    result = mha(path, "--json", tmp_path / "out.json", "--markdown", tmp_path / "out.md")
    assert result.exit_code == 2, result.output
    assert "bad: can't be installed: it ended with status 1: error: No solution found" in result.output
    assert "good: torch measured" in result.output
    assert "torch 2.5.1" in result.output
    found = json.loads((tmp_path / "out.json").read_text())
    assert [one["name"] for one in found["sets"]] == ["good", "bad"]
    assert "| good | torch 2.5.1 |" in (tmp_path / "out.md").read_text()
    assert list(cache.iterdir()) == []

    again = mha(path, "--set", "good")
    assert again.exit_code == 0, again.output
    assert mha(path, "--set", "nothing").exit_code == 2


def test_what_differs_exits_1(tmp_path, made):
    wrong = {**result("one-key", "output"), "subject": "torch", "selector": "--backend torch"}
    made(check=f"{reports(wrong)}; exit 1")
    found = mha(file_of(tmp_path, ("one", "torch>=2.5")))
    assert found.exit_code == 1, found.output
    assert "torch: differs in output, which no entry lists: 1 case (one-key), float64" in found.output


REFUSED = {
    (): "Missing argument 'FILE'",
    ("nothing.toml",): "nothing.toml can't be read",
    ("--time-limit", "0", "a.toml"): "the time limit must be a positive number",
    ("--clear",): "--clear is no longer there: `mha cache clear`",
    ("--remove", "a.toml"): "--remove is no longer there: an environment is always removed",
    ("--installer", "pip", "a.toml"): "--installer is no longer there: uv makes the environments",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=list(REFUSED.values()))
def test_a_wrong_request_is_one_line_and_makes_nothing(arguments, cache):
    result = mha(*arguments)
    assert result.exit_code == 2
    assert REFUSED[arguments] in result.output
    assert not cache.exists()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
@pytest.mark.parametrize("request_to_end", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("while_it", ["makes the environment", "measures"])
def test_an_interrupt_leaves_no_process_and_no_half_made_environment(tmp_path, made, cache, request_to_end, while_it):
    # The second set is stuck: the first has written a file by then.
    stuck = f"if [ -f {tmp_path}/first ]; then echo $$ > {tmp_path}/process; sleep 600; fi; touch {tmp_path}/first"
    made(**({"check": f"{stuck}; {reports()}"} if while_it == "measures" else {"venv": stuck}))
    path = file_of(tmp_path, ("done", "torch>=2.5"), ("waits", "torch>=2.6"))
    command = [sys.executable, "-c", "from mha.cli.main import run; run()", "matrix", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        deadline = time.monotonic() + 120.0
        while not (tmp_path / "process").exists() or not (tmp_path / "process").read_text().strip():
            assert time.monotonic() < deadline
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.05)
        process.send_signal(request_to_end)
        output, _ = process.communicate(timeout=60.0)
    assert process.returncode == 2, output
    assert "interrupted: 1 results are there, and kept" in output
    assert gone(int((tmp_path / "process").read_text()))
    assert list(cache.iterdir()) == []
    assert len(list((tmp_path / "kept" / "matrix").iterdir())) == 1
