"""Heads in JAX; the rules stand in `mha_core.heads`."""

import jax.numpy as jnp
from jax import Array

from mha_core.heads import check_split


def split_heads(x: Array, num_heads: int) -> Array:
    """Return x (B, L, H * d) as (B, H, L, d). An x with four axes, already split, is returned unchanged."""
    if x.ndim == 4:
        return x
    batch, length, width = x.shape
    check_split(width, num_heads)
    return x.reshape(batch, length, num_heads, width // num_heads).swapaxes(1, 2)


def merge_heads(x: Array) -> Array:
    """Return x (B, H, L, d) as (B, L, H * d), the inverse of `split_heads`."""
    batch, heads, length, head_dim = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * head_dim)


def transpose_qkv(x: Array, num_heads: int) -> Array:
    """Return x (B, L, H * d) as (B * H, L, d), with the heads folded into the batch."""
    split = split_heads(x, num_heads)
    batch, heads, length, head_dim = split.shape
    return split.reshape(batch * heads, length, head_dim)


def transpose_output(x: Array, num_heads: int) -> Array:
    """Return x (B * H, L, d) as (B, L, H * d), the inverse of `transpose_qkv`."""
    folded, length, head_dim = x.shape
    check_split(folded, num_heads)
    return merge_heads(x.reshape(folded // num_heads, num_heads, length, head_dim))


def repeat_kv_heads(x: Array, num_heads: int) -> Array:
    """Return x (B, G, L, d) repeated to (B, H, L, d): head h is head h // (H // G) of x."""
    check_split(num_heads, x.shape[1])
    return x if x.shape[1] == num_heads else jnp.repeat(x, num_heads // x.shape[1], axis=1)
