"""How `mha` ends: 1 means different and nothing else, accidents are 2 and one line, and nothing is left behind."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mha.cli.ending import Program
from mha_core import SpecError

pytestmark = pytest.mark.same_on_newest  # it is about the command line

MHA = [sys.executable, "-c", "from mha.cli.main import run; run()"]


@click.group(cls=Program)
def program() -> None: ...


ACCIDENTS = {
    "a bug of ours": (lambda: [][1], "Error: this should not have happened: IndexError: list index out of range; MHA_"),
    "a full disk": (lambda: os.write(os.open("/dev/full", os.O_WRONLY), b"a"), "Error: No space left on device"),
    "a file that is gone": (lambda: Path("/gone").read_text(), "Error: No such file or directory: /gone"),
    "a rule": (lambda: (_ for _ in ()).throw(SpecError("no such layer")), "Error: no such layer"),
    "a file that ends early": (
        lambda: pickle.loads(b""),
        "Error: this should not have happened: EOFError: Ran out of input; MHA_",
    ),
    "an interrupt": (lambda: (_ for _ in ()).throw(KeyboardInterrupt), "interrupted"),
    "no memory": (lambda: (_ for _ in ()).throw(MemoryError("80 GB")), "Error: not enough memory: 80 GB"),
    "a closed pipe": (lambda: (_ for _ in ()).throw(BrokenPipeError(32, "Broken pipe")), ""),
}


@pytest.mark.parametrize("what", ACCIDENTS)
def test_an_accident_ends_with_2_and_one_line(what):
    happen, message = ACCIDENTS[what]

    @program.command(name="happen")
    def command() -> None:
        happen()

    result = CliRunner().invoke(program, ["happen"])
    assert result.exit_code == 2
    assert result.output.strip().startswith(message)
    assert len(result.output.strip().splitlines()) == (1 if message else 0)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_what_a_command_says_itself_stands(status):
    program.command(name="say")(lambda: sys.exit(status))
    assert CliRunner().invoke(program, ["say"]).exit_code == status


def test_without_a_command_the_help_is_no_error():
    @program.command(name="one")
    def command() -> None: ...

    assert "Error" not in CliRunner().invoke(program, []).output


def run(*arguments: str, **options):
    return subprocess.run([*MHA, *arguments], stderr=subprocess.PIPE, check=False, **options)


def test_output_that_cannot_be_written_is_an_accident():
    with open("/dev/full", "wb") as full:
        result = run("check", "--list", stdout=full)
    assert (result.returncode, result.stderr) == (2, b"Error: No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        result = run("check", "--list", stdout=closed)
    assert (result.returncode, result.stderr) == (2, b"")


def test_without_standard_output_it_says_so_and_without_the_others_it_works():
    script = f"{sys.executable} -c 'from mha.cli.main import run; run()' check --list"
    result = subprocess.run(["sh", "-c", f"{script} >&-"], capture_output=True, text=True, check=False)
    message = "Error: the output can't be written: standard output is closed\n"
    assert (result.returncode, result.stderr) == (2, message)
    result = subprocess.run(["sh", "-c", f"{script} <&- 2>&-"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "prime" in result.stdout


CARELESS = """
import sys, threading, time
from mha_core import AttentionInputs, AttentionMask, reference
def attention(weights, queries, keys, values, mask, *, config):
    sys.stdout.close()
    threading.Thread(target=time.sleep, args=(60,)).start()
    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=mask))
    return reference.run(config, weights, inputs).output
"""


def test_a_subject_that_closes_the_output_and_leaves_threads_behind(tmp_path):
    (tmp_path / "mine.py").write_text(CARELESS)
    command = ("check", "--subject", "mine:attention", "--case", "prime", "--dtype", "float64")
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    result = run(*command, "--json", "/dev/stdout", stdout=subprocess.PIPE, cwd=tmp_path, env=environment, timeout=30)
    assert result.returncode == 0, result.stderr
    assert b"attention float64: equal in all 1\n" in result.stdout
    assert b"\n}\n" in result.stdout  # the JSON, which stands before what was covered


def test_a_text_as_exit_status_is_an_accident():
    program.command(name="say")(lambda: sys.exit("no"))
    assert CliRunner().invoke(program, ["say"]).exit_code == 2


@pytest.mark.nightly("each terminal is served", every=2)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_the_characters_is_served_too(encoding):
    result = run("--help", stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (result.returncode, result.stderr) == (0, b"")
    result = run("bugs", stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (result.returncode, result.stderr) == (0, b"")
    result.stdout.decode(encoding)


SLOW = """
import time
def attention(weights, queries, keys, values, mask):
    print("asked", flush=True)
    time.sleep(60)
"""


@pytest.mark.nightly("a request to end is followed", every=3)
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_request_to_end_is_followed_at_once(sign, tmp_path):
    (tmp_path / "mine.py").write_text(SLOW)
    command = [*MHA, "check", "--subject", "mine:attention", "--case", "one-head", "--json", "report.json"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as process:
        process.stdout.readline()
        start = time.perf_counter()
        process.send_signal(sign)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert time.perf_counter() - start < 20
    assert b"interrupted: 0 of 2 results are there" in errors
    assert b"Traceback" not in errors
    assert sorted(os.listdir(tmp_path)) in (["mine.py", "report.json"], ["__pycache__", "mine.py", "report.json"])
