"""Capture of this project's own layers, and of d2l.ai's, in all four frameworks."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import mha
from tests.mha.recordings.capture.live_calls import LK, LQ, B, assert_equal, each_of, masks, numbers, refused, some

WIDTHS = {"own": (7, 9, 11), "d2l": (12, 12, 12)}


def made(kind, name):
    """A layer of ours ("own") or of d2l.ai, and a function that calls it."""
    if is_own := kind == "own":
        widths = dict(zip(("query_dim", "key_dim", "value_dim"), WIDTHS[kind], strict=True))
        layers = importlib.import_module(f"backends.{name}")
        layer = layers.MultiHeadAttention(12, 4, 0.25, num_kv_heads=2, bias=True, **widths)
    else:
        layers = importlib.import_module(f"backends.{name}.native.d2l")
        layer = layers.D2lMultiHeadAttention(*([12] * (4 if name == "tf" else 1)), 4, 0.25)

    def each(convert, arrays):
        return [x if x is None else convert(x) for x in arrays]

    if name == "torch":
        import torch

        return layer, lambda *args, train, **more: layer.train(train)(
            *each(torch.tensor, args), **each_of(torch.tensor, more)
        )
    if name == "jax":
        import jax

        shapes = [numbers(1, 1, width) for width in WIDTHS[kind]] + [None] * (not is_own)
        variables, rngs = layer.init(jax.random.key(0), *shapes), {"dropout": jax.random.key(1)}
        mode = (lambda train: {"deterministic": not train}) if is_own else (lambda train: {"training": train})
        return layer, lambda *args, train, **more: layer.apply(variables, *args, **more, **mode(train), rngs=rngs)
    if name == "tf":
        return layer, lambda *args, train, **more: layer(*args, **more, training=train)
    from backends.mxnet.ops.framework import mx

    layer.initialize()

    @mx.util.use_np
    def call(*args, train, **more):
        with mx.autograd.train_mode() if train else mx.autograd.predict_mode():
            return layer(*each(lambda x: mx.np.array(x, dtype=x.dtype if is_own else np.float32), args), **more)

    return layer, call


def test_our_own_layers_are_recorded_as_they_are_called(backend_name):
    layer, call = made("own", backend_name)
    x = [numbers(B, length, width) for length, width in zip((LQ, LK, LK), WIDTHS["own"], strict=True)]
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
    refused("dropout=0.25 is active", layer, lambda: call(*x, train=True))


@pytest.mark.nightly("layers of d2l are recorded", but=("jax", "mxnet"))
def test_d2l_is_recorded(backend_name):
    layer, call = made("d2l", backend_name)
    queries, keys = numbers(B, LQ, 12), numbers(B, LK, 12)
    call(queries, keys, keys, None, train=False)  # widths
    with mha.capture(layer) as seen:
        call(queries, keys, keys, np.array([3, 5]), train=False)
        call(queries, keys, keys, None, train=False)
    recording = assert_equal(seen.recording)
    assert masks(recording)[0].valid_lens.tolist() == [3, 5]
    refused("is active", layer, lambda: call(queries, keys, keys, None, train=True))
