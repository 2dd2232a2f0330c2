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
from tests.mha.matrix.made_up import interpreter
from tests.mha.matrix.test_processes import gone
from tests.mha.matrix.test_run import EVENTS, says

pytestmark = pytest.mark.same_on_newest  # it is about the command line

SET = """
[[set]]
name = "{name}"
requirements = ["{requirement}"]
backends = ["torch"]
python = "{python}"
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MHA_MATRIX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def mha(*arguments):
    return CliRunner().invoke(main, ["matrix", *map(str, arguments)])


def file_of(folder, *sets):
    path = folder / "sets.toml"
    path.write_text("".join(SET.format(name=name, requirement=need, python=python) for name, need, python in sets))
    return path


def test_one_set_that_fails_leaves_the_others_their_results(tmp_path, cache):
    python = interpreter(tmp_path, worker=says(*EVENTS))
    path = file_of(tmp_path, ("bad", "nowhere==1", python), ("good", "torch>=2.5", python))
    result = mha(path, "--json", tmp_path / "out.json", "--markdown", tmp_path / "out.md")
    assert result.exit_code == 2, result.output
    assert "bad: can't be installed: it ended with status 1: ERROR: No matching distribution" in result.output
    assert "good: torch measured" in result.output
    assert "torch 2.5.1" in result.output
    found = json.loads((tmp_path / "out.json").read_text())
    assert [one["name"] for one in found["sets"]] == ["good", "bad"]
    assert "| good | torch 2.5.1 |" in (tmp_path / "out.md").read_text()

    again = mha(path, "--set", "good")
    assert again.exit_code == 0, again.output
    assert mha(path, "--set", "nothing").exit_code == 2

    cleared = mha("--clear")
    assert cleared.exit_code == 0
    assert cleared.output.startswith("removed ")
    assert not cache.exists()


def test_what_differs_exits_1(tmp_path):
    fields = {"case": "one-key", "subject": "torch", "dtype": "float64", "device": "cpu", "status": "different"}
    fields |= {"mismatches": [{"stage": "output", "message": "output differs"}], "message": "", "judged": ["output"]}
    event = {"event": "result", "spec": "--backend torch", "result": fields}
    python = interpreter(tmp_path, worker=says(*EVENTS, event))
    result = mha(file_of(tmp_path, ("one", "torch>=2.5", python)))
    assert result.exit_code == 1, result.output
    assert "torch: differs in output, which no entry lists: 1 case (one-key), float64" in result.output


REFUSED = {
    (): "FILE is missing",
    ("nothing.toml",): "nothing.toml can't be read",
    ("--clear", "a.toml"): "--clear takes no FILE",
    ("--time-limit", "0", "a.toml"): "the time limit must be a positive number",
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
def test_an_interrupt_leaves_no_process_and_no_half_made_environment(tmp_path, cache, request_to_end, while_it):
    stuck = f"echo $$ > {tmp_path}/process; sleep 600"
    waits = interpreter(tmp_path, **({"worker": stuck} if while_it == "measures" else {"venv": stuck}))
    (tmp_path / "other").mkdir()
    done = interpreter(tmp_path / "other", worker=says(*EVENTS))
    path = file_of(tmp_path, ("done", "torch>=2.5", done), ("waits", "torch>=2.6", waits))
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
    left = [folder.name for folder in (cache / "environments").iterdir()]
    assert len(left) == (2 if while_it == "measures" else 1)
    assert not any("making" in name for name in left)
    assert len(list((cache / "results").iterdir())) == 1
