"""Heads in PyTorch; the rules stand in `mha_core.heads`."""

from torch import Tensor

from mha_core.heads import check_split


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Return x (B, L, H * d) as (B, H, L, d). An x with four axes, already split, is returned unchanged."""
    if x.ndim == 4:
        return x
    check_split(x.shape[-1], num_heads)
    return x.unflatten(-1, (num_heads, x.shape[-1] // num_heads)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Return x (B, H, L, d) as (B, L, H * d), the inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


def transpose_qkv(x: Tensor, num_heads: int) -> Tensor:
    """Return x (B, L, H * d) as (B * H, L, d), with the heads folded into the batch."""
    return split_heads(x, num_heads).flatten(0, 1)


def transpose_output(x: Tensor, num_heads: int) -> Tensor:
    """Return x (B * H, L, d) as (B, L, H * d), the inverse of `transpose_qkv`."""
    check_split(x.shape[0], num_heads)
    return merge_heads(x.unflatten(0, (x.shape[0] // num_heads, num_heads)))


def repeat_kv_heads(x: Tensor, num_heads: int) -> Tensor:
    """Return x (B, G, L, d) repeated to (B, H, L, d): head h is head h // (H // G) of x."""
    check_split(num_heads, x.shape[1])
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def fold_groups(x: Tensor, num_groups: int) -> Tensor:
    """Return x (B, H, L, n) as (B, G, H / G * L, n): the H / G query heads of a key head become one head."""
    batch, num_heads, length, width = x.shape
    return x if num_heads == num_groups else x.reshape(batch, num_groups, num_heads // num_groups * length, width)


def unfold_groups(x: Tensor, num_heads: int) -> Tensor:
    """Return x (B, G, H / G * L, n) as (B, H, L, n), the inverse of `fold_groups`."""
    batch, num_groups, rows, width = x.shape
    length = rows // (num_heads // num_groups)
    return x if num_heads == num_groups else x.reshape(batch, num_heads, length, width)
