"""The same bits again: in one process and in a fresh one."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.determinism import Repeatability, Runs, fingerprint, repeatability
from conformance.workers.interpreters import Settings
from conformance.workers.process import running
from mha.cli.main import main
from mha_core import SpecError, Trace

pytestmark = pytest.mark.same_on_newest  # it takes minutes, and each release says it of itself

PATTERNS = ("ragged-square", "every-source", "dropout", "trained-first-layer")


def measured(*asked: Runs) -> list[Repeatability]:
    with ThreadPoolExecutor(1) as executor:
        return list(repeatability(asked, executor))


def test_every_backend_repeats_its_bits(backend_name, tmp_path, monkeypatch):
    """On both paths, and in the interpreter that was asked for: two fresh processes of it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho started >> "{tmp_path}/starts"\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    settings = Settings({backend_name: str(other)})
    usual, fast = measured(Runs(backend_name, "float32", (None, "fast"), PATTERNS, settings))
    assert (tmp_path / "starts").read_text().split() == ["started", "started"]
    assert usual.total > 50
    assert fast.total > 40
    for found in (usual, fast):
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

    def other_bits(asked, executor):
        return [
            Repeatability(runs.backend, runs.dtype, 9, (), ("prime: output",)) for runs in asked for _ in runs.paths
        ]

    equal = CliRunner().invoke(main, ["determinism", "-b", "jax", "-c", "prime", "-d", "float64"])
    assert equal.exit_code == 0, equal.output
    monkeypatch.setattr(determinism, "repeatability", other_bits)
    different = CliRunner().invoke(main, ["determinism", "-b", "jax", "-c", "prime", "-d", "float64"])
    assert different.exit_code == 1
    assert "different bits: jax float64 prime: output" in different.output
    assert "different bits: jax fast float64 prime: output" in different.output


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
    result = CliRunner().invoke(main, ["determinism", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_the_process_that_dies_is_one_line(tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nkill -9 $$\n")
    broken.chmod(0o755)
    with pytest.raises(SpecError) as error:
        measured(Runs("torch", "float32", (None,), ("prime",), Settings({"torch": str(broken)})))
    assert "a fresh process with torch in float32 failed" in str(error.value)
    assert "its process was ended by SIGKILL" in str(error.value)
    assert not running()
