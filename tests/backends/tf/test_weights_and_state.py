"""What a TensorFlow user expects of a layer before its first call, and of the random numbers of its dropout."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from backends.tf import MultiHeadAttention, from_weights, to_weights
from mha_core import AttentionConfig, SpecError, init_weights
from tests.backends.tf.example_calls import DROPPING, LQ, WEIGHTS, B, H, inputs

pytestmark = pytest.mark.same_on_newest  # TensorFlow's release is the same there


def test_weights_of_a_layer_that_was_never_called():
    given = MultiHeadAttention(12, H, query_dim=11, key_dim=13, value_dim=10)
    assert to_weights(given)["k_proj.weight"].shape == (12, 13)
    with pytest.raises(SpecError, match="query_dim is not known yet"):
        to_weights(MultiHeadAttention(12, H))


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


def test_dropout_acts_only_in_training():
    layer = from_weights(DROPPING, WEIGHTS)
    still = layer(*inputs())
    np.testing.assert_array_equal(layer(*inputs(), training=False), still)
    first, second = layer(*inputs(), training=True), layer(*inputs(), training=True)
    assert np.abs(first - still).max() > 0.1
    assert np.abs(first - second).max() > 0.1

    class Outer(keras.Layer):
        def __init__(self):
            super().__init__(dtype="float64")
            self.inner = layer

        def call(self, q, k, v, training=None):
            return self.inner(q, k, v)  # Keras hands `training` on

    np.testing.assert_array_equal(Outer()(*inputs()), still)
    assert np.abs(Outer()(*inputs(), training=True) - still).max() > 0.1
