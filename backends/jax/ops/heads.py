"""Heads in JAX; the rules stand in `mha_core.heads`."""

import jax.numpy as jnp
from jax import Array

from mha_core.heads import check_split


def split_heads(x: Array, num_heads: int) -> Array:
    """(B, L, H * d) -> (B, H, L, d); heads that are split already stay as they are."""
    if x.ndim == 4:
        return x
    batch, length, width = x.shape
    check_split(width, num_heads)
    return x.reshape(batch, length, num_heads, width // num_heads).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """(B, H, L, d) -> (B, L, H * d), the inverse of `split_heads`."""
    batch, heads, length, head_dim = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * head_dim)


def transpose_qkv(x: Array, num_heads: int) -> Array:
    """(B, L, H * d) -> (B * H, L, d): heads folded into the batch."""
    split = split_heads(x, num_heads)
    batch, heads, length, head_dim = split.shape
    return split.reshape(batch * heads, length, head_dim)


def transpose_output(x: Array, num_heads: int) -> Array:
    """(B * H, L, d) -> (B, L, H * d), the inverse of `transpose_qkv`."""
    folded, length, head_dim = x.shape
    check_split(folded, num_heads)
    return merge_heads(x.reshape(folded // num_heads, num_heads, length, head_dim))


def repeat_kv_heads(x: Array, num_heads: int) -> Array:
    """(B, G, L, d) -> (B, H, L, d): query head h reads head h // (H // G)."""
    check_split(num_heads, x.shape[1])
    return x if x.shape[1] == num_heads else jnp.repeat(x, num_heads // x.shape[1], axis=1)
