"""Importing and running a backend leaves the process as it was."""

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
{probe}
before = state()
np.random.seed(5); seeded = np.random.get_state()[1].tolist()
from mha_core.backend import load
from conformance.cases.table import select
from conformance.subjects.backend import BackendSubject
from conformance.runner import run_case
backend = load({name!r})
for dtype in ("float64", "float32"):
    for case in select(("ragged-square", "dropout")):
        assert run_case(case, BackendSubject(backend, dtype, "cpu")).status == "equal"
assert np.random.get_state()[1].tolist() == seeded, "numpy's random state"
after = state()
assert after == before, [pair for pair in zip(before, after) if pair[0] != pair[1]]
print("unchanged")
"""


# The releases of PyTorch and TensorFlow are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
def test_running_a_backend_changes_no_global_state(backend_name):
    script = SCRIPT.format(probe=PROBES[backend_name], name=backend_name)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip() == "unchanged"


def test_importing_mxnet_sets_one_numpy_name_and_no_other(backend_names):
    if "mxnet" not in backend_names:
        pytest.skip("mxnet is not among the backends under test")
    # Submodules that an import pulls in become attributes too; they are not names that anybody set.
    script = """
import types, numpy as np
before = set(vars(np))
from backends.mxnet import framework
new = {name for name in set(vars(np)) - before if not isinstance(getattr(np, name), types.ModuleType)}
assert new == {"bool"}, new
print("unchanged")
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "unchanged", result.stderr[-2000:]


def test_all_four_live_in_one_process(backend_names):
    """In both orders of importing, and the interpreter ends without a word."""
    for order in (backend_names, backend_names[::-1]):
        script = f"""
from mha_core.backend import load
from conformance.cases.table import select
from conformance.subjects.backend import BackendSubject
from conformance.runner import run_case
for name in {order!r}:
    backend = load(name)
    assert run_case(select(("ragged-square",))[0], BackendSubject(backend, "float32", "cpu")).status == "equal", name
"""
        result = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300
        )
        assert result.returncode == 0, result.stderr[-2000:]
