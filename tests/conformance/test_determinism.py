"""The same bits again: in one process and in a fresh one."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.determinism import Repeatability, fingerprint, repeatability
from conformance.workers.interpreters import Settings
from conformance.workers.process import running
from mha.cli.main import main
from mha_core import SpecError, Trace

pytestmark = pytest.mark.same_on_newest  # it takes minutes, and each release says it of itself

PATTERNS = ("ragged-square", "every-source", "dropout", "trained-first-layer")


@pytest.mark.parametrize("path", [None, "fast"])
def test_every_backend_repeats_its_bits(backend, path):
    found = repeatability(backend.name, "float32", PATTERNS, path)
    assert found.total > (50 if path is None else 40)
    assert found.bitwise, (found.in_process, found.fresh)


def test_one_bit_changes_the_fingerprint():
    output = np.random.default_rng(0).normal(size=(2, 3))
    other = output.copy()
    other[1, 2] = np.nextafter(other[1, 2], 9.0)
    gradients = {"keys": output}
    assert fingerprint(Trace(output=output)) != fingerprint(Trace(output=other))
    assert fingerprint(Trace(output=output, gradients=gradients)).keys() == {"output", "gradients.keys"}


def test_the_command_reports_and_exits(monkeypatch):
    import conformance.determinism as determinism

    def other_bits(backend_name, dtype, patterns, path, settings):
        return Repeatability(backend_name, dtype, 9, (), ("prime: output",))

    equal = CliRunner().invoke(main, ["determinism", "-b", "torch", "-c", "prime", "-d", "float64"])
    assert equal.exit_code == 0, equal.output
    monkeypatch.setattr(determinism, "repeatability", other_bits)
    different = CliRunner().invoke(main, ["determinism", "-b", "torch", "-c", "prime", "-d", "float64"])
    assert different.exit_code == 1
    assert "different bits: torch float64 prime: output" in different.output
    assert "different bits: torch fast float64 prime: output" in different.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-b", "pytroch"], "backend 'pytroch' is not known"),
        (["-c", "primes"], "case 'primes' is not known"),
        (["-d", "float8"], "dtype 'float8' is not known"),
        (["-b", "torch", "--path", "fastest"], "path 'fastest' is not there (there are: "),
    ],
)
def test_bad_arguments_exit_2(arguments, message):
    result = CliRunner().invoke(main, ["determinism", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_the_process_that_dies_is_one_line(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nkill -9 $$\n")
    broken.chmod(0o755)
    with pytest.raises(SpecError) as error:
        repeatability("torch", "float32", ("prime",), settings=Settings({"torch": str(broken)}))
    assert "a fresh process with torch in float32 failed" in str(error.value)
    assert "its process was ended by SIGKILL" in str(error.value)
    assert not running()


def test_another_interpreter_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho started >> "{tmp_path}/starts"\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    found = repeatability("torch", "float32", ("prime",), settings=Settings({"torch": str(other)}))
    assert found.bitwise
    assert (tmp_path / "starts").read_text().split() == ["started", "started"]  # two fresh ones
