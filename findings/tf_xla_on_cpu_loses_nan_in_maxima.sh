#!/usr/bin/env bash
# tensorflow 2.21.0 on a CPU: tf.function(jit_compile=True) loses a NaN in a maximum or minimum, as its own kernels do not.
# 1. tf.reduce_max([1, nan, 2]) is 2 and tf.reduce_min is 1, in float32 and float64; so a look at the largest score,
#    tf.math.is_finite(tf.reduce_max(scores, -1)), finds nothing in a row with a NaN.
# 2. The order counts: tf.maximum(1, nan) is 1, and tf.maximum(nan, 1) is nan.
# 3. Sums and softmax keep the NaN. jax 0.7.1, whose programs the same compiler makes, keeps it everywhere.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q tensorflow==2.21.0 keras==3.15.1 jax==0.7.1 jaxlib==0.7.1
cd "$work"
cat > program.py <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

jax.config.update("jax_enable_x64", True)
nan = float("nan")
print("tensorflow", tf.__version__, "jax", jax.__version__)
functions = {
    "reduce_max(x)": (tf.reduce_max, jnp.max, 2.0),
    "reduce_min(x)": (tf.reduce_min, jnp.min, 1.0),
    "maximum(1, nan)": (lambda x: tf.maximum(x[0], x[1]), lambda x: jnp.maximum(x[0], x[1]), 1.0),
    "maximum(nan, 1)": (lambda x: tf.maximum(x[1], x[0]), lambda x: jnp.maximum(x[1], x[0]), nan),
    "sum of softmax(x)": (lambda x: tf.reduce_sum(tf.nn.softmax(x)), lambda x: jax.nn.softmax(x).sum(), nan),
    "reduce_sum(x)": (tf.reduce_sum, jnp.sum, nan),
}
for dtype in ("float32", "float64"):
    row = np.array([1, nan, 2], dtype)
    for name, (ours, theirs, expected) in functions.items():
        programs = [ours, *(tf.function(ours, autograph=False, jit_compile=xla) for xla in (False, True))]
        eager, graph, xla = (float(program(tf.constant(row))) for program in programs)
        by_jax = float(jax.jit(theirs)(row))
        print(f"{dtype} {name:18} eager {eager}, graph {graph}, jit_compile {xla}; jax.jit {by_jax}")
        assert np.isnan([eager, graph, by_jax]).all(), name
        assert np.array_equal(xla, expected, equal_nan=True), (name, xla)
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES= "$work/venv/bin/python" program.py
