"""The examples that this project grew out of, one test each, in every backend where they apply."""

import importlib

import numpy as np
import pytest

from mha_core import AttentionConfig, AttentionInputs, init_weights, sinusoidal_positions
from mha_core.backend import load
from tests.backends.drivers import drive


@pytest.fixture
def driver(backend_name):
    return drive(backend_name)


@pytest.fixture
def normal():
    """Standard normal float32 arrays, the same ones in each run of a test."""
    rng = np.random.default_rng(0)
    return lambda *shape: rng.normal(size=shape).astype(np.float32)


def test_toy_example(driver, normal):
    """100 wide, 5 heads, dropout 0.5: queries (2, 4, 100), keys (2, 6, 100), valid_lens [3, 2]."""
    layer = driver.new("MultiHeadAttention", 100, 5, 0.5)
    keys = normal(2, 6, 100)
    output, weights = driver.call(layer, normal(2, 4, 100), keys, keys, np.array([3, 2]), return_weights=True)
    assert output.shape == (2, 4, 100)
    assert weights.shape == (2, 5, 4, 6)
    assert (weights[0, :, :, 3:] == 0.0).all()
    assert (weights[1, :, :, 2:] == 0.0).all()
    assert (weights[0, :, :, :3] > 0.0).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-6)


def test_valid_lens_per_query(driver, normal):
    lens = np.array([[1, 2, 3, 4], [6, 5, 0, 2]])
    layer = driver.new("MultiHeadAttention", 20, 5)
    keys = normal(2, 6, 20)
    _, weights = driver.call(layer, normal(2, 4, 20), keys, keys, lens, return_weights=True)
    for item in range(2):
        for query in range(4):
            row = weights[item, :, query]
            assert (row[:, lens[item, query] :] == 0.0).all()
            np.testing.assert_allclose(row.sum(axis=-1), float(lens[item, query] > 0), rtol=1e-6)


def test_transpose_qkv_and_transpose_output_are_inverse(driver, normal):
    """Heads folded into the batch: (2, 4, 100) -> (10, 4, 20) and back."""
    x = normal(2, 4, 100)
    folded = driver.heads.transpose_qkv(driver.array(x), 5)
    assert tuple(folded.shape) == (10, 4, 20)
    np.testing.assert_array_equal(driver.numpy(folded)[7], x[1, :, 40:60])  # item 1, head 2
    np.testing.assert_array_equal(driver.numpy(driver.heads.transpose_output(folded, 5)), x)


def test_separate_query_key_and_value_sizes_are_given(driver, normal):
    layer = driver.new("MultiHeadAttention", 12, 3, query_dim=5, key_dim=7, value_dim=11, output_dim=13)
    assert driver.call(layer, normal(2, 4, 5), normal(2, 6, 7), normal(2, 6, 11)).shape == (2, 4, 13)


@pytest.mark.nightly("the examples of d2l are right in each backend", but=("mxnet", "tf", "torch"))
def test_additive_attention_with_queries_and_keys_of_different_width(driver, normal):
    """The chapter's own: queries 20 wide, keys 2 wide and all alike, so that each row averages its values."""
    layer = driver.new("AdditiveAttention", 8, dropout=0.1)
    keys = np.broadcast_to(normal(1, 1, 2), (2, 10, 2)).copy()
    values = np.broadcast_to(np.arange(40, dtype=np.float32).reshape(1, 10, 4), (2, 10, 4)).copy()
    output, weights = driver.call(layer, normal(2, 1, 20), keys, values, np.array([2, 6]), return_weights=True)
    np.testing.assert_allclose(output[:, 0], [[2, 3, 4, 5], [10, 11, 12, 13]], rtol=1e-6)
    np.testing.assert_allclose(weights[0, 0], [0.5] * 2 + [0.0] * 8, rtol=1e-6)


ANGLES = np.deg2rad(np.arange(10) * 36.0)
UNIT_VECTORS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)[None].astype(np.float32)


def directions(*degrees: float) -> np.ndarray:
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)[None].astype(np.float32)


@pytest.mark.nightly("the examples of d2l are right in each backend", but=("mxnet", "tf", "torch"))
def test_unscaled_dot_product_over_unit_vectors(driver):
    """Ten unit vectors 36 degrees apart are keys and values; one query at 45 degrees."""
    layer = driver.new("DotProductAttention", scaled=False)
    output, weights = driver.call(layer, directions(45), UNIT_VECTORS, UNIT_VECTORS, return_weights=True)
    np.testing.assert_allclose(output[0, 0], [0.31564538, 0.31564537], atol=3e-7)
    assert weights.sum() == pytest.approx(1.0, abs=1e-6)
    assert weights.argmax() == 1  # 36 degrees is the nearest


