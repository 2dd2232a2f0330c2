"""What a TensorFlow user expects of dropout, of masks and of the gradients of what is masked."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from backends.tf import AdditiveAttention, DotProductAttention, from_weights
from mha_core import AttentionInputs, AttentionMask, SpecError
from mha_core.reference import pipeline as reference
from tests.backends.tf.example_calls import CONFIG, DROPPING, EXACT, LK, LQ, WEIGHTS, B, H, inputs, mask_arrays

pytestmark = pytest.mark.same_on_newest  # TensorFlow's release is the same there


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


def test_dropout_keep_belongs_to_training():
    layer = from_weights(DROPPING, WEIGHTS)
    keep = np.random.default_rng(8).random((B, H, LQ, LK)) < 0.6
    problem = AttentionInputs(*(x.numpy() for x in inputs()), dropout_keep=keep)
    wanted = reference.run(DROPPING, WEIGHTS, problem)
    output, weights = layer(*inputs(), dropout_keep=keep, training=True, return_weights=True)
    np.testing.assert_allclose(output, wanted.output, **EXACT)
    np.testing.assert_allclose(weights, wanted.weights, **EXACT)  # as they were before dropout
    for training in (None, False):
        with pytest.raises(SpecError, match="dropout_keep belongs to a training step"):
            layer(*inputs(), dropout_keep=keep, training=training)


def test_masks_as_lists_arrays_and_tensors():
    layer = from_weights(CONFIG, WEIGHTS)
    masks = mask_arrays()
    problem = AttentionInputs(*(x.numpy() for x in inputs()), AttentionMask(**masks, causal=True))
    wanted = reference.run(CONFIG, WEIGHTS, problem).output
    for convert in (np.asarray, tf.constant, np.ndarray.tolist):
        found = layer(*inputs(), causal=True, **{name: convert(array) for name, array in masks.items()})
        np.testing.assert_allclose(found, wanted, **EXACT)
    np.testing.assert_array_equal(layer(*inputs(), [6, 4]), layer(*inputs(), tf.constant([6, 4])))


def test_valid_lens_out_of_range_are_refused():
    layer = from_weights(CONFIG, WEIGHTS)
    with pytest.raises(SpecError, match=r"valid_lens must lie in 0..7, the number of keys. Got 8"):
        layer(*inputs(), [8, 4])


@pytest.mark.parametrize("make", [lambda: DotProductAttention(), lambda: AdditiveAttention(6)])
def test_masks_without_heads(make):
    q, k, v = (x[..., :10] for x in inputs("float32"))
    allowed = mask_arrays()["allowed"][:, 0]  # (B, Lq, Lk)
    allowed[1, 2] = False
    output, weights = make()(q, k, v, allowed=allowed, return_weights=True)
    assert weights.shape == (B, LQ, LK)
    assert not weights.numpy()[~allowed].any()
    assert not output.numpy()[1, 2].any()
    np.testing.assert_allclose(weights.numpy().sum(-1), allowed.any(-1), rtol=1e-6)


def test_an_empty_row_sends_zero_gradient():
    layer = from_weights(CONFIG, WEIGHTS)
    q, k, v = inputs()
    allowed = np.ones((B, 1, LQ, LK), bool)
    allowed[1, 0, 2] = False  # one row: no key is padding
    with tf.GradientTape() as tape:
        tape.watch((q, k, v))
        output, weights = layer(q, k, v, allowed=allowed, return_weights=True)
        row = output[1, 2]
    gradients = tape.gradient(row, (q, k, v, layer.trainable_variables))
    np.testing.assert_array_equal(row, WEIGHTS["out_proj.bias"])
    assert not weights.numpy()[1, :, 2].any()
    *of_inputs, of_parameters = gradients
    assert not any(np.any(gradient) for gradient in of_inputs)
    for variable, gradient in zip(layer.trainable_variables, of_parameters, strict=True):
        assert np.any(gradient) == (variable is layer.out_proj.bias)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e300])
def test_padding_never_leaks(garbage):
    layer = from_weights(CONFIG, WEIGHTS)
    lens = np.array([3, 6])
    is_padding = np.arange(LK) >= lens[:, None]

    def run(filling):
        q, k, v = inputs()
        k, v = (tf.where(is_padding[..., None], tf.constant(filling, tf.float64), x) for x in (k, v))
        with tf.GradientTape() as tape:
            tape.watch((q, k, v))
            output = layer(q, k, v, lens)
        return output, *tape.gradient(output, (q, k, v)), *tape_parameters(layer, q, k, v, lens)

    for clean, dirty in zip(run(0.0), run(garbage), strict=True):
        np.testing.assert_array_equal(clean, dirty)
    assert not run(garbage)[2].numpy()[is_padding].any()


def tape_parameters(layer, q, k, v, lens):
    with tf.GradientTape() as tape:
        output = layer(q, k, v, lens)
    return tape.gradient(output, layer.trainable_variables)
