"""Programs: their lines and ends, and that nothing is left of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mha.matrix import programs
from mha.matrix.programs import Failed, finish


def program(text):
    return [sys.executable, "-c", text]


def gone(number, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{number}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":  # ended; whoever adopted it has not asked yet
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_what_a_program_prints_is_returned_and_other_packages_are_not_led_in(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    text = "import os; print(os.getcwd(), *map(os.getenv, ['PYTHONPATH', 'PYTHONDONTWRITEBYTECODE', 'MINE']))"
    assert finish(program(text), tmp_path, 60.0, MINE="a") == f"{tmp_path} None None a\n"
    assert "/elsewhere" not in finish(program(text), tmp_path, 60.0, PYTHONPATH="/copy")


ENDS = {
    "import sys; sys.exit('first\\nsecond')": "it ended with status 1: first: second",
    "import os; os.kill(os.getpid(), 11)": "it was ended by SIGSEGV",
    "import sys; sys.exit('error: no\\n  cause: yes\\n\\nhint: more')": "it ended with status 1: error: no: cause: yes",
}


@pytest.mark.parametrize("text", ENDS, ids=["a status", "a crash", "uv's way"])
def test_how_a_program_ended_is_one_line(text, tmp_path):
    with pytest.raises(Failed) as caught:
        finish(program(text), tmp_path, 60.0)
    assert str(caught.value) == ENDS[text]


def test_a_program_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(Failed, match="/no/such can't be started: No such file"):
        finish(["/no/such"], tmp_path, 60.0)


STUCK = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("child", "w").write(f"{child.pid} ")
time.sleep(600)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_nothing_is_left_of_a_program_that_takes_too_long(tmp_path):
    start = time.monotonic()
    with pytest.raises(Failed, match="it took more than 3 s"):
        finish(program(STUCK), tmp_path, 3.0)
    assert gone(int((tmp_path / "child").read_text()))
    assert time.monotonic() - start < 60.0


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_nothing_is_left_when_an_interrupt_comes(tmp_path):
    def interrupt():
        while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            finish(program(STUCK), tmp_path, 60.0)
    assert gone(int((tmp_path / "child").read_text()))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_nothing_is_left_when_the_interrupt_comes_in_the_middle_of_a_start(tmp_path, monkeypatch):
    real, started = subprocess.Popen, []

    def interrupted(*arguments, **options):
        started.append(real(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(programs.subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finish(program("import time; time.sleep(600)"), tmp_path, 60.0)
    assert started[0].returncode is not None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("end", ["exit 3", "exec sleep 60"])
def test_what_was_printed_until_then_is_there(tmp_path, end):
    with pytest.raises(Failed) as failed:
        finish(["sh", "-c", f"echo one; echo two; {end}"], tmp_path, 1.0)
    assert failed.value.printed == "one\ntwo\n"
