"""Capture of this project's own layers, and of d2l.ai's, in all four frameworks."""

from __future__ import annotations

import numpy as np
import pytest

import mha
from mha_core import SpecError
from tests.mha.recordings.capture.live_calls import LK, LQ, B, assert_equal, each_of, masks, numbers, some

# This project's own layers, and d2l.ai's, in all four ------------------------------------------------------

CONFIG = {"bias": True, "query_dim": 7, "key_dim": 9, "value_dim": 11}


def own_layer(name):
    """A function that calls a layer of ours, and the layer."""
    layers = __import__(f"backends.{name}", fromlist=["MultiHeadAttention"])
    if name == "torch":
        import torch

        layer = layers.MultiHeadAttention(12, 4, 0.25, num_kv_heads=2, **CONFIG)
        return layer, lambda *args, train, **more: layer.train(train)(
            *map(torch.tensor, args), **each_of(torch.tensor, more)
        )
    if name == "jax":
        import jax

        layer = layers.MultiHeadAttention(12, 4, 0.25, num_kv_heads=2, **CONFIG)
        shapes = numbers(1, 1, 7), numbers(1, 1, 9), numbers(1, 1, 11)
        variables = layer.init(jax.random.key(0), *shapes)
        rngs = {"dropout": jax.random.key(1)}
        return layer, lambda *args, train, **more: layer.apply(
            variables, *args, **more, deterministic=not train, rngs=rngs
        )
    if name == "tf":
        layer = layers.MultiHeadAttention(12, 4, 0.25, num_kv_heads=2, **CONFIG)
        return layer, lambda *args, train, **more: layer(*args, **more, training=train)
    from backends.mxnet.ops.framework import mx

    layer = layers.MultiHeadAttention(12, 4, 0.25, num_kv_heads=2, **CONFIG)
    layer.initialize()

    @mx.util.use_np
    def call(*args, train, **more):
        scope = mx.autograd.train_mode() if train else mx.autograd.predict_mode()
        with scope:
            return layer(*(mx.np.array(x, dtype=x.dtype) for x in args), **more)

    return layer, call


def test_our_own_layers_are_recorded_as_they_are_called(backend_name):
    layer, call = own_layer(backend_name)
    x = numbers(B, LQ, 7), numbers(B, LK, 9), numbers(B, LK, 11)
    keep, bias = some(B, 4, LQ, LK), numbers(1, 1, LQ, LK)
    with mha.capture(layer) as seen:
        call(*x, np.array([3, 4]), train=False, return_weights=True)
        call(*x, train=False, allowed=some(LQ, LK), bias=bias, causal=True, query_offset=2, window=(3, 1))
        call(*x, train=True, dropout_keep=keep)
    recording = assert_equal(seen.recording)
    assert recording.layers[0].kind == f"backends.{backend_name}.MultiHeadAttention"
    assert recording.layers[0].config.num_kv_heads == 2
    first, second, third = recording.calls
    assert first.inputs.mask.valid_lens.tolist() == [3, 4]
    assert first.outputs["weights"].shape == (B, 4, LQ, LK)
    assert (second.inputs.mask.causal, second.inputs.mask.query_offset, second.inputs.mask.window) == (True, 2, (3, 1))
    np.testing.assert_array_equal(second.inputs.mask.bias, bias)
    np.testing.assert_array_equal(third.inputs.dropout_keep, keep)
    with pytest.raises(SpecError, match="dropout=0.25 is active"), mha.capture(layer):
        call(*x, train=True)


def d2l_layer(name):
    module = __import__(f"backends.{name}.native.d2l", fromlist=["D2lMultiHeadAttention"])
    if name == "torch":
        import torch

        layer = module.D2lMultiHeadAttention(12, 4, 0.25)
        return layer, lambda *args, train: layer.train(train)(*(x if x is None else torch.tensor(x) for x in args))
    if name == "jax":
        import jax

        layer = module.D2lMultiHeadAttention(12, 4, 0.25)
        variables = layer.init(jax.random.key(0), *(numbers(1, 1, 12) for _ in range(3)), None)
        return layer, lambda *args, train: layer.apply(
            variables, *args, training=train, rngs={"dropout": jax.random.key(1)}
        )
    if name == "tf":
        layer = module.D2lMultiHeadAttention(12, 12, 12, 12, 4, 0.25)
        return layer, lambda *args, train: layer(*args, training=train)
    from backends.mxnet.ops.framework import mx

    layer = module.D2lMultiHeadAttention(12, 4, 0.25)
    layer.initialize()

    @mx.util.use_np
    def call(*args, train):
        with mx.autograd.train_mode() if train else mx.autograd.predict_mode():
            return layer(*(x if x is None else mx.np.array(x) for x in args))

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
    with pytest.raises(SpecError, match="is active"), mha.capture(layer):
        call(queries, keys, keys, None, train=True)
