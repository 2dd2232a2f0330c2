"""Decoding step by step with a cache, softcap and layers without projections, as users of each framework call them."""

import numpy as np
import pytest

from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError
from mha_core.reference import pipeline as reference
from tests.backends.drivers import drive

SIZES = {"num_kv_heads": 2, "head_dim": 5, "value_head_dim": 7, "output_dim": 11}
BARE = AttentionConfig(20, 4, **{**SIZES, "output_dim": None}, softcap=0.6, projections=False)


@pytest.fixture
def driver(backend_name):
    return drive(backend_name)


def hidden(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_steps_with_a_cache_give_the_full_causal_pass(driver):
    x = hidden(0, 3, 8, 13)
    layer = driver.new("MultiHeadAttention", 20, 4, bias=True, softcap=0.8, **SIZES)
    full, (keys, values) = driver.call(layer, x, x, x, causal=True, return_present=True)
    assert keys.shape == (3, 2, 8, 5)
    assert values.shape == (3, 2, 8, 7)
    past, rows = {}, []
    for start, end in ((0, 3), (3, 8)):
        part = x[:, start:end]
        output, weights, present = driver.call(
            *(layer, part, part, part),
            causal=True,
            query_offset=start,
            window=(6, None),
            return_weights=True,
            return_present=True,
            **past,
        )
        assert weights.shape == (3, 4, end - start, end)
        past = dict(zip(("past_keys", "past_values"), present, strict=True))
        rows.append(output)
    windowed = driver.call(layer, x, x, x, causal=True, window=(6, None))
    np.testing.assert_allclose(np.concatenate(rows, axis=1), windowed, rtol=0, atol=2e-6)
    assert np.abs(windowed - full).max() > 1e-4  # the window has something to exclude
    np.testing.assert_allclose(past["past_keys"], keys, rtol=0, atol=2e-6)
    np.testing.assert_allclose(past["past_values"], values, rtol=0, atol=2e-6)


def test_nan_in_an_unused_row_of_the_cache_stays_there(driver):
    x = hidden(1, 2, 3, 13)
    layer = driver.new("MultiHeadAttention", 20, 4, **SIZES)
    past_keys, past_values = hidden(2, 2, 2, 4, 5), hidden(3, 2, 2, 4, 7)
    allowed = np.ones((2, 1, 1, 7), bool)
    allowed[1, :, :, :2] = False
    clean = driver.call(layer, x, x, x, allowed=allowed, past_keys=past_keys, past_values=past_values)
    past_keys[1, :, :2], past_values[1, :, :2] = np.nan, np.inf
    spoilt = driver.call(layer, x, x, x, allowed=allowed, past_keys=past_keys, past_values=past_values)
    np.testing.assert_array_equal(spoilt, clean)


def test_a_layer_without_projections_takes_heads_merged_or_split(driver):
    q, k, v = hidden(4, 3, 4, 6, 5), hidden(5, 3, 2, 8, 5), hidden(6, 3, 2, 8, 7)
    layer = driver.new("MultiHeadAttention", 20, 4, **{**SIZES, "output_dim": None}, softcap=0.6, projections=False)
    lens = np.array([8, 5, 0])
    at_once = [x.swapaxes(1, 2).reshape(3, x.shape[2], -1) for x in (q, k, v)]
    split, weights = driver.call(layer, q, k, v, lens, return_weights=True)
    merged, weights_of_merged = driver.call(layer, *at_once, lens, return_weights=True)
    np.testing.assert_array_equal(split, merged)
    np.testing.assert_array_equal(weights, weights_of_merged)
    # The fast path works on the heads where they stand in memory, so that a product may add up in another order.
    ulp = 2.0**-23 * np.abs(split).max()
    for fast in (driver.call(layer, q, k, v, lens), driver.call(layer, *at_once, lens)):
        np.testing.assert_allclose(fast, split, rtol=0, atol=4 * ulp)
    inputs = AttentionInputs(q, k, v, AttentionMask(valid_lens=lens))
    np.testing.assert_allclose(split, reference.run(BARE, {}, inputs).output, rtol=0, atol=1e-6)


def test_keys_of_another_number_of_heads_are_refused(driver):
    bare = driver.new("MultiHeadAttention", 20, 4, **{**SIZES, "output_dim": None}, projections=False)
    with pytest.raises(SpecError, match=r"keys must have shape \(batch, 2 heads, length, 5\)"):
        driver.call(bare, hidden(4, 3, 4, 6, 5), hidden(5, 3, 4, 8, 5), hidden(6, 3, 2, 8, 7))
