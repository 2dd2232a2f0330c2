"""A layer's config and weights, inputs and masks to call it with, and the random numbers of its dropout."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_core import AttentionConfig, init_weights

B, H, LQ, LK = 2, 3, 5, 7
CONFIG = AttentionConfig(
    embed_dim=12, num_heads=H, value_head_dim=9, query_dim=11, key_dim=13, value_dim=10, output_dim=8, bias=True
)
DROPPING = AttentionConfig(**{**CONFIG.to_dict(), "dropout": 0.4})
WEIGHTS = {name: array.astype(np.float32) for name, array in init_weights(CONFIG, seed=1, bias_scale=1.0).items()}
CLOSE = {"rtol": 2e-5, "atol": 2e-6}  # float32, of numbers around 1
DROPOUT = {"dropout": jax.random.key(3)}


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((B, LQ, CONFIG.query_dim), (B, LK, CONFIG.key_dim), (B, LK, CONFIG.value_dim))
    return [jnp.asarray(rng.normal(size=shape).astype(np.float32)) for shape in shapes]


def mask_arrays(seed=2):
    rng = np.random.default_rng(seed)
    bias = rng.normal(size=(H, 1, LK)).astype(np.float32)
    bias[1, 0, 3] = -np.inf
    return {
        "valid_lens": np.array([6, 4]),
        "allowed": rng.random((B, 1, LQ, LK)) < 0.8,
        "bias": bias,
        "query_offset": np.array([2, 1]),
    }
