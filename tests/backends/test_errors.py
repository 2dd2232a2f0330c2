"""Bad calls get the same SpecError from all four backends, with the framework's own arrays."""

from __future__ import annotations

import numpy as np
import pytest

from mha_core import AttentionConfig, BackendError, SpecError, init_weights
from tests.backends.drivers import drive

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


QUERIES, KEYS, VALUES = normal(2, 4, 5), normal(2, 6, 7), normal(2, 6, 11)

BAD_CALLS = {
    "keys of another batch": (
        (QUERIES, KEYS[:1], VALUES),
        {},
        "keys must have the batch size of queries. Got keys (1, 6, 7) beside queries (2, 4, 5).",
    ),
    "more keys than values": (
        (QUERIES, KEYS, VALUES[:, 1:]),
        {},
        "values must be as many as keys. Got values (2, 5, 11) beside keys (2, 6, 7).",
    ),
    "two axes": ((QUERIES[0], KEYS, VALUES), {}, "queries must have shape (batch, length, width). Got (4, 5)."),
    "another width": ((normal(2, 4, 6), KEYS, VALUES), {}, "queries must be query_dim=5 wide. Got (2, 4, 6)."),
    "float lengths": (
        (QUERIES, KEYS, VALUES, np.float32([3, 2])),
        {},
        "valid_lens must be integers. Got dtype float32.",
    ),
    "lengths of rank 3": (
        (QUERIES, KEYS, VALUES, np.ones((2, 4, 6), int)),
        {},
        "valid_lens must have shape (B,)=(2,) or (B, Lq)=(2, 4). Got (2, 4, 6).",
    ),
    "a length beyond Lk": (
        (QUERIES, KEYS, VALUES, np.array([3, 7])),
        {},
        "valid_lens must lie in 0..6, the number of keys. Got 7.",
    ),
    "a negative length": (
        (QUERIES, KEYS, VALUES, np.array([-1, 2])),
        {},
        "valid_lens must lie in 0..6, the number of keys. Got -1.",
    ),
    "a float mask": (
        (QUERIES, KEYS, VALUES),
        {"allowed": normal(2, 1, 4, 6)},
        "allowed must be boolean (True = may attend). Got dtype float32.",
    ),
    "a mask that does not broadcast": (
        (QUERIES, KEYS, VALUES),
        {"allowed": np.ones((2, 4, 6), bool)},
        "allowed must broadcast to (B, H, Lq, Lk)=(2, 3, 4, 6). Got (2, 4, 6).",
    ),
    "a bias that does not broadcast": (
        (QUERIES, KEYS, VALUES),
        {"bias": normal(5, 6)},
        "bias must broadcast to (B, H, Lq, Lk)=(2, 3, 4, 6). Got (5, 6).",
    ),
    "an integer bias": (
        (QUERIES, KEYS, VALUES),
        {"bias": np.ones((4, 6), np.int32)},
        "bias must have the dtype of queries, float32.",
    ),
    "causal that is no bool": ((QUERIES, KEYS, VALUES), {"causal": "yes"}, "causal must be True or False. Got 'yes'."),
    "a negative window": (
        (QUERIES, KEYS, VALUES),
        {"window": (-1, 0)},
        "window must be (left, right), each a number of keys in 0..2147483647, or None for unbounded. Got (-1, 0).",
    ),
    "offsets of another batch": (
        (QUERIES, KEYS, VALUES),
        {"causal": True, "query_offset": np.array([1, 2, 3])},
        "query_offset must be an integer, or integers of shape (B,)=(2,).",
    ),
    "a keep-mask outside training": (
        (QUERIES, KEYS, VALUES),
        {"dropout_keep": np.ones((2, 3, 4, 6), bool)},
        "dropout_keep belongs to a training step: dropout is off outside training.",
    ),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_bad_calls_get_the_same_words(backend_name, what):
    arrays, keywords, message = BAD_CALLS[what]
    driver = drive(backend_name)
    layer = driver.new("MultiHeadAttention", 12, 3, 0.5)
    driver.call(layer, QUERIES, KEYS, VALUES)  # the first call decides the widths
    with pytest.raises(SpecError) as error:
        driver.call(layer, *arrays, **keywords)
    assert message in str(error.value)


def test_sizes_that_do_not_divide(backend_name):
    driver = drive(backend_name)
    with pytest.raises(SpecError, match=r"embed_dim must be divisible by num_heads .* Got embed_dim=10, num_heads=3\."):
        driver.new("MultiHeadAttention", 10, 3)


@pytest.mark.parametrize("layer", ["DotProductAttention", "AdditiveAttention"])
def test_layers_without_heads_check_their_calls(backend_name, layer):
    driver = drive(backend_name)
    attention = driver.new(layer, *([8] if layer == "AdditiveAttention" else []))
    x, y = normal(2, 4, 5), normal(2, 6, 5)
    driver.call(attention, x, y, y, np.array([1, 6]))
    with pytest.raises(SpecError, match=r"valid_lens must lie in 0\.\.6"):
        driver.call(attention, x, y, y, np.array([1, 7]))
    with pytest.raises(SpecError, match="allowed must broadcast to"):
        driver.call(attention, x, y, y, allowed=np.ones((3, 4, 6), bool))


def test_a_dot_product_needs_one_width(backend_name):
    driver = drive(backend_name)
    attention = driver.new("DotProductAttention")
    with pytest.raises(SpecError, match="queries and keys must be equally wide for a dot product"):
        driver.call(attention, QUERIES, KEYS, VALUES)


def test_a_score_dim_that_is_no_size(backend_name):
    with pytest.raises(SpecError, match=r"score_dim must be a positive integer. Got 0"):
        drive(backend_name).new("AdditiveAttention", 0)


def test_positions_that_do_not_fit(backend_name):
    driver = drive(backend_name)
    encoding = driver.new("PositionalEncoding", 6, max_len=4)
    driver.call(encoding, normal(2, 4, 6))
    with pytest.raises(SpecError, match="at most max_len=4 long. Got 5"):
        driver.call(encoding, normal(2, 5, 6))
    with pytest.raises(SpecError, match="embed_dim=6. Got 7"):
        driver.call(encoding, normal(2, 4, 7))


def test_weights_that_do_not_fit(backend_name):
    package = drive(backend_name).package
    with pytest.raises(SpecError, match=r"weights lack 'q_proj\.weight'"):
        package.from_weights(AttentionConfig(6, 2), {})
    mixed = {name: array.astype(np.float32) for name, array in init_weights(AttentionConfig(6, 2), 0).items()}
    mixed["k_proj.weight"] = mixed["k_proj.weight"].astype(np.float64)
    with pytest.raises(SpecError, match="weights must share one dtype unless dtype is given. Got float32, float64"):
        package.from_weights(AttentionConfig(6, 2), mixed)


def test_inputs_of_another_dtype_than_the_layer(backend_name):
    driver = drive(backend_name)
    layer = driver.new("MultiHeadAttention", 12, 3)
    driver.call(layer, QUERIES, KEYS, VALUES)
    half = [array.astype(np.float16) for array in (QUERIES, KEYS, VALUES)]
    with pytest.raises((SpecError, BackendError), match="float16"):
        driver.call(layer, *half)


@pytest.mark.parametrize("query_block", [0, -2, True])
def test_a_block_of_no_queries(backend_name, query_block):
    driver = drive(backend_name)
    layer = driver.new("MultiHeadAttention", 12, 3)
    driver.call(layer, QUERIES, KEYS, VALUES)
    with pytest.raises(SpecError, match=f"query_block must be a positive integer. Got {query_block}."):
        driver.ask("attend", layer, QUERIES, KEYS, VALUES, query_block=query_block)


def test_an_eps_that_rounds_to_0(backend_name):
    driver = drive(backend_name)
    for eps, refused in ((1e-50, True), (1e-30, False)):
        layer = driver.new("MultiHeadAttention", 12, 3, query_key_norm={"eps": eps})
        if not refused:
            assert np.isfinite(driver.call(layer, np.zeros_like(QUERIES), KEYS, VALUES)).all()
            continue
        said = "query_key_norm.eps rounds to 0 in this dtype, whose smallest is 1.18e-38. Got 1e-50."
        with pytest.raises(SpecError, match=said):
            driver.call(layer, QUERIES, KEYS, VALUES)
