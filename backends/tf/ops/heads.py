"""Heads in TensorFlow; the rules stand in `mha_core.heads`."""

import tensorflow as tf

from backends.tf.ops.framework import shape_of
from mha_core.heads import check_split


def split_heads(x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """Return x (B, L, H * d) as (B, H, L, d). An x with four axes, already split, is returned unchanged."""
    if x.shape.rank == 4:
        return x
    batch, length, width = shape_of(x)  # numbers where they are known, tensors while tracing
    check_split(x.shape[-1], num_heads)
    return tf.transpose(tf.reshape(x, (batch, length, num_heads, width // num_heads)), (0, 2, 1, 3))


def merge_heads(x: tf.Tensor) -> tf.Tensor:
    """Return x (B, H, L, d) as (B, L, H * d), the inverse of `split_heads`."""
    batch, heads, length, head_dim = shape_of(x)
    return tf.reshape(tf.transpose(x, (0, 2, 1, 3)), (batch, length, heads * head_dim))


def transpose_qkv(x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """Return x (B, L, H * d) as (B * H, L, d), with the heads folded into the batch."""
    split = split_heads(x, num_heads)
    batch, heads, length, head_dim = shape_of(split)
    return tf.reshape(split, (batch * heads, length, head_dim))


def transpose_output(x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """Return x (B * H, L, d) as (B, L, H * d), the inverse of `transpose_qkv`."""
    folded, length, head_dim = shape_of(x)
    check_split(x.shape[0], num_heads)
    return merge_heads(tf.reshape(x, (folded // num_heads, num_heads, length, head_dim)))


def repeat_kv_heads(x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """Return x (B, G, L, d) repeated to (B, H, L, d): head h is head h // (H // G) of x."""
    check_split(num_heads, x.shape[1])
    return x if x.shape[1] == num_heads else tf.repeat(x, num_heads // x.shape[1], axis=1)


def fold_groups(x: tf.Tensor, num_kv_heads: int) -> tf.Tensor:
    """Return x (B, H, L, d) as (B, G, H // G * L, d): the H // G query heads of a key head become one head."""
    batch, heads, length, head_dim = shape_of(x)
    check_split(heads, num_kv_heads)
    return (
        x if heads == num_kv_heads else tf.reshape(x, (batch, num_kv_heads, heads // num_kv_heads * length, head_dim))
    )


def unfold_groups(x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """Return x (B, G, H // G * L, d) as (B, H, L, d), the inverse of `fold_groups`."""
    batch, kv_heads, length, head_dim = shape_of(x)
    return x if kv_heads == num_heads else tf.reshape(x, (batch, num_heads, length * kv_heads // num_heads, head_dim))
