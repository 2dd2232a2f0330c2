"""The same bits again: in one process and in a fresh one."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.subjects.backend import BackendSubject
from conformance.twice import Repeated, bits_of, twice
from conformance.workers.interpreters import Settings
from conformance.workers.process import running
from mha.cli.main import main
from mha_core import SpecError, Trace
from mha_core.backend import load

pytestmark = pytest.mark.same_on_newest  # it takes minutes, and each release says it of itself

PATTERNS = ("ragged-square", "every-source", "dropout", "trained-first-layer")


def repeated(backend, dtype, paths, patterns, settings):
    subjects = [BackendSubject(load(backend), dtype, "cpu", path) for path in paths]
    with ThreadPoolExecutor(1) as executor:
        return list(twice(subjects, patterns, executor, settings))


def test_every_backend_repeats_its_bits(backend_name, tmp_path, monkeypatch):
    """On both paths, and in the interpreter that was asked for: two fresh processes of it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho started >> "{tmp_path}/starts"\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    settings = Settings({backend_name: str(other)})
    usual, fast = repeated(backend_name, "float32", (None, "fast"), PATTERNS, settings)
    assert (tmp_path / "starts").read_text().split() == ["started", "started"]
    assert (usual.subject, fast.subject) == (backend_name, f"{backend_name} fast")
    assert usual.total > 50
    assert fast.total > 40
    for found in (usual, fast):
        assert (found.in_process, found.fresh) == ((), ())


def test_other_bits_are_named(monkeypatch):
    """Where they differ: the second run in a process, the run in another."""
    given = iter([[[{"prime: output": "1"}, {"prime: output": "2"}]], [[{"prime: output": "1"}]]])
    monkeypatch.setattr("conformance.twice._in_a_process", lambda *_: next(given))
    (found,) = repeated("torch", "float32", (None,), ("prime",), Settings())
    assert found == Repeated("torch", "float32", 1, ("prime: output",), ())


def test_one_bit_changes_the_hash():
    output = np.random.default_rng(0).normal(size=(2, 3))
    other = output.copy()
    other[1, 2] = np.nextafter(other[1, 2], 9.0)
    gradients = {"keys": output}
    assert bits_of(Trace(output=output)) != bits_of(Trace(output=other))
    assert bits_of(Trace(output=output, gradients=gradients)).keys() == {"output", "gradients.keys"}


ASKED = ["check", "--twice", "-b", "jax", "-c", "prime", "-d", "float64"]


def test_the_command_reports_and_exits(monkeypatch):
    equal = CliRunner().invoke(main, ASKED)
    assert equal.exit_code == 0, equal.output
    assert "jax fast" in equal.output
    monkeypatch.setattr(
        "conformance.twice.twice",
        lambda subjects, *_: [Repeated(one.name, one.dtype, 9, (), ("prime: output",)) for one in subjects],
    )
    different = CliRunner().invoke(main, ASKED)
    assert different.exit_code == 1
    assert "different bits: jax float64 prime: output" in different.output
    assert "different bits: jax fast float64 prime: output" in different.output


def test_an_interrupt_leaves_the_finished_rows(monkeypatch):
    def some(subjects, *_):
        yield Repeated(subjects[0].name, subjects[0].dtype, 9, (), ())
        raise KeyboardInterrupt

    monkeypatch.setattr("conformance.twice.twice", some)
    done = CliRunner().invoke(main, ASKED)
    assert done.exit_code == 2
    assert "interrupted: 1 of 2 rows are there" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-b", "pytroch"], "backend 'pytroch' is not known"),
        (["-c", "primes"], "case 'primes' is not known"),
        (["-d", "float8"], "dtype 'float8' is not known"),
        (["-b", "jax", "--path", "fastest"], "path 'fastest' is not there (there are: "),
    ],
)
def test_bad_arguments_exit_2(arguments, message):
    result = CliRunner().invoke(main, ["check", "--twice", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_the_process_that_dies_is_one_line(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nkill -9 $$\n")
    broken.chmod(0o755)
    with pytest.raises(SpecError) as error:
        repeated("torch", "float32", (None,), ("prime",), Settings({"torch": str(broken)}))
    assert "a fresh process with torch in float32 failed" in str(error.value)
    assert "its process was ended by SIGKILL" in str(error.value)
    assert not running()
