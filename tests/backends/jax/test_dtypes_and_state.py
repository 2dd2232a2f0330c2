"""What a JAX user expects of dtypes, with x64 and without, and of global state."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backends.jax import DotProductAttention, MultiHeadAttention, PositionalEncoding, from_weights
from backends.jax.ops import framework
from mha_core import AttentionInputs, AttentionMask, SpecError, init_weights
from mha_core.call.call import Call
from mha_core.reference import pipeline as reference
from tests.backends.jax.example_calls import CONFIG, LK, LQ, WEIGHTS, H, inputs


def test_float64_without_x64_is_refused(layer_and_variables):
    layer, variables = layer_and_variables
    queries, keys, values = map(np.asarray, inputs())
    assert layer.apply(variables, queries, keys, values).dtype == jnp.float32  # NumPy as such is welcome
    for position in range(3):
        arrays = [queries, keys, values]
        arrays[position] = arrays[position].astype(np.float64)
        with pytest.raises(SpecError, match="queries, keys and values must share one dtype"):
            layer.apply(variables, *arrays)
    wide = [array.astype(np.float64) for array in (queries, keys, values)]
    with pytest.raises(SpecError, match="queries must have the dtype of the layer, float32. Got float64"):
        layer.apply(variables, *wide)
    with pytest.raises(SpecError, match="queries is float64, which JAX turns into float32"):
        DotProductAttention().apply({}, wide[0], wide[1][..., :11], wide[2])  # what the others would compute
    with pytest.raises(SpecError, match="bias must have the dtype of queries, float32. Got float64"):
        layer.apply(variables, queries, keys, values, bias=np.ones((LQ, LK)))
    with pytest.raises(SpecError, match="x is float64"):
        PositionalEncoding(11).apply({}, queries.astype(np.float64))
    with pytest.raises(SpecError, match="dtype is float64"):
        MultiHeadAttention(12, 3, param_dtype=jnp.float64)
    double = {name: array.astype(np.float64) for name, array in WEIGHTS.items()}
    with pytest.raises(SpecError, match="the weights' dtype is float64"):
        from_weights(CONFIG, double)
    layer, variables = from_weights(CONFIG, double, dtype="float32")
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


def test_float64_with_x64():
    with framework.scope("float64", jax.devices()[0]):
        double = init_weights(CONFIG, seed=1, bias_scale=1.0)
        layer, variables = from_weights(CONFIG, double)
        arrays = [np.asarray(array).astype(np.float64) for array in inputs()]
        output = layer.apply(variables, *arrays)
        assert output.dtype == jnp.float64
        expected = reference.run(CONFIG, double, AttentionInputs(*arrays)).output
        np.testing.assert_allclose(output, expected, rtol=0, atol=1e-13)


def test_computation_dtype_and_parameter_dtype_are_linen_fields():
    layer = MultiHeadAttention(12, H, dtype=jnp.bfloat16, bias=True)
    variables = layer.init(jax.random.key(0), *inputs())
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    call = Call(*inputs(), AttentionMask(bias=np.full((LQ, LK), -1e9, np.float32)))
    stages = layer.apply(variables, call, method="stages")
    assert {stages.queries.dtype, stages.heads.dtype, stages.output.dtype} == {jnp.dtype("bfloat16")}
    np.testing.assert_allclose(stages.weights.sum(axis=-1), 1.0, atol=1e-2)
    with pytest.raises(SpecError, match=r"queries must have the dtype of the layer, float32\. Got bfloat16"):
        MultiHeadAttention(12, H, bias=True).apply(variables, *(x.astype(jnp.bfloat16) for x in inputs()))
    half = jax.tree.map(lambda parameter: parameter.astype(jnp.float16), variables)
    output = MultiHeadAttention(12, H, bias=True).apply(half, *(x.astype(jnp.float16) for x in inputs()))
    assert output.dtype == jnp.float16


def test_softmax_of_half_precision_sums_in_float32():
    """4099 equal scores: a float16 sum of ones stops at 2048."""
    x = jnp.zeros((1, 4099, 2), jnp.float16)
    _, weights = DotProductAttention().apply({}, x[:, :3], x, x, return_weights=True)
    np.testing.assert_array_equal(weights, np.full((1, 3, 4099), np.float16(1 / 4099)))


# JAX itself draws from NumPy's global random state when it is imported (jax/_src/clusters/k8s_cluster.py).
GLOBAL_STATE = """
import jax
import numpy as np
state = np.random.get_state()
def settings(): return (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision,
    jax.config.jax_default_device, jax.config.jax_debug_nans, jax.numpy.ones(3).dtype.name)
before = settings()
from backends.jax.backend import JaxBackend
assert settings() == before, settings()
from mha_core import AttentionConfig, AttentionInputs, init_weights
config = AttentionConfig(6, 2)
x = np.arange(36.0).reshape(2, 3, 6) / 36
run = JaxBackend().prepare(config, init_weights(config, 0), dtype="float64")
trace = run(AttentionInputs(x, x, x, cotangent=x))
assert trace.output.dtype == np.float64
assert settings() == before, settings()
now = np.random.get_state()
assert (now[1] == state[1]).all() and now[2:] == state[2:]
"""


def test_no_global_state_is_changed_by_importing_or_running():
    done = subprocess.run([sys.executable, "-c", GLOBAL_STATE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
