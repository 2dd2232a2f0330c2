"""Bad calls get the same SpecError from all four backends, with the framework's own arrays."""

import numpy as np
import pytest

from mha_core import AttentionConfig, SpecError, init_weights
from tests.backends.drivers import drive
from tests.core.call.test_checks import BAD_CALLS, CONFIG, good_inputs

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


QUERIES, KEYS, VALUES = normal(2, 4, 5), normal(2, 6, 7), normal(2, 6, 11)


@pytest.mark.parametrize("number", range(len(BAD_CALLS)))
def test_bad_calls_get_the_words_of_the_reference(backend_name, number):
    changes, _ = BAD_CALLS[number]
    with pytest.raises(SpecError) as wanted:
        good_inputs(**changes).check(CONFIG)
    driver = drive(backend_name)
    layer = driver.new("MultiHeadAttention", 12, 3, 0.5)
    arrays = {"queries": QUERIES, "keys": KEYS, "values": VALUES}
    driver.call(layer, *arrays.values())  # the first call decides the widths
    given = [changes.get(name, array) for name, array in arrays.items()]
    keywords = driver._convert({name: value for name, value in changes.items() if name not in arrays})
    own = [driver.array(one) if isinstance(one, np.ndarray) else one for one in given]
    with pytest.raises(SpecError) as error:
        driver._call(layer, own, "dropout_keep" in changes, keywords)
    assert str(error.value) == str(wanted.value).replace("int64", "int32" if backend_name == "jax" else "int64")


def test_a_keep_mask_outside_training(backend_name):
    driver = drive(backend_name)
    layer = driver.new("MultiHeadAttention", 12, 3, 0.5)
    with pytest.raises(SpecError, match="dropout_keep belongs to a training step: dropout is off outside training."):
        driver.call(layer, QUERIES, KEYS, VALUES, dropout_keep=np.ones((2, 3, 4, 6), bool))


@pytest.mark.parametrize(
    ("layer", "sizes", "options", "message"),
    [
        ("MultiHeadAttention", (10, 3), {}, "embed_dim must be divisible by num_heads .* embed_dim=10, num_heads=3"),
        ("MultiHeadAttention", (12, 3), {"bias": {"qproj": True}}, "bias has no projection 'qproj'"),
        ("MultiHeadAttention", (12, 3), {"bias": True, "projections": False}, "bias belongs to projections"),
        ("MultiHeadAttention", (12, 3), {"softcap": 0}, "softcap must be positive. Got 0.0."),
        ("DotProductAttention", (), {"dropout": 1.0}, "dropout must lie in"),
        ("AdditiveAttention", (8,), {"dropout": -0.1}, "dropout must lie in"),
        ("AdditiveAttention", (0,), {}, "score_dim must be a positive integer. Got 0"),
        ("PositionalEncoding", (0,), {}, "embed_dim at least 1"),
    ],
)
def test_a_layer_that_contradicts_itself_is_not_made(backend_name, layer, sizes, options, message):
    with pytest.raises(SpecError, match=message):
        drive(backend_name).new(layer, *sizes, **options)


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


def test_positions_that_do_not_fit(backend_name):
    driver = drive(backend_name)
    encoding = driver.new("PositionalEncoding", 6, max_len=4)
    driver.call(encoding, normal(2, 4, 6))
    with pytest.raises(SpecError, match="at most max_len=4 long. Got 5"):
        driver.call(encoding, normal(2, 5, 6))


def test_weights_that_do_not_fit(backend_name):
    package = drive(backend_name).package
    with pytest.raises(SpecError, match=r"weights lack 'q_proj\.weight'"):
        package.from_weights(AttentionConfig(6, 2), {})
    mixed = {name: array.astype(np.float32) for name, array in init_weights(AttentionConfig(6, 2), 0).items()}
    mixed["k_proj.weight"] = mixed["k_proj.weight"].astype(np.float64)
    with pytest.raises(SpecError, match="weights must share one dtype unless dtype is given. Got float32, float64"):
        package.from_weights(AttentionConfig(6, 2), mixed)


@pytest.mark.parametrize("query_block", [0, -2, 2.5, True])
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
