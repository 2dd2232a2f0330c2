"""What a Flax user expects of parameters and of weights that go in and out, and which calls are refused."""

from __future__ import annotations

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backends.jax import (
    AdditiveAttention,
    DotProductAttention,
    MultiHeadAttention,
    PositionalEncoding,
    from_weights,
    to_weights,
)
from mha_core import AttentionConfig, SpecError, init_weights
from tests.backends.jax.example_calls import CONFIG, LK, LQ, WEIGHTS, B, H, inputs, mask_arrays


def test_contradictory_sizes_are_refused_at_construction():
    with pytest.raises(SpecError, match="embed_dim must be divisible by num_heads"):
        MultiHeadAttention(100, 3)
    with pytest.raises(SpecError, match="bias has no projection 'qproj'"):
        MultiHeadAttention(12, 3, bias={"qproj": True})
    with pytest.raises(SpecError, match="dropout must lie in"):
        DotProductAttention(1.0)
    with pytest.raises(SpecError, match="dropout must lie in"):
        AdditiveAttention(8, -0.1)
    with pytest.raises(SpecError, match="embed_dim at least 1"):
        PositionalEncoding(0)


def test_calls_that_do_not_fit_are_refused_under_jit_too(layer_and_variables):
    layer, variables = layer_and_variables
    queries, keys, values = inputs()
    attend = jax.jit(layer.apply)
    with pytest.raises(SpecError, match=r"keys must be key_dim=13 wide. Got \(2, 7, 12\)"):
        attend(variables, queries, keys[..., :12], values)
    with pytest.raises(SpecError, match="allowed must be boolean"):
        attend(variables, queries, keys, values, allowed=jnp.zeros((LQ, LK), jnp.float32))
    with pytest.raises(SpecError, match=r"valid_lens must lie in 0\.\.7"):
        layer.apply(variables, queries, keys, values, [6, 8])
    with pytest.raises(SpecError, match=r"valid_lens must lie in 0\.\.7"):  # constants of a trace have values
        jax.jit(lambda *x: layer.apply(variables, *x, np.array([6, 8])))(queries, keys, values)
    with pytest.raises(SpecError, match=r"queries must be an array\. Got list"):
        layer.apply(variables, queries.tolist(), keys, values)


def test_masks_may_be_lists_numpy_or_jax(layer_and_variables):
    layer, variables = layer_and_variables
    masks = mask_arrays()
    outputs = [
        layer.apply(variables, *inputs(), **{name: convert(array) for name, array in masks.items()}, causal=True)
        for convert in (np.asarray, jnp.asarray, np.ndarray.tolist)
    ]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])


def test_attention_without_heads_takes_a_mask_of_its_own_shape():
    queries, keys, values = inputs()
    allowed = np.random.default_rng(4).random((B, LQ, LK)) < 0.7
    layer = AdditiveAttention(6)
    variables = layer.init(jax.random.key(0), queries, keys, values)
    output, weights = layer.apply(variables, queries, keys, values, allowed=allowed.tolist(), return_weights=True)
    assert output.shape == (B, LQ, 10)
    np.testing.assert_array_equal(weights > 0.0, allowed)
    with pytest.raises(SpecError, match="queries must be query_dim=11 wide"):
        layer.apply(variables, queries[..., :4], keys, values)


def test_the_first_call_decides_the_widths():
    layer = MultiHeadAttention(12, H)
    with pytest.raises(SpecError, match="query_dim is not known yet"):
        layer.config_of({})
    variables = layer.init(jax.random.key(0), *inputs())
    config = layer.config_of(variables)
    assert (config.query_dim, config.key_dim, config.value_dim, config.output_dim) == (11, 13, 10, 12)
    with pytest.raises(SpecError, match="queries must be query_dim=11 wide"):
        layer.apply(variables, inputs()[1], *inputs()[1:])


@pytest.mark.nightly("weights go in and come out exactly", every=2)
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_weights_go_in_and_out_exact_to_the_bit(score):
    config = AttentionConfig(12, 6, num_kv_heads=3, query_dim=11, bias={"v_proj": True}, score=score)
    weights = {name: array.astype(np.float32) for name, array in init_weights(config, 0, bias_scale=1.0).items()}
    layer, variables = from_weights(config, weights)
    returned = to_weights(variables)
    assert list(returned) == list(weights)
    for name, array in returned.items():
        np.testing.assert_array_equal(array, weights[name])
        assert not array.flags.writeable
    assert layer.config_of(variables) == config
    made = MultiHeadAttention(12, 6, num_kv_heads=3, bias={"v_proj": True}, score=score).init(
        jax.random.key(0), jnp.ones((B, LQ, 11)), jnp.ones((B, LK, 12)), jnp.ones((B, LK, 12))
    )
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, variables)


def test_weights_are_copies_and_bfloat16_comes_out_as_float32():
    weights = {name: array.copy() for name, array in WEIGHTS.items()}
    _, variables = from_weights(CONFIG, weights)
    for array in weights.values():
        array[...] = 0.0
    np.testing.assert_array_equal(to_weights(variables)["q_proj.weight"], WEIGHTS["q_proj.weight"])
    _, variables = from_weights(CONFIG, WEIGHTS, dtype=jnp.bfloat16)
    returned = to_weights(variables)
    assert returned["q_proj.weight"].dtype == np.float32
    _, again = from_weights(CONFIG, returned, dtype=jnp.bfloat16)
    jax.tree.map(np.testing.assert_array_equal, again, variables)


def test_flax_serialization_round_trip(layer_and_variables):
    layer, variables = layer_and_variables
    template = layer.init(jax.random.key(9), *inputs())
    restored = flax.serialization.from_bytes(template, flax.serialization.to_bytes(variables))
    jax.tree.map(np.testing.assert_array_equal, restored, variables)
    np.testing.assert_array_equal(layer.apply(restored, *inputs()), layer.apply(variables, *inputs()))