@pytest.mark.nightly("the examples of d2l are right in each backend", but=("mxnet", "tf", "torch"))
def test_three_queries_at_once(driver):
    layer = driver.new("DotProductAttention", scaled=False)
    queries = directions(45, 90, 200)
    output, weights = driver.call(layer, queries, UNIT_VECTORS, UNIT_VECTORS, return_weights=True)
    assert output[0].shape == (3, 2)
    assert weights[0].shape == (3, 10)
    one_by_one = [driver.call(layer, queries[:, i : i + 1], UNIT_VECTORS, UNIT_VECTORS)[0, 0] for i in range(3)]
    np.testing.assert_allclose(output[0], one_by_one, atol=1e-6)


def test_a_list_of_heads_equals_the_fused_layer(backend_name, normal):
    """16 wide, 4 heads, 3 queries, 4 keys: each head with its own three projections, concatenated and projected."""
    config = AttentionConfig(16, 4, bias=True)
    weights = init_weights(config, seed=0, bias_scale=1.0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3, 16)), rng.normal(size=(2, 4, 16))
    backend = load(backend_name)
    fused = backend.prepare(config, weights)(AttentionInputs(x, y, y))
    identity = {"out_proj.weight": np.eye(4), "out_proj.bias": np.zeros(4)}
    heads = []
    for head in range(4):
        rows = slice(4 * head, 4 * head + 4)
        one = AttentionConfig(4, 1, query_dim=16, key_dim=16, value_dim=16, bias=True)
        own = {name: array[rows] for name, array in weights.items() if not name.startswith("out_proj")}
        heads.append(backend.prepare(one, {**own, **identity})(AttentionInputs(x, y, y)).output)
    concatenated = np.concatenate(heads, axis=-1)
    expected = concatenated @ weights["out_proj.weight"].T + weights["out_proj.bias"]
    np.testing.assert_allclose(fused.output, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.nightly("the examples of d2l are right in each backend", but=("mxnet", "tf", "torch"))
def test_five_word_sentence_with_sinusoidal_positions(driver, normal):
    """Embedded at 512, positions added, 8 heads with biases: output and per-head weights."""
    vocabulary = {word: index for index, word in enumerate(["the", "cat", "sat", "on", "mat"])}
    embedding = normal(len(vocabulary), 512)
    sentence = embedding[[vocabulary[word] for word in ["the", "cat", "sat", "on", "the"]]][None]
    encoded = driver.call(driver.new("PositionalEncoding", 512), sentence)
    np.testing.assert_allclose(encoded, sentence + sinusoidal_positions(5, 512), atol=1e-6)
    assert not np.allclose(encoded[0, 0], encoded[0, 4])  # the same word at two positions
    layer = driver.new("MultiHeadAttention", 512, 8, bias=True)
    output, weights = driver.call(layer, encoded, encoded, encoded, return_weights=True)
    assert output.shape == (1, 5, 512)
    assert weights.shape == (1, 8, 5, 5)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)


@pytest.mark.nightly("the examples of d2l are right in each backend", but=("mxnet", "tf", "torch"))
def test_effect_of_scaling_at_dimension_1_and_100(driver, normal):
    """Without the scale the softmax saturates as the width grows; with it the weights stay as spread out."""
    largest = {}
    for width in (1, 100):
        queries, keys = normal(16, 4, width), normal(16, 6, width)
        for scaled in (True, False):
            layer = driver.new("DotProductAttention", scaled=scaled)
            _, weights = driver.call(layer, queries, keys, keys, return_weights=True)
            largest[width, scaled] = weights.max(axis=-1).mean()
            if width == 1:
                assert largest[1, scaled] == largest[1, True]
    assert largest[100, False] > 0.9
    assert largest[100, True] < 0.6
    assert abs(largest[100, True] - largest[1, True]) < 0.15


def test_dropout_acts_in_training_alone(driver, normal):
    layer = driver.new("MultiHeadAttention", 20, 5, 0.5)
    x, y = normal(2, 4, 20), normal(2, 6, 20)
    calm, again = driver.call(layer, x, y, y), driver.call(layer, x, y, y)
    np.testing.assert_array_equal(calm, again)
    output, weights = driver.call(layer, x, y, y, training=True, return_weights=True)
    assert np.abs(output - calm).max() > 1e-3
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-6)  # returned before dropout


def test_every_backend_has_the_same_files(backend_name):
    ops = [f"ops.{role}" for role in ("framework", "heads", "masks", "attention", "scores")]
    native = [f"native.{role}" for role in ("convert", "d2l", "subjects", "capture", "live_probe")]
    for role in ("layers", "single_head", "positional", "weights", "backend", *ops, "fast.attend", *native):
        importlib.import_module(f"backends.{backend_name}.{role}")
