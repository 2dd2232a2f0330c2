"""The other commands with worker processes: the same figures as in one process, and no framework in this one."""

import sys
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.subjects.backend import BackendSubject
from conformance.workers import Settings
from conformance.workers.described import describe_backend
from conformance.workers.interpreters import OURS
from conformance.workers.process import WorkerProcess, running
from mha.cli.main import main
from mha_core.backend import load

pytestmark = pytest.mark.same_on_newest  # it is about processes


@pytest.mark.nightly("a backend in its own process is the same")  # by day `mha check` has each of them there
def test_a_described_backend_says_and_computes_what_the_backend_does(backend_name, monkeypatch):
    """And `mha check` goes on in the process that described it."""
    from conformance.cases.table import select

    here, there = load(backend_name), describe_backend(backend_name, Settings())
    assert there.versions() == here.versions()
    assert there.devices() == here.devices()
    assert there.paths() == here.paths()
    assert there.default_paths() == here.default_paths()
    assert [there.dtypes(device) for device in there.devices()] == [here.dtypes(device) for device in here.devices()]
    (case,) = select(("prime",))
    problem = case.build().rounded("float64")
    answers = [
        BackendSubject(backend, "float64", "cpu").prepare(problem.config, problem.weights)(problem.inputs)
        for backend in (here, there)
    ]
    there_arrays = answers[1].arrays()
    for name, array in answers[0].arrays().items():
        # Not the bits: in a process that has run thousands of tests, PyTorch's products end in another last place.
        last_place = np.finfo(np.float64).eps * np.abs(array).max()
        np.testing.assert_allclose(there_arrays[name], array, rtol=0, atol=8 * last_place, err_msg=name)
    (process,) = running()
    monkeypatch.setenv("MHA_WORKERS", "1")
    started = Mock(wraps=WorkerProcess)
    monkeypatch.setattr(sys.modules["conformance.workers.execute"], "WorkerProcess", started)
    result = CliRunner().invoke(main, ["check", "-b", backend_name, "-c", "prime", "-d", "float64"])
    assert result.exit_code == 0, result.output
    assert "All 2 results are equal to the reference" in result.output
    assert [call.args[0] for call in started.call_args_list] == [OURS]  # what judges; nothing else is started
    assert not process.is_alive  # as all that a command has used


def test_backends_shows_each_interpreter(monkeypatch, tmp_path, backend_names):
    """Of the first; those of the others are broken, which is shown too."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("MHA_WORKERS", "1")
    monkeypatch.setenv("COLUMNS", "400")
    _, *others = backend_names
    options = [text for name in others for text in ("--python", f"{name}={broken}")]
    output = CliRunner().invoke(main, ["check", "--installed", *options]).output
    assert output.count(f"python {sys.version.split()[0]}: {sys.executable}") == 1
    for name in others:
        assert f"not usable: the interpreter {broken} of {name} does not run mha-parity" in output
