"""Heads in MXNet; the rules stand in `mha_core.heads`."""

from backends.mxnet.ops.framework import mx, nothing
from backends.mxnet.ops.operators import operator, view
from mha_core.heads import check_split

swap = operator("transpose")
"""The transpose that oneDNN computes; that of mx.np takes five times as long."""


@mx.util.use_np
def split_heads(x: mx.np.ndarray, num_heads: int) -> mx.np.ndarray:
    """Return x (B, L, H * d) as (B, H, L, d). An x with four axes, already split, is returned unchanged."""
    if x.ndim == 4:
        return x
    batch, length, width = x.shape
    check_split(width, num_heads)
    if x.size == 0:
        return x.reshape(batch, length, num_heads, width // num_heads).transpose(0, 2, 1, 3)
    return swap(view(x, (batch, length, num_heads, width // num_heads)), axes=(0, 2, 1, 3))


@mx.util.use_np
def merge_heads(x: mx.np.ndarray) -> mx.np.ndarray:
    """Return x (B, H, L, d) as (B, L, H * d), the inverse of `split_heads`."""
    batch, heads, length, head_dim = x.shape
    if x.size == 0:
        return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * head_dim)
    return view(swap(x, axes=(0, 2, 1, 3)), (batch, length, heads * head_dim))


@mx.util.use_np
def transpose_qkv(x: mx.np.ndarray, num_heads: int) -> mx.np.ndarray:
    """Return x (B, L, H * d) as (B * H, L, d), with the heads folded into the batch."""
    batch, heads, length, head_dim = (split := split_heads(x, num_heads)).shape
    return split.reshape(batch * heads, length, head_dim)


@mx.util.use_np
def transpose_output(x: mx.np.ndarray, num_heads: int) -> mx.np.ndarray:
    """Return x (B * H, L, d) as (B, L, H * d), the inverse of `transpose_qkv`."""
    folded, length, head_dim = x.shape
    check_split(folded, num_heads)
    return merge_heads(x.reshape(folded // num_heads, num_heads, length, head_dim))


@mx.util.use_np
def repeat_kv_heads(x: mx.np.ndarray, num_heads: int) -> mx.np.ndarray:
    """Return x (B, G, L, d) repeated to (B, H, L, d): head h is head h // (H // G) of x."""
    check_split(num_heads, x.shape[1])
    if x.shape[1] == num_heads:
        return x
    if x.size == 0:
        return nothing((x.shape[0], num_heads, *x.shape[2:]), x)
    return mx.np.repeat(x, num_heads // x.shape[1], axis=1)
