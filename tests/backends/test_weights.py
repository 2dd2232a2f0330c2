"""Shared weights in and out of every framework, exact to the bit."""

from contextlib import nullcontext

import numpy as np
import pytest

from mha_core import AttentionConfig, init_weights
from mha_core.dtypes import round_to
from tests.backends.drivers import drive

CONFIGS = [
    AttentionConfig(12, 3),
    AttentionConfig(
        12, 6, num_kv_heads=2, value_head_dim=3, query_dim=5, key_dim=7, value_dim=11, output_dim=13, bias=True
    ),
    AttentionConfig(12, 3, bias={"q_proj": True, "out_proj": True}, score="additive", score_dim=5),
]


def x64(backend_name: str, dtype: str):
    """JAX holds float64 only where a caller has asked for it."""
    if backend_name != "jax" or dtype != "float64":
        return nullcontext()
    from backends.jax.ops.framework import device_of, scope

    return scope("float64", device_of("cpu"))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("config", CONFIGS, ids=["plain", "every-size", "additive"])
def test_weights_are_rounded_once_and_a_round_trip_is_exact(backend, backend_name, config, dtype):
    if dtype not in backend.dtypes("cpu"):
        assert backend_name == "mxnet"
        return
    package = drive(backend_name).package
    drawn = init_weights(config, 0, bias_scale=1.0)
    weights = {name: round_to(array, dtype) for name, array in drawn.items()}
    with x64(backend_name, dtype):
        given = native_dtype(backend_name, dtype)
        layer = package.from_weights(config, drawn, dtype=given)
        out = package.to_weights(layer[1] if isinstance(layer, tuple) else layer)
        again = package.from_weights(config, out, dtype=given)
        twice = package.to_weights(again[1] if isinstance(again, tuple) else again)
    assert list(out) == list(weights)
    for name, array in weights.items():
        assert out[name].dtype == array.dtype
        np.testing.assert_array_equal(out[name], array)
        np.testing.assert_array_equal(twice[name], array)
        assert not out[name].flags.writeable


def test_the_layer_holds_copies(backend_name):
    package = drive(backend_name).package
    config = AttentionConfig(12, 3)
    weights = {name: array.astype(np.float32) for name, array in init_weights(config, 0).items()}
    layer = package.from_weights(config, weights)
    before = weights["q_proj.weight"].copy()
    weights["q_proj.weight"][:] = 7.0
    out = package.to_weights(layer[1] if isinstance(layer, tuple) else layer)
    np.testing.assert_array_equal(out["q_proj.weight"], before)


def native_dtype(backend_name: str, dtype: str):
    if backend_name == "torch":
        import torch

        return getattr(torch, dtype)
    return dtype
