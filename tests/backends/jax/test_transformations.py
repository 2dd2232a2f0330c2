"""What a JAX user expects of the layers under jit, vmap, checkpoint and inside other modules."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backends.jax import DotProductAttention, MultiHeadAttention
from backends.jax.backend import JaxBackend
from mha_core import AttentionInputs, AttentionMask
from mha_core.call.call import Call
from tests.backends.jax.example_calls import CLOSE, CONFIG, LK, WEIGHTS, inputs, mask_arrays


def test_jit_with_traced_masks_equals_eager(layer_and_variables):
    layer, variables = layer_and_variables

    def attend(variables, queries, keys, values, masks):
        return layer.apply(variables, queries, keys, values, **masks, window=(3, None), return_weights=True)

    eager = attend(variables, *inputs(), mask_arrays())
    jitted = jax.jit(attend)(variables, *inputs(), mask_arrays())
    np.testing.assert_allclose(jitted[0], eager[0], **CLOSE)
    np.testing.assert_allclose(jitted[1], eager[1], **CLOSE)
    np.testing.assert_array_equal(jitted[1] == 0.0, eager[1] == 0.0)


def test_one_compilation_serves_all_values_of_a_mask(layer_and_variables):
    layer, variables = layer_and_variables
    traces = []

    @jax.jit
    def attend(valid_lens):
        traces.append(valid_lens)
        return layer.apply(variables, *inputs(), valid_lens)

    first, second = attend(jnp.array([6, 4])), attend(jnp.array([2, 0]))
    assert len(traces) == 1
    np.testing.assert_allclose(second, layer.apply(variables, *inputs(), [2, 0]), **CLOSE)
    assert not np.allclose(first, second)


def test_a_module_is_a_static_argument():
    a, b = (MultiHeadAttention(12, 3, bias={"q_proj": True}) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)


@pytest.mark.nightly("JAX' transformations are taken")
def test_vmap_over_an_outer_axis(layer_and_variables):
    layer, variables = layer_and_variables
    stacked = [jnp.stack(pair) for pair in zip(inputs(0), inputs(1), strict=True)]
    lens = jnp.array([[6, 4], [0, 7]])
    together = jax.vmap(lambda q, k, v, n: layer.apply(variables, q, k, v, n, causal=True))(*stacked, lens)
    for index in range(2):
        alone = layer.apply(variables, *inputs(index), lens[index], causal=True)
        np.testing.assert_allclose(together[index], alone, **CLOSE)


def test_checkpoint_has_the_same_gradients(layer_and_variables):
    layer, variables = layer_and_variables

    def loss(variables):
        return layer.apply(variables, *inputs(), jnp.array([6, 4]), causal=True).sum()

    plain, recomputed = (jax.jit(jax.grad(f))(variables) for f in (loss, jax.checkpoint(loss)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), plain, recomputed)


def test_inside_another_module():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + MultiHeadAttention(12, 3, name="attention")(x, x, x, causal=True)

    x = inputs()[1][..., :12]
    variables = Block().init(jax.random.key(0), x)
    assert set(variables["params"]["attention"]) == {"q_proj", "k_proj", "v_proj", "out_proj"}
    assert Block().apply(variables, x).shape == x.shape


def test_the_backend_computes_what_a_users_jit_computes(layer_and_variables):
    """The contract compiles with less effort; that must not be a different computation."""
    layer, variables = layer_and_variables
    mask = AttentionMask(**mask_arrays(), causal=True)
    arrays = [np.asarray(array) for array in inputs()]
    trace = JaxBackend().prepare(CONFIG, WEIGHTS, dtype="float32")(AttentionInputs(*arrays, mask=mask))
    stages = jax.jit(lambda v, *x: layer.apply(v, Call(*x, mask), method="stages"))(variables, *inputs())
    for name, stage in stages._asdict().items():
        np.testing.assert_allclose(getattr(trace, name), stage, rtol=1e-6, atol=1e-6, err_msg=name)


def test_traced_integers_beyond_the_limits_count_as_the_nearest():
    queries, keys, values = inputs()
    layer = DotProductAttention()

    @jax.jit
    def weights(lens, offset):
        sources = {"query_offset": offset, "window": (2**31 - 1, 0), "return_weights": True}
        return layer.apply({}, queries, keys[..., :11], values, lens, **sources)[1]

    def nearest(lens, offset):
        return weights(jnp.array(lens), jnp.array(offset))

    for lens, offset, clipped in (
        (np.array([2**32 - 1, 3], np.uint32), np.array([2**32 - 1, 1], np.uint32), ([LK, 3], [2**31 - 1, 1])),
        (np.array([-(2**31), 2], np.int32), np.array([1, -(2**31)], np.int32), ([0, 2], [1, -(2**31)])),
        (np.array([255, 2], np.uint8), np.array([-128, 127], np.int8), ([LK, 2], [-128, 127])),
    ):
        np.testing.assert_array_equal(weights(lens, offset), nearest(*clipped))
