"""Heads in PyTorch; the rules stand in `mha_core.heads`."""

from torch import Tensor

from mha_core.heads import check_split


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, L, H * d) -> (B, H, L, d); heads that are split already stay as they are."""
    if x.ndim == 4:
        return x
    check_split(x.shape[-1], num_heads)
    return x.view(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, L, d) -> (B, L, H * d), the inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


def transpose_qkv(x: Tensor, num_heads: int) -> Tensor:
    """(B, L, H * d) -> (B * H, L, d): heads folded into the batch."""
    return split_heads(x, num_heads).flatten(0, 1)


def transpose_output(x: Tensor, num_heads: int) -> Tensor:
    """(B * H, L, d) -> (B, L, H * d), the inverse of `transpose_qkv`."""
    check_split(x.shape[0], num_heads)
    return merge_heads(x.unflatten(0, (x.shape[0] // num_heads, num_heads)))


def repeat_kv_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, G, L, d) -> (B, H, L, d): query head h reads head h // (H // G)."""
    check_split(num_heads, x.shape[1])
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def fold_groups(x: Tensor, num_groups: int) -> Tensor:
    """(B, H, L, n) -> (B, G, H / G * L, n): the query heads of a group as more queries of their key head."""
    batch, num_heads, length, width = x.shape
    return x if num_heads == num_groups else x.reshape(batch, num_groups, num_heads // num_groups * length, width)


def unfold_groups(x: Tensor, num_heads: int) -> Tensor:
    """(B, G, H / G * L, n) -> (B, H, L, n), the inverse of `fold_groups`."""
    batch, num_groups, rows, width = x.shape
    length = rows // (num_heads // num_groups)
    return x if num_heads == num_groups else x.reshape(batch, num_heads, length, width)
