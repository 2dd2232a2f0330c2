"""What a JAX user expects of gradients where nothing is attended to, and of dropout."""

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backends.jax import MultiHeadAttention, PositionalEncoding, from_weights
from mha_core.call.call import Call
from tests.backends.jax.example_calls import CONFIG, DROPOUT, DROPPING, LK, LQ, WEIGHTS, B, H, inputs


def leaves_finite(tree):
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


@pytest.mark.nightly("an empty row has no NaN", but=("scaled_dot",))
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_an_empty_row_has_zero_gradient_and_no_nan_on_the_way(score):
    layer = MultiHeadAttention(12, H, bias=True, score=score)
    queries, keys, values = inputs()
    variables = layer.init(jax.random.key(0), queries, keys, values)
    lens = jnp.array([[0, 3, 0, 7, 0], [0, 0, 0, 0, 0]])

    def loss(variables, queries, keys, values):
        return (layer.apply(variables, queries, keys, values, lens) ** 2).sum()

    with jax.debug_nans(True):  # not even an intermediate NaN, forward or backward
        d_queries = jax.grad(loss, argnums=(0, 1, 2, 3))(variables, queries, keys, values)[1]
    has_keys = (d_queries != 0.0).any(axis=-1)
    np.testing.assert_array_equal(has_keys, np.asarray(lens) > 0)


@pytest.mark.nightly("sizes may be 0", every=3)
@pytest.mark.parametrize("sizes", [(0, LQ, LK), (B, 0, LK), (B, LQ, 0)])
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_empty_sizes(sizes, score):
    batch, query_len, key_len = sizes
    layer = MultiHeadAttention(12, H, bias=True, score=score)
    queries, keys = jnp.ones((batch, query_len, 11)), jnp.ones((batch, key_len, 13))
    variables = layer.init(jax.random.key(0), jnp.ones((B, LQ, 11)), *[jnp.ones((B, LK, 13))] * 2)

    @jax.jit
    def attend_and_back(*arguments):
        output, pull_back = jax.vjp(lambda v, q, k: layer.apply(v, q, k, k, causal=True), *arguments)
        return output, pull_back(jnp.ones_like(output))

    output, gradients = attend_and_back(variables, queries, keys)
    assert output.shape == (batch, query_len, 12)
    assert (output == 0.0).all()  # a new bias is 0
    assert leaves_finite(gradients)
    assert gradients[1].shape == queries.shape
    assert (gradients[1] == 0.0).all()


def test_dropout_needs_an_rng_only_when_it_acts():
    layer, variables = from_weights(DROPPING, WEIGHTS)
    calm = layer.apply(variables, *inputs())
    with pytest.raises(flax.errors.InvalidRngError, match="dropout"):
        layer.apply(variables, *inputs(), deterministic=False)
    one, two = (layer.apply(variables, *inputs(), deterministic=False, rngs=DROPOUT) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert not np.allclose(one, calm)
    without, variables = from_weights(CONFIG, WEIGHTS)
    np.testing.assert_array_equal(without.apply(variables, *inputs(), deterministic=False), calm)


def test_dropout_differs_by_item_head_and_query():
    """With every input and parameter 1 or 0, an element of `heads` counts the weights that were kept."""
    layer = MultiHeadAttention(12, H, dropout=0.4)
    x = jnp.zeros((B, LQ, 12))
    variables = layer.init(jax.random.key(0), x, x, x)
    ones = jax.tree.map(jnp.ones_like, variables)
    keys = jnp.ones((B, LK, 12))
    stages = layer.apply(ones, Call(x, keys, keys), deterministic=False, rngs=DROPOUT, method="stages")
    kept = stages.heads[..., 0] / 12.0  # (B, H, LQ), multiples of 1 / LK / 0.6
    counts = np.asarray(kept) * LK * 0.6
    np.testing.assert_allclose(counts, counts.round(), atol=1e-4)
    for axis in range(3):
        assert np.ptp(counts.round(), axis=axis).any()
    np.testing.assert_allclose(stages.weights, 1 / LK, rtol=1e-6)  # before dropout


def test_positional_encoding_drops_out_and_keeps_a_half_dtype():
    encoding = PositionalEncoding(11, 0.4, max_len=5)
    x = inputs()[0]
    assert encoding.apply({}, x.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    dropped = encoding.apply({}, x, deterministic=False, rngs=DROPOUT)
    assert 0 < (dropped == 0.0).sum() < x.size
