"""Capture of this project's own layers, and of d2l.ai's, in all four frameworks."""

import importlib

import numpy as np
import pytest

import mha
from tests.backends.drivers import drive
from tests.mha.recordings.capture.live_calls import LK, LQ, B, assert_equal, masks, numbers, refused, some

WIDTHS = {"query_dim": 7, "key_dim": 9, "value_dim": 11}


def test_our_own_layers_are_recorded_as_they_are_called(backend_name):
    driver = drive(backend_name)
    layer = driver.new("MultiHeadAttention", 12, 4, 0.25, num_kv_heads=2, bias=True, **WIDTHS)
    x = [numbers(B, length, width) for length, width in zip((LQ, LK, LK), WIDTHS.values(), strict=True)]
    keep, bias = some(B, 4, LQ, LK), numbers(1, 1, LQ, LK)
    driver.call(layer, *x)
    model = layer["module"] if backend_name == "jax" else layer
    with mha.capture(model) as seen:
        driver.call(layer, *x, np.array([3, 4]), return_weights=True)
        driver.call(layer, *x, allowed=some(LQ, LK), bias=bias, causal=True, query_offset=2, window=(3, 1))
        driver.call(layer, *x, training=True, dropout_keep=keep)
    recording = assert_equal(seen.recording)
    assert recording.layers[0].kind == f"backends.{backend_name}.MultiHeadAttention"
    assert recording.layers[0].config.num_kv_heads == 2
    first, second, third = recording.calls
    assert first.inputs.mask.valid_lens.tolist() == [3, 4]
    assert first.outputs["weights"].shape == (B, 4, LQ, LK)
    assert (second.inputs.mask.causal, second.inputs.mask.query_offset, second.inputs.mask.window) == (True, 2, (3, 1))
    np.testing.assert_array_equal(second.inputs.mask.bias, bias)
    np.testing.assert_array_equal(third.inputs.dropout_keep, keep)
    refused("dropout=0.25 is active", model, lambda: driver.call(layer, *x, training=True))


def d2l_layer(name):
    """A layer of d2l.ai, and a function that calls it."""
    layers = importlib.import_module(f"backends.{name}.native.d2l")
    layer = layers.D2lMultiHeadAttention(*([12] * (4 if name == "tf" else 1)), 4, 0.25)
    if name == "torch":
        import torch

        return layer, lambda *args, train: layer.train(train)(*(x if x is None else torch.tensor(x) for x in args))
    if name == "jax":
        import jax

        variables = layer.init(jax.random.key(0), *[numbers(1, 1, 12)] * 3, None)
        rngs = {"dropout": jax.random.key(1)}
        return layer, lambda *args, train: layer.apply(variables, *args, training=train, rngs=rngs)
    if name == "tf":
        return layer, lambda *args, train: layer(*args, training=train)
    from backends.mxnet.ops.framework import mx

    layer.initialize()

    @mx.util.use_np
    def call(*args, train):
        with mx.autograd.train_mode() if train else mx.autograd.predict_mode():
            return layer(*(x if x is None else mx.np.array(x, dtype=np.float32) for x in args))

    return layer, call


@pytest.mark.nightly("layers of d2l are recorded", but=("jax", "mxnet"))
def test_d2l_is_recorded(backend_name):
    layer, call = d2l_layer(backend_name)
    queries, keys = numbers(B, LQ, 12), numbers(B, LK, 12)
    call(queries, keys, keys, None, train=False)  # widths
    with mha.capture(layer) as seen:
        call(queries, keys, keys, np.array([3, 5]), train=False)
        call(queries, keys, keys, None, train=False)
    recording = assert_equal(seen.recording)
    assert masks(recording)[0].valid_lens.tolist() == [3, 5]
    refused("is active", layer, lambda: call(queries, keys, keys, None, train=True))
