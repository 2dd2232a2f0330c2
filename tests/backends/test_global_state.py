"""Importing and running a backend leaves the process as it was; what MXNet needs of NumPy: mxnet/test_idioms.py."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def of_torch():
    import torch

    matmul = torch.backends.cuda.matmul
    precision = (matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction)
    threads = torch.get_num_threads(), torch.is_grad_enabled()
    return (torch.get_default_dtype(), torch.get_rng_state().tolist(), *threads, *precision)


def of_tf():
    import keras
    import tensorflow as tf

    config = tf.config
    threads = config.threading.get_intra_op_parallelism_threads()
    precision = config.experimental.tensor_float_32_execution_enabled()
    of_keras = keras.config.floatx(), keras.config.dtype_policy().name, os.environ.get("KERAS_BACKEND")
    return (*of_keras, random.getstate(), threads, precision, tf.executing_eagerly())


def of_jax():
    import jax

    return jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision, jax.config.jax_default_device


def of_mxnet():
    if "bool" not in vars(np):
        np.bool = np.bool_  # what MXNet's import needs
    import mxnet as mx

    return mx.util.is_np_array(), mx.util.is_np_shape(), mx.autograd.is_training(), mx.autograd.is_recording()


STATES = {"torch": of_torch, "tf": of_tf, "jax": of_jax, "mxnet": of_mxnet}


def check_each(dtype, names, cases=("ragged-square", "dropout")):
    """Load these backends one after the other, and run each: what it finds stays as it is."""
    from conformance.cases.table import select
    from conformance.runner import run_case
    from conformance.subjects.backend import BackendSubject
    from mha_core.backend import load

    for name in names:
        before = STATES[name]()
        np.random.seed(5)
        seeded = np.random.get_state()[1].tolist()
        backend = load(name)
        for case in select(cases):
            assert run_case(case, BackendSubject(backend, dtype, "cpu")).status == "equal", name
        assert np.random.get_state()[1].tolist() == seeded, ("numpy's random state", name)
        after = STATES[name]()
        assert after == before, (name, [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]])


def test_running_one_changes_no_global_state(backend):
    check_each("float32", (backend.name,), ("dropout",))


@pytest.mark.nightly("no backend changes another")
@pytest.mark.parametrize(("dtype", "step"), [("float64", 1), ("float32", -1)])
def test_all_live_in_one_process_and_importing_one_changes_no_global_state(backend_names, dtype, step):
    """In both orders of importing, so that others are there or not yet; and the interpreter ends without a word."""
    script = (
        "import sys; from tests.backends.test_global_state import check_each; check_each(sys.argv[1], sys.argv[2:])"
    )
    command = [sys.executable, "-c", script, dtype, *backend_names[::step]]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=300)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr[-2000:]
