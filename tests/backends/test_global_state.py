"""Importing and running a backend leaves the process as it was; what MXNet needs of NumPy: mxnet/test_idioms.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBES = {
    "torch": """
def state():
    import torch
    matmul = torch.backends.cuda.matmul
    return (torch.get_default_dtype(), torch.get_rng_state().tolist(), torch.get_num_threads(),
            torch.is_grad_enabled(), matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction)
""",
    "tf": """
def state():
    import keras, random, tensorflow as tf
    return (keras.config.floatx(), random.getstate(), tf.config.threading.get_intra_op_parallelism_threads(),
            tf.config.experimental.tensor_float_32_execution_enabled(), tf.executing_eagerly())
""",
    "jax": """
def state():
    import jax
    return jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision, jax.config.jax_default_device
""",
    "mxnet": """
def state():
    import numpy as np
    if "bool" not in vars(np): np.bool = np.bool_  # what MXNet's import needs
    import mxnet as mx
    return mx.util.is_np_array(), mx.util.is_np_shape(), mx.autograd.is_training(), mx.autograd.is_recording()
""",
}

SCRIPT = """
import sys, numpy as np
from mha_core.backend import load
from conformance.cases.table import select
from conformance.subjects.backend import BackendSubject
from conformance.runner import run_case

dtype, *names = sys.argv[1:]
for name in names:
    found = {}
    exec(PROBES[name], found)
    state = found["state"]
    before = state()
    np.random.seed(5); seeded = np.random.get_state()[1].tolist()
    backend = load(name)
    for case in select(("ragged-square", "dropout")):
        assert run_case(case, BackendSubject(backend, dtype, "cpu")).status == "equal", name
    assert np.random.get_state()[1].tolist() == seeded, ("numpy's random state", name)
    after = state()
    assert after == before, (name, [pair for pair in zip(before, after) if pair[0] != pair[1]])
print("unchanged")
"""


@pytest.mark.nightly("no backend changes another", but=("float32--1",))
@pytest.mark.parametrize(("dtype", "step"), [("float64", 1), ("float32", -1)])
def test_all_live_in_one_process_and_running_one_changes_no_global_state(backend_names, dtype, step):
    """In both orders of importing, so that others are there or not yet; and the interpreter ends without a word."""
    script = f"PROBES = {PROBES!r}\n{SCRIPT}"
    command = [sys.executable, "-c", script, dtype, *backend_names[::step]]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip() == "unchanged"
