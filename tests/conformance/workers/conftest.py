"""A module with subjects that harm their process, and a unit of plain numbers."""

from __future__ import annotations

import sys

import pytest

from conformance.workers.execute import end_idle

HOSTILE = '''
import os, re, signal, time
import numpy as np
from mha_core.dtypes import round_to
from mha_core.reference import pipeline as reference


class Right:
    """The reference, which first does something else where the mask is causal."""

    name = "own"
    dtypes = ("float32", "float64")

    def __init__(self, dtype):
        self.dtype = dtype

    def prepare(self, config, weights):
        def run(inputs):
            if inputs.mask.causal:
                self.harm()
            return {"output": round_to(reference.run(config, weights, inputs).output, self.dtype)}
        return run

    def harm(self):
        pass


class Prints(Right):
    def harm(self):
        print("what it prints")


class Exits(Right):
    def harm(self):
        os._exit(3)


class Crashes(Right):
    def harm(self):
        os.kill(os.getpid(), signal.SIGSEGV)


class Locks(Right):
    def harm(self):
        re.match(r"(a+)+$", "a" * 60 + "b")


class Hangs(Right):
    def harm(self):
        time.sleep(1000)


class Spoils(Right):
    def harm(self):
        np.seterr(all="raise")
        np.asarray = None
        os.chdir("/")
'''


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """The current folder has a module `hostile`."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setenv("MHA_WORKERS", "2")


@pytest.fixture(autouse=True)
def _no_process_is_left():
    yield
    end_idle()
