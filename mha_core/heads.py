"""Heads: how channels are split into heads and merged again, and which key head a query head reads.

Channel h * d + i of a projection is element i of head h. These are the facts, with their NumPy
version; each backend's `heads.py` says the same in its own framework's operations.

    split_heads       (B, L, H * d) -> (B, H, L, d)
    merge_heads       (B, H, L, d) -> (B, L, H * d)
    transpose_qkv     (B, L, H * d) -> (B * H, L, d)      heads folded into the batch
    transpose_output  (B * H, L, d) -> (B, L, H * d)
    repeat_kv_heads   (B, G, L, d) -> (B, H, L, d)        query head h reads head h // (H // G)
"""

from typing import NamedTuple

from numpy.typing import NDArray

from mha_core.errors import SpecError


class HeadShapes(NamedTuple):
    """The heads of queries, keys and values: for each, a pair (number of heads, width of one)."""

    queries: tuple[int, int]
    keys: tuple[int, int]
    values: tuple[int, int]


def check_split(width: int | None, num_heads: int) -> None:
    """Raise SpecError unless `width` channels (None: not known yet) split into `num_heads` heads."""
    if num_heads < 1 or (width is not None and width % num_heads):
        raise SpecError(f"width must be divisible by num_heads. Got width={width}, num_heads={num_heads}.")


def split_heads(x: NDArray, num_heads: int) -> NDArray:
    """(B, L, H * d) -> (B, H, L, d).

    >>> import numpy as np
    >>> x = np.arange(12).reshape(1, 2, 6)
    >>> split_heads(x, num_heads=3)[0, 1]  # channels 2 and 3 of both positions
    array([[2, 3],
           [8, 9]])
    """
    batch, length, width = x.shape
    check_split(width, num_heads)
    return x.reshape(batch, length, num_heads, width // num_heads).transpose(0, 2, 1, 3)


def merge_heads(x: NDArray) -> NDArray:
    """(B, H, L, d) -> (B, L, H * d), the inverse of `split_heads`."""
    batch, heads, length, head_dim = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * head_dim)


def transpose_qkv(x: NDArray, num_heads: int) -> NDArray:
    """(B, L, H * d) -> (B * H, L, d): heads folded into the batch; the heads of one item are neighbours."""
    split = split_heads(x, num_heads)
    batch, heads, length, head_dim = split.shape
    return split.reshape(batch * heads, length, head_dim)


def transpose_output(x: NDArray, num_heads: int) -> NDArray:
    """(B * H, L, d) -> (B, L, H * d), the inverse of `transpose_qkv`."""
    folded, length, head_dim = x.shape
    check_split(folded, num_heads)
    return merge_heads(x.reshape(folded // num_heads, num_heads, length, head_dim))


def repeat_kv_heads(x: NDArray, num_heads: int) -> NDArray:
    """(B, G, L, d) -> (B, H, L, d): each key or value head stands next to its repetitions.

    >>> import numpy as np
    >>> repeat_kv_heads(np.array([[[[10.0]], [[20.0]]]]), num_heads=4).ravel()
    array([10., 10., 20., 20.])
    """
    check_split(num_heads, x.shape[1])
    return x.repeat(num_heads // x.shape[1], axis=1)


def sum_kv_groups(x: NDArray, num_kv_heads: int) -> NDArray:
    """(B, H, L, d) -> (B, G, L, d): the transpose of `repeat_kv_heads`, for gradients."""
    batch, heads, length, head_dim = x.shape
    check_split(heads, num_kv_heads)
    return x.reshape(batch, num_kv_heads, heads // num_kv_heads, length, head_dim).sum(axis=2)
