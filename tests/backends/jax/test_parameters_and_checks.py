"""What a Flax user expects of parameters and of weights that go in and out, and which calls are refused."""

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backends.jax import (
    MultiHeadAttention,
    from_weights,
)
from mha_core import AttentionConfig, SpecError, init_weights
from tests.backends.jax.example_calls import LK, LQ, B, inputs, mask_arrays


def test_calls_that_do_not_fit_are_refused_under_jit_too(layer_and_variables):
    layer, variables = layer_and_variables
    queries, keys, values = inputs()
    attend = jax.jit(layer.apply)
    with pytest.raises(SpecError, match=r"keys must be key_dim=13 wide. Got \(2, 7, 12\)"):
        attend(variables, queries, keys[..., :12], values)
    with pytest.raises(SpecError, match="allowed must be boolean"):
        attend(variables, queries, keys, values, allowed=jnp.zeros((LQ, LK), jnp.float32))
    with pytest.raises(SpecError, match=r"valid_lens must lie in 0\.\.7"):  # constants of a trace have values
        jax.jit(lambda *x: layer.apply(variables, *x, np.array([6, 8])))(queries, keys, values)


def test_masks_may_be_lists_numpy_or_jax(layer_and_variables):
    layer, variables = layer_and_variables
    masks = mask_arrays()
    outputs = [
        layer.apply(variables, *inputs(), **{name: convert(array) for name, array in masks.items()}, causal=True)
        for convert in (np.asarray, jnp.asarray, np.ndarray.tolist)
    ]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])


@pytest.mark.nightly("weights go in and come out exactly", every=2)
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_parameters_that_come_of_weights_have_the_shapes_of_new_ones(score):
    config = AttentionConfig(12, 6, num_kv_heads=3, query_dim=11, bias={"v_proj": True}, score=score)
    weights = {name: array.astype(np.float32) for name, array in init_weights(config, 0, bias_scale=1.0).items()}
    layer, variables = from_weights(config, weights)
    assert layer.config_of(variables) == config
    made = MultiHeadAttention(12, 6, num_kv_heads=3, bias={"v_proj": True}, score=score).init(
        jax.random.key(0), jnp.ones((B, LQ, 11)), jnp.ones((B, LK, 12)), jnp.ones((B, LK, 12))
    )
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, variables)


def test_flax_serialization_round_trip(layer_and_variables):
    layer, variables = layer_and_variables
    template = layer.init(jax.random.key(9), *inputs())
    restored = flax.serialization.from_bytes(template, flax.serialization.to_bytes(variables))
    jax.tree.map(np.testing.assert_array_equal, restored, variables)
    np.testing.assert_array_equal(layer.apply(restored, *inputs()), layer.apply(variables, *inputs()))
