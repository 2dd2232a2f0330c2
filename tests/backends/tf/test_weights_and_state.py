"""What a TensorFlow user expects of weights that go in and out, and of random numbers and global state."""

from __future__ import annotations

import os
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from backends.tf import MultiHeadAttention, from_weights, to_weights
from backends.tf.backend import TensorFlowBackend
from backends.tf.ops.heads import merge_heads, split_heads, transpose_output, transpose_qkv
from mha_core import AttentionConfig, AttentionInputs, SpecError, init_weights
from mha_core.heads import transpose_qkv as numpy_transpose_qkv
from tests.backends.tf.example_calls import CONFIG, DROPPING, LQ, WEIGHTS, B, H, inputs

pytestmark = pytest.mark.same_on_newest  # TensorFlow's release is the same there


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_weights_round_trip_to_the_bit(dtype):
    weights = {name: array.astype(dtype) for name, array in WEIGHTS.items()}
    layer = from_weights(CONFIG, weights)
    assert layer.dtype == dtype
    assert layer.q_proj.kernel.shape == (CONFIG.query_dim, 12)
    for name, array in to_weights(layer).items():
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, weights[name])


def test_bfloat16_weights_come_out_as_float32():
    layer = from_weights(CONFIG, WEIGHTS, dtype="bfloat16")
    once = to_weights(layer)
    twice = to_weights(from_weights(CONFIG, once, dtype=tf.bfloat16))
    for name, array in once.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, WEIGHTS[name], rtol=2.0**-8)
        np.testing.assert_array_equal(array, twice[name])


def test_weights_of_two_dtypes_need_a_choice():
    mixed = {**WEIGHTS, "q_proj.bias": WEIGHTS["q_proj.bias"].astype("float32")}
    with pytest.raises(SpecError, match=r"weights must share one dtype .* float32, float64"):
        from_weights(CONFIG, mixed)
    assert from_weights(CONFIG, mixed, dtype="float32").dtype == "float32"


def test_weights_of_a_layer_that_was_never_called():
    given = MultiHeadAttention(12, H, query_dim=11, key_dim=13, value_dim=10)
    assert to_weights(given)["k_proj.weight"].shape == (12, 13)
    with pytest.raises(SpecError, match="query_dim is not known yet"):
        to_weights(MultiHeadAttention(12, H))


def test_from_weights_and_runs_leave_global_state_alone():
    additive = AttentionConfig(**{**DROPPING.to_dict(), "score": "additive"})
    problem = AttentionInputs(*(x.numpy() for x in inputs()), cotangent=np.zeros((B, LQ, CONFIG.output_dim)))
    execution = tf.config.experimental

    def state():
        kind, numbers, *rest = np.random.get_state()
        return (
            random.getstate(),
            (kind, numbers.tolist(), *rest),
            keras.config.floatx(),
            keras.config.dtype_policy().name,
            execution.tensor_float_32_execution_enabled(),
            os.environ.get("KERAS_BACKEND"),
        )

    before = state()
    from_weights(additive, init_weights(additive, seed=9))
    TensorFlowBackend().prepare(DROPPING, WEIGHTS, dtype="float32")(problem)
    assert state() == before


def test_two_layers_from_weights_drop_out_differently_and_reproducibly():
    config = AttentionConfig(12, H, dropout=0.5)
    q = tf.constant(np.random.default_rng(10).normal(size=(B, LQ, 12)))

    def dropped(seed, weights_seed):
        random.seed(seed)
        layer = from_weights(config, init_weights(config, weights_seed))
        return layer.dropout(tf.ones_like(q), training=True).numpy() > 0

    state = random.getstate()
    try:
        np.testing.assert_array_equal(dropped(0, 0), dropped(0, 0))
        assert (dropped(0, 0) != dropped(0, 1)).any()
        assert (dropped(0, 0) != dropped(1, 0)).any()
    finally:
        random.setstate(state)


def test_heads_folded_into_the_batch():
    x = np.random.default_rng(11).normal(size=(B, LQ, 12))
    folded = transpose_qkv(tf.constant(x), H)
    np.testing.assert_array_equal(folded, numpy_transpose_qkv(x, H))
    np.testing.assert_array_equal(transpose_output(folded, H), x)
    np.testing.assert_array_equal(merge_heads(split_heads(tf.constant(x), H)), x)
