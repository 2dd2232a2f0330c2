"""A layer's config and weights, and inputs and masks to call it with."""

import numpy as np
import tensorflow as tf

from mha_core import AttentionConfig, init_weights

B, H, LQ, LK = 2, 3, 5, 7
CONFIG = AttentionConfig(
    embed_dim=12, num_heads=H, value_head_dim=9, query_dim=11, key_dim=13, value_dim=10, output_dim=8, bias=True
)
DROPPING = AttentionConfig(**{**CONFIG.to_dict(), "dropout": 0.4})
WEIGHTS = init_weights(CONFIG, seed=1, bias_scale=1.0)
EXACT = {"rtol": 0, "atol": 1e-13}


def inputs(dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((B, LQ, CONFIG.query_dim), (B, LK, CONFIG.key_dim), (B, LK, CONFIG.value_dim))
    return [tf.constant(rng.normal(size=shape), dtype) for shape in shapes]


def mask_arrays(dtype="float64", seed=2):
    rng = np.random.default_rng(seed)
    bias = rng.normal(size=(H, 1, LK)).astype(dtype)
    bias[1, 0, 3] = -np.inf
    return {
        "valid_lens": np.array([6, 4]),
        "allowed": rng.random((B, 1, LQ, LK)) < 0.8,
        "bias": bias,
        "query_offset": np.array([2, 1]),
    }
