"""Clipped projections, value norm and value scale: the corner at the limit, and what four backends make of it."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from mha_core.parts.clip_qkv import clip, clip_back

from mha_core import AttentionConfig, AttentionInputs, SpecError, backend, init_weights
from mha_core.reference import pipeline as reference

OPTIONS = {"clip_qkv": 0.5, "value_norm_eps": 0.02, "value_scale": -1.5}
BARE = AttentionConfig(12, 3, num_kv_heads=1, head_dim=4, value_head_dim=5, projections=False, **OPTIONS)


def at_the_corner(rng, *shape):
    """Normal numbers; the first two channels of each head of 4 or 5 are exactly the limit and its negative."""
    x = rng.normal(size=shape)
    x[..., 0], x[..., 1] = 0.5, -0.5
    return x


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(3)
    queries, keys, values = (at_the_corner(rng, 2, *shape) for shape in ((3, 6, 4), (1, 7, 4), (1, 7, 5)))
    keys[0, 0, 2, 3], values[1, 0, 3, 2] = np.inf, -np.inf  # are cut off as well
    return AttentionInputs(queries, keys, values, cotangent=rng.normal(size=(2, 6, 15)))


def test_the_gradient_is_that_from_inside_at_the_limit():
    """The loss 3 x at x = c falls inwards as fast as the gradient says, and does not grow outwards."""
    c, step, ones = 0.5, 1e-6, np.ones(2)
    x = np.array([c, -c])
    inwards = (clip(x, c) - clip(x - step * np.sign(x), c)) / (step * np.sign(x))
    outwards = (clip(x + step * np.sign(x), c) - clip(x, c)) / (step * np.sign(x))
    np.testing.assert_allclose(clip_back(ones, x, c), inwards, rtol=1e-9)
    np.testing.assert_array_equal(clip_back(ones, x + step * np.sign(x), c), outwards)
    assert np.isnan(clip(np.array([np.nan]), c)).all()


def test_at_the_limit_and_at_infinity(backend_name, inputs):
    wanted = reference.run(BARE, {}, inputs)
    assert np.isfinite(wanted.output).all()
    found = backend.load(backend_name).prepare(BARE, {}, path="eager")(inputs)
    for stage in ("queries", "keys", "values", "output"):
        np.testing.assert_allclose(getattr(found, stage), getattr(wanted, stage), rtol=0, atol=1e-14, err_msg=stage)
    assert np.abs(wanted.gradients["keys"][..., :2]).min() > 1e-4
    assert (wanted.gradients["keys"][0, 0, 2, 3], wanted.gradients["values"][1, 0, 3, 2]) == (0.0, 0.0)
    for gradient, array in wanted.gradients.items():
        np.testing.assert_allclose(found.gradients[gradient], array, rtol=0, atol=1e-13, err_msg=gradient)


def test_nan_stays_and_empty_calls_are_empty(backend_name, inputs):
    broken = np.array(inputs.values)
    broken[0, 0, 1, 4] = np.nan
    run = backend.load(backend_name).prepare(BARE, {}, path="eager")
    with_nan = AttentionInputs(inputs.queries, inputs.keys, broken)
    np.testing.assert_array_equal(np.isnan(run(with_nan).values), np.isnan(reference.run(BARE, {}, with_nan).values))
    without_keys = AttentionInputs(inputs.queries, inputs.keys[:, :, :0], inputs.values[:, :, :0])
    np.testing.assert_array_equal(run(without_keys).output, np.zeros((2, 6, 15)))


def test_a_layer_refuses_bad_numbers_in_the_words_of_the_config(backend_name):
    layer = import_module(f"backends.{backend_name}").MultiHeadAttention
    for options, words in (
        ({"clip_qkv": 0.0}, "clip_qkv must be positive. Got 0.0."),
        ({"value_norm_eps": -1.0}, "value_norm_eps must be positive. Got -1.0."),
        ({"value_scale": float("nan")}, "value_scale must be a finite number. Got nan."),
    ):
        with pytest.raises(SpecError) as error:
            layer(8, 2, **options)
        assert str(error.value) == words


def test_a_cache_goes_on_where_it_stopped(backend_name):
    """Two steps give what one call gives: values of the past are neither normed nor scaled again."""
    config = AttentionConfig(12, 3, num_kv_heads=1, bias=True, rotary=True, **OPTIONS)
    weights, rng = init_weights(config, seed=5, bias_scale=0.6), np.random.default_rng(6)
    x = rng.normal(size=(2, 9, 12))
    run = backend.load(backend_name).prepare(config, weights, path="eager")
    whole = run(AttentionInputs(x[:, 6:], x, x))
    first = run(AttentionInputs(x[:, :6], x[:, :6], x[:, :6]))
    past = {"past_keys": first.keys, "past_values": first.values}
    np.testing.assert_allclose(
        run(AttentionInputs(x[:, 6:], x[:, 6:], x[:, 6:], **past)).values, whole.values, atol=1e-13
    )
