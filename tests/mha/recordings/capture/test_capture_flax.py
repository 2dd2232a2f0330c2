"""Capture of Flax' layers by names and in dtypes of their own, beside what test_capture_jax asks by day."""

from __future__ import annotations

import numpy as np
import pytest

import mha
from tests.mha.recordings.capture.live_calls import LK, LQ, B, assert_equal, masks, numbers, refused, some
from tests.mha.recordings.capture.test_capture_mixed import assert_mixed

pytestmark = pytest.mark.nightly("layers are recorded in each framework")


def test_linen_layers_are_found_by_name(jax):
    import flax.linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, y, mask=None, deterministic=True):
            x = nn.MultiHeadDotProductAttention(4, qkv_features=8, out_features=6, name="cross")(x, y, mask=mask)
            own = nn.MultiHeadDotProductAttention(2, dropout_rate=0.25, name="own")
            return own(x, deterministic=deterministic)

    model, x, y = Model(), numbers(B, LQ, 7), numbers(B, LK, 9)
    variables = model.init(jax.random.key(0), x, y)
    mask = some(B, 1, LQ, LK)
    with mha.capture(model) as seen:
        model.apply(variables, x, y)
        model.apply(variables, x, y, mask.astype(np.float32))
    recording = assert_equal(seen.recording)
    assert recording.names == ("cross#1", "own#1", "cross#2", "own#2")
    np.testing.assert_array_equal(masks(recording)[2].allowed, mask)
    training = {"deterministic": False, "rngs": {"dropout": jax.random.key(1)}}
    refused("dropout=0.25 is active", model, lambda: model.apply(variables, x, y, **training))
    refused("that JAX traces", model, lambda: jax.jit(model.apply)(variables, x, y))
    refused("nothing to record", nn.MultiHeadDotProductAttention(4), lambda: model.apply(variables, x, y))


def test_nnx_layers_and_ours_with_a_dtype_of_their_own(jax, tmp_path):
    from flax import nnx

    from backends.jax import MultiHeadAttention

    x, y = numbers(B, LQ, 12), numbers(B, LK, 12)
    dtype = "float16"  # XLA can run nnx's attention in it on CPUs, and not compile it: the probe runs it all the same
    layer = nnx.MultiHeadAttention(4, 12, dtype=dtype, decode=False, rngs=nnx.Rngs(0))
    with mha.capture(layer) as seen:
        layer(*map(jax.numpy.asarray, (x, y)))
    assert_mixed(seen.recording, dtype, "float32", tmp_path / "calls.safetensors")
    dtype = "bfloat16"
    own = MultiHeadAttention(12, 4, dtype=dtype)
    variables = own.init(jax.random.key(0), x, y, y)
    with mha.capture(own) as seen:
        own.apply(variables, x, y, y, valid_lens=np.array([2, 5]))
    assert_mixed(seen.recording, dtype, "float32", tmp_path / "calls.safetensors")
