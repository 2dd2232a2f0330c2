"""A module with subjects that harm their process, and a unit of plain numbers."""

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
    """The current folder has a module `hostile`; it is judged by one process, where nothing else is said."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setenv("MHA_WORKERS", "1")


@pytest.fixture(autouse=True)
def _no_process_is_left():
    yield
    end_idle()


PATCHING = """
import numpy as np

_exp, _einsum = np.exp, np.einsum
np.exp = lambda x, *a, **k: _exp(np.asarray(x, np.float32), *a, **k).astype(np.asarray(x).dtype)
np.einsum = lambda s, *o, **k: _einsum(s, *(np.asarray(x, np.float32) for x in o), **k).astype(np.float64)


def attention(weights, queries, keys, values, mask, *, num_heads):
    def heads(x, name):
        projected = x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)
        return projected.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)

    q, k, v = heads(queries, "q_proj"), heads(keys, "k_proj"), heads(values, "v_proj")
    scores = np.where(mask, q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]), -np.inf)
    exp = np.where(mask, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0.0)
    merged = (exp / exp.sum(axis=-1, keepdims=True) @ v).swapaxes(1, 2).reshape(*queries.shape[:2], -1)
    return merged @ weights["out_proj.weight"].T + weights.get("out_proj.bias", 0.0)
"""


@pytest.fixture
def patching(tmp_path, monkeypatch):
    """The current folder has a module that makes NumPy compute in float32 for whoever imports it."""
    (tmp_path / "patching.py").write_text(PATCHING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setenv("MHA_COMPILE_CACHE", str(tmp_path / "kept"))
    return tmp_path
