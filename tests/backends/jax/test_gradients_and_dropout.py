"""What a JAX user expects of gradients where nothing is attended to, and of dropout."""

from __future__ import annotations

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backends.jax import MultiHeadAttention, PositionalEncoding, from_weights
from mha_core import AttentionInputs, SpecError
from mha_core.call.call import Call
from mha_core.reference import pipeline as reference
from tests.backends.jax.example_calls import CLOSE, CONFIG, DROPOUT, DROPPING, LK, LQ, WEIGHTS, B, H, inputs


def leaves_finite(tree):
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


@pytest.mark.nightly("an empty row has no NaN", but=("scaled_dot",))
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_an_empty_row_has_zero_gradient_and_no_nan(score):
    layer = MultiHeadAttention(12, H, bias=True, score=score)
    queries, keys, values = inputs()
    variables = layer.init(jax.random.key(0), queries, keys, values)
    lens = jnp.array([[0, 3, 0, 7, 0], [0, 0, 0, 0, 0]])

    def loss(variables, queries, keys, values):
        return (layer.apply(variables, queries, keys, values, lens) ** 2).sum()

    with jax.debug_nans(True):  # not even an intermediate NaN, forward or backward
        gradients = jax.grad(loss, argnums=(0, 1, 2, 3))(variables, queries, keys, values)
    assert leaves_finite(gradients)
    d_queries = gradients[1]
    assert (d_queries[0, jnp.array([0, 2, 4])] == 0.0).all()
    assert (d_queries[1] == 0.0).all()
    assert (d_queries[0, 1] != 0.0).any()
    output = layer.apply(variables, queries, keys, values, lens)
    np.testing.assert_array_equal(output[1], jnp.broadcast_to(variables["params"]["out_proj"]["bias"], (LQ, 12)))


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e38])
def test_padding_never_leaks(layer_and_variables, poison):
    layer, variables = layer_and_variables
    queries, keys, values = inputs()
    lens = jnp.array([6, 4])
    is_padding = (jnp.arange(LK) >= lens[:, None])[..., None]

    def loss(variables, queries, keys, values):
        return (layer.apply(variables, queries, keys, values, lens) ** 2).sum()

    compute = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))
    clean = compute(variables, queries, keys, values)
    poisoned = compute(variables, queries, jnp.where(is_padding, poison, keys), jnp.where(is_padding, poison, values))
    jax.tree.map(np.testing.assert_array_equal, poisoned, clean)
    _, (_, _, d_keys, d_values) = poisoned
    assert (jnp.where(is_padding, d_keys, 0.0) == 0.0).all()
    assert (jnp.where(is_padding, d_values, 0.0) == 0.0).all()


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


def test_a_keep_mask_replaces_the_draw_and_belongs_to_training():
    layer, variables = from_weights(DROPPING, WEIGHTS)
    keep = np.random.default_rng(5).random((B, H, LQ, LK)) < 0.6
    output = layer.apply(variables, *inputs(), dropout_keep=keep, deterministic=False)  # no rng
    expected = reference.run(DROPPING, WEIGHTS, AttentionInputs(*map(np.asarray, inputs()), dropout_keep=keep))
    np.testing.assert_allclose(output, expected.output, **CLOSE)
    with pytest.raises(SpecError, match="dropout_keep belongs to a training step"):
        layer.apply(variables, *inputs(), dropout_keep=keep)


def test_positional_encoding_drops_out_and_knows_its_limits():
    encoding = PositionalEncoding(11, 0.4, max_len=5)
    x = inputs()[0]
    assert encoding.apply({}, x.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    dropped = encoding.apply({}, x, deterministic=False, rngs=DROPOUT)
    assert 0 < (dropped == 0.0).sum() < x.size
    with pytest.raises(SpecError, match="at most max_len=5 long"):
        encoding.apply({}, jnp.zeros((B, 6, 11)))
