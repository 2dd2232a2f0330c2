"""Capture of Keras' attention layers."""

import numpy as np
import pytest

import mha
from mha.recordings.replay import judge_recording
from tests.mha.recordings.capture.live_calls import LK, LQ, B, assert_equal, masks, numbers, refused, some

pytestmark = pytest.mark.same_on_newest  # the releases of Keras and TensorFlow are the same there


def test_keras_is_called_query_value_key(keras):
    layer = keras.layers.MultiHeadAttention(4, 3, value_dim=6, output_shape=8)
    query, key, value = numbers(B, LQ, 7), numbers(B, LK, 9), numbers(B, LK, 11)
    layer(query, value, key)
    allowed = some(B, LQ, LK)
    with mha.capture(layer) as seen:
        layer(query, value, key, return_attention_scores=True)
        layer(query, value, key, attention_mask=allowed)
        layer(query, value, key, attention_mask=allowed.astype("int32"), use_causal_mask=True)
        layer(query, value, key, attention_mask=some(B, 4, LQ, LK))
    recording = assert_equal(seen.recording)
    assert len(recording.layers) == 1
    first = recording.calls[0]
    np.testing.assert_array_equal(first.inputs.keys, key)
    np.testing.assert_array_equal(first.inputs.values, value)
    assert first.outputs["weights"].shape == (B, 4, LQ, LK)
    np.testing.assert_array_equal(masks(recording)[1].allowed, allowed[:, None])
    assert [mask.causal for mask in masks(recording)] == [False, False, True, False]


def test_grouped_keras_layer_with_a_window(keras):
    layer = keras.layers.GroupQueryAttention(4, 6, 3, sliding_window=2)
    query, value = numbers(B, LQ, 7), numbers(B, LK, 7)
    layer(query, value)
    with mha.capture(layer) as seen:
        layer(query, value, return_attention_scores=True)
        layer(query, value, use_causal_mask=True)
    recording = assert_equal(seen.recording)
    assert [(mask.causal, mask.window) for mask in masks(recording)] == [(False, (1, 1)), (True, (1, 1))]
    assert recording.layers[0].config.num_kv_heads == 3


def test_masks_that_keras_carries_along(keras):
    """Keras ANDs in that of the queries, and its fused path then averages all values, as the definition does not."""
    tokens = keras.Input((LQ,), dtype="int32")
    x = keras.layers.Embedding(11, 12, mask_zero=True)(tokens)
    free = keras.layers.Embedding(11, 12)(tokens)
    for name, queries in (("cross", free), ("own", x)):
        model = keras.Model(tokens, keras.layers.MultiHeadAttention(4, 3, name=name)(queries, x))
        with mha.capture(model) as seen:
            model(np.array([[1, 2, 3], [4, 5, 0]]))
        assert seen.recording.names == (name,)
        (mask,) = masks(seen.recording)
        assert mask.allowed[:, 0, 0].tolist() == [[True, True, True], [True, True, False]]
        if queries is free:
            assert_equal(seen.recording)
        else:
            assert not mask.allowed[1, 0, 2].any()
            (result,) = judge_recording(seen.recording)
            assert result.mismatches[0].index[:2] == (1, 2)


def test_what_keras_can_not_show_is_refused(keras):
    tokens = keras.Input((LQ, 12))
    model = keras.Model(tokens, keras.layers.MultiHeadAttention(4, 3, dropout=0.25)(tokens, tokens))
    x = numbers(B, LQ, 12)
    refused("dropout=0.25 is active", model, lambda: model(x, training=True))
    refused("numbers which are not there yet", model, lambda: model.predict(x, verbose=0))
    with mha.capture(model) as seen:
        model(x)
    assert_equal(seen.recording)
    refused("use_gate=True", keras.layers.MultiHeadAttention(4, 3, use_gate=True))
    assert "call" not in vars(model.layers[1])
