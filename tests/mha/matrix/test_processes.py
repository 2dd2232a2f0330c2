"""Programs: their lines and ends, and that nothing is left of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from mha.matrix.environments import processes
from mha.matrix.environments.processes import ProgramFailed, finish, lines


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


def test_the_lines_of_a_program_come_as_they_are_printed(tmp_path):
    text = "import sys; print(sys.stdin.read()); print('b')"
    assert list(lines(program(text), os.environ, 60.0, tmp_path, "a")) == ["a\n", "b\n"]
    assert finish(program("print(1)"), os.environ, 60.0, tmp_path) == "1\n"


ENDS = {
    "import sys; sys.exit('first\\nsecond')": "it ended with status 1: first: second",
    "import os; os.kill(os.getpid(), 11)": "it was ended by SIGSEGV",
    "import sys; sys.exit('ERROR: none such\\nmuch\\nmore\\nsaid')": "it ended with status 1: ERROR: none such",
}


@pytest.mark.parametrize("text", ENDS, ids=["a status", "a crash", "pip's way"])
def test_how_a_program_ended_is_one_line(text, tmp_path):
    for run in (
        lambda: finish(program(text), os.environ, 60.0, tmp_path),
        lambda: list(lines(program(text), os.environ, 60.0, tmp_path, "")),
    ):
        with pytest.raises(ProgramFailed) as caught:
            run()
        assert str(caught.value) == ENDS[text]


def test_a_program_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ProgramFailed, match="/no/such can't be started: No such file"):
        finish(["/no/such"], os.environ, 60.0, tmp_path)


STUCK = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_nothing_is_left_of_a_program_that_says_nothing(tmp_path):
    found = []
    said = lines(program(STUCK), os.environ, 2.0, tmp_path, "")
    with pytest.raises(ProgramFailed, match="it said nothing for 2 s"):
        found.extend(map(int, said))
    (child,) = found
    assert gone(child)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_nothing_is_left_when_the_reader_is_interrupted(tmp_path):
    found = []

    def read():
        with closing(lines(program(STUCK), os.environ, 60.0, tmp_path, "")) as said:
            for line in said:
                found.append(int(line))
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read()
    assert gone(found[0])


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_nothing_is_left_when_the_interrupt_comes_in_the_middle_of_a_start(tmp_path, monkeypatch):
    real, started = subprocess.Popen, []

    def interrupted(*arguments, **options):
        started.append(real(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(processes.subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finish(program("import time; time.sleep(600)"), os.environ, 60.0, tmp_path)
    assert started[0].returncode is not None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_that_takes_too_long_is_ended(tmp_path):
    start = time.monotonic()
    with pytest.raises(ProgramFailed, match="it took more than 1 s"):
        finish(program("import time; time.sleep(600)"), os.environ, 1.0, tmp_path)
    assert time.monotonic() - start < 60.0
