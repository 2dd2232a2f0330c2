"""The reference never runs beside a stranger, and what a stranger sends harms nobody but its own cases."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.case_unit import run_apart
from conformance.cases.table import select
from conformance.workers import Local, Settings
from conformance.workers.described import describe_backend, describe_subjects
from conformance.workers.execute import end_idle
from conformance.workers.interpreters import Home
from mha.cli.main import main
from mha_core import BackendError

pytestmark = pytest.mark.same_on_newest  # it is about processes

PLAIN = ("prime", "causal", "trained-first-layer")


def judged(spec, settings):
    """Case -> status, as `mha check` and pytest judge it."""
    subjects, _ = describe_subjects(spec, ["float64"], 60.0, settings)
    with Local(1) as executor:
        results = run_apart([(case, subjects[0]) for case in select(PLAIN)], executor, settings)
        found = {result.case: result.status for _, result in results}
    end_idle()
    return found


@pytest.mark.parametrize("here", [True, False], ids=["subject in this process", "subject in its own"])
def test_a_module_that_changes_numpy_is_judged_by_a_reference_that_it_does_not_reach(here, patching, monkeypatch):
    """And afterwards nothing that it spoiled is found by others."""
    for name in ("exp", "einsum"):  # a subject in this process is to change them for this test alone
        monkeypatch.setattr(np, name, getattr(np, name))
    monkeypatch.delitem(sys.modules, "patching", raising=False)
    assert judged("patching:attention", Settings(here=here)) == dict.fromkeys(PLAIN, "different")
    assert (float(np.exp(1.0)) == math.e) is not here
    assert list((patching / "kept" / "expected").rglob("*.kept"))
    assert judged("tests.conformance.workers.numbers:Right", Settings()) == dict.fromkeys(PLAIN, "equal")


def test_pytest_judges_there_too(patching):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    options = ["--mha-subject", "patching:attention", "--mha-case", "prime", "--mha-dtype", "float64"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--mha-no-diagnosis", *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed" in done.stdout, done.stdout
    assert "output differs in 290 of 290 elements" in done.stdout


BROKEN = """
from conftest_numbers import Right


class Raises(Right):
    def __init__(self, dtype):
        raise ValueError("it is broken")


class Nameless(Right):
    @property
    def name(self):
        raise ValueError("it has none")


class Odd(Right):
    dtypes = ("float64", 3)


class Prints(Right):
    def prepare(self, config, weights):
        print("so " * 100_000)
        return super().prepare(config, weights)
"""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(BROKEN.replace("conftest_numbers", "tests.conformance.workers.numbers"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MHA_WORKERS", "2")


def checked(*options):
    path = Path("report.json").absolute()
    cases = [text for case in PLAIN for text in ("-c", case)]
    result = CliRunner().invoke(main, ["check", "-d", "float64", "--json", str(path), *options, *cases])
    report = json.loads(path.read_text())
    return result, {(row["subject"], row["case"]): row["status"] for row in report["results"]}, report["could_not_run"]


def test_a_subject_that_can_not_be_used_costs_itself_and_nothing_else(broken):
    names = ("Raises", "Nameless", "Odd")
    options = [text for name in names for text in ("-s", f"broken:{name}")]
    result, found, lines = checked(*options, "-s", "tests.conformance.workers.numbers:Right")
    assert found == {("right", case): "equal" for case in PLAIN}
    assert result.exit_code == 2
    for name, line, words in zip(names, lines, ("it is broken", "it has none", "dtype 3"), strict=True):
        assert line.startswith(f"subject 'broken:{name}'")
        assert words in line
        assert line in result.output
    result, found, lines = checked("-s", "broken:Raises")  # alone
    assert (result.exit_code, found, len(lines)) == (2, {}, 1)


def test_what_a_subject_prints_is_cut(broken, capfd):
    _, found, _ = checked("-s", "broken:Prints")
    assert set(found.values()) == {"equal"}
    printed = capfd.readouterr().err
    assert printed.startswith("so so ")
    assert 2000 <= len(printed) < 2100
    assert printed.rstrip().endswith("(what else broken:Prints prints is left out)")


LIAR = """
import pickle, socket, struct, sys, time
from conformance.workers.protocol import Hello
line = socket.socket(fileno=int(sys.argv[-5]))
def frame(kind, content): line.sendall(struct.pack("!Qc", len(content), kind) + content)
class Command:
    def __reduce__(self):
        import os
        return os.system, ("touch it-ran",)
frame(b"h", Hello.of_this_process().to_bytes())
"""

LIES = {
    "a pickle": 'frame(b"a", pickle.dumps(Command())); frame(b".", b"")',
    "half a message": 'line.sendall(struct.pack("!Qc", 1000, b"a") + b"half"); time.sleep(60)',
    "too much": 'line.sendall(struct.pack("!Qc", 2**40, b"a")); time.sleep(60)',
    "nothing": 'frame(b".", b""); time.sleep(60)',
    "two answers": 'frame(b"a", b""); frame(b"a", b""); time.sleep(60)',
    "an unknown kind": 'frame(b"?", b"x"); frame(b".", b""); time.sleep(60)',
    "another answer": 'from conformance.workers.wire import dumps; frame(b"a", dumps([1])); frame(b".", b"")',
    "an error that is none": 'from conformance.workers.wire import dumps; frame(b"e", dumps(1)); frame(b".", b"")',
}

SAID = {
    "half a message": "no sign of life within 2 s",
    "too much": f"it sent a message of {2**40} bytes",
}


@pytest.mark.parametrize("lie", LIES)
def test_bytes_of_an_interpreter_run_nothing_here(lie, tmp_path, monkeypatch):
    """It greets as it must; what it says then is refused in one line that names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("conformance.workers.process.GRACE_SECONDS", 1.0)
    monkeypatch.setattr("conformance.workers.process.END_SECONDS", 0.1)  # it never ends by itself
    program = tmp_path / "python"
    (tmp_path / "liar.py").write_text(f"{LIAR}\n{LIES[lie]}\ntime.sleep(1)\n")
    paths = os.pathsep.join(path for path in sys.path if path)
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{paths}" exec "{sys.executable}" "{tmp_path}/liar.py" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr("conformance.workers.described.Home", lambda name: Home(name, 1.0))
    with pytest.raises(BackendError) as error:
        describe_backend("torch", Settings({"torch": str(program)}))
    end_idle()
    assert "\n" not in str(error.value)
    assert str(program) in str(error.value)
    assert SAID.get(lie, "sent") in str(error.value)
    assert not (tmp_path / "it-ran").exists()
