"""Masks: which keys a query may attend to. The sources, and their rules in NumPy.

Sources combine with AND. Each backend's `masks.py` holds the same functions in its own
framework's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.call.arguments import CallSizes, is_numbers, numbers_as, settled
from mha_core.dtypes import DTYPES

ARRAY_SOURCES = ("valid_lens", "allowed", "bias", "query_offset")
"""The fields of AttentionMask that can hold an array."""


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """The arguments from which a mask is made; their arrays are of NumPy or of one framework.

    Args:
        valid_lens: integers (B,) or (B, Lq); key j is allowed iff j < valid_len.
        allowed: bool, broadcastable to (B, H, Lq, Lk) by NumPy's rules; True = may attend.
            A three-dimensional one is therefore (H, Lq, Lk); write (B, 1, Lq, Lk) for one per item.
        bias: float, broadcastable to (B, H, Lq, Lk), added to the scores after scaling. -inf in it
            excludes that key just as `allowed = False` does; a large finite number is only a number.
        causal: query i stands at position query_offset + i; key j is allowed iff j <= that position.
        query_offset: an integer, or integers (B,), in -2**31..2**31 - 1. With 0, the first query is aligned with the
            first key (top-left). With Lk - Lq, the last query is aligned with the last key (bottom-right). With a
            decoding cache it is the number of past keys. It matters only with `causal` or `window`.
        window: (left, right); key j is allowed iff position - left <= j <= position + right.
            None means no limit on that side. (0, 0) allows the key at the query's own position alone.

    Lists and numbers become NumPy arrays here (see `mha_core.call.arguments`). A bias becomes one in `with_bias_in`.

    Raises:
        SpecError: a list that is no array.

    >>> mask = AttentionMask(valid_lens=np.array([1, 3]), causal=True)
    >>> from mha_core.call.arguments import CallSizes
    >>> allowed_keys(mask, CallSizes(batch=2, query_len=2, key_len=3), num_heads=1)[:, 0].astype(int)
    array([[[1, 0, 0],
            [1, 0, 0]],
    <BLANKLINE>
           [[1, 0, 0],
            [1, 1, 0]]])
    """

    valid_lens: Any = None
    allowed: Any = None
    bias: Any = None
    causal: bool = False
    query_offset: Any = 0
    window: tuple[int | None, int | None] | None = None

    def __post_init__(self) -> None:
        for name in ("valid_lens", "allowed"):
            self._settle(name, settled(name, getattr(self, name)))
        offset = self.query_offset
        if isinstance(offset, np.integer):
            self._settle("query_offset", int(offset))
        elif type(offset) is not int:
            self._settle("query_offset", settled("query_offset", offset))
        if not is_numbers(self.bias):
            self._settle("bias", settled("bias", self.bias))
        if isinstance(self.causal, np.bool_):
            self._settle("causal", bool(self.causal))
        if isinstance(self.window, (list, tuple)):  # set in any case: compilers do not compare tuples of symbols
            window = tuple(int(reach) if isinstance(reach, np.integer) else reach for reach in self.window)
            object.__setattr__(self, "window", window)

    def _settle(self, name: str, value: Any) -> None:
        if value is not getattr(self, name):
            object.__setattr__(self, name, value)  # the dataclass is frozen

    def with_bias_in(
        self, dtype: str, convert: Callable[[NDArray, str], Any] = lambda array, dtype: array
    ) -> AttentionMask:
        """Return this mask with its bias as an array of `dtype`, if the bias is a number or a list.

        Args:
            dtype: the dtype of the queries, which the array gets.
            convert: (NumPy array, name of the dtype) -> the framework's array; bfloat16 numbers come in float32.
        """
        if not is_numbers(self.bias):
            return self
        array = numbers_as("bias", self.bias, dtype)
        return replace(self, bias=convert(array, dtype) if dtype in DTYPES and array.dtype.kind == "f" else array)

    def map_arrays(self, convert: Callable[[str, Any], Any]) -> AttentionMask:
        """Return this mask with `convert(name, array)` in place of every array."""
        changes = {}
        for name in ARRAY_SOURCES:
            array = getattr(self, name)
            if array is not None and not isinstance(array, int):
                converted = convert(name, array)
                if converted is not array:
                    changes[name] = converted
        return replace(self, **changes) if changes else self

    def for_one_head(self, insert_axis: Callable[[Any], Any]) -> AttentionMask:
        """Return this mask with a head axis in `allowed` and `bias`, as a layer with one head takes them.

        `insert_axis` makes an array (B, Lq, Lk) into (B, 1, Lq, Lk).
        """
        return self.map_arrays(
            lambda name, array: insert_axis(array) if name in ("allowed", "bias") and len(array.shape) == 3 else array
        )

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """Return (left, right): key j is allowed iff position - left <= j <= position + right. None means no limit.

        The limits are those of `window`. With `causal`, the right limit is at most 0.

        >>> AttentionMask(causal=True, window=(2, 3)).limits
        (2, 0)
        """
        left, right = self.window or (None, None)
        if self.causal:
            right = 0 if right is None else min(right, 0)
        return left, right

    @property
    def has_sources(self) -> bool:
        """Return whether any field of the mask restricts or biases attention; if none does, every key is allowed."""
        return self.has_positions or any(source is not None for source in (self.valid_lens, self.allowed, self.bias))

    @property
    def has_positions(self) -> bool:
        """Return whether the mask depends on the positions of queries and keys."""
        return self.causal or self.window is not None


def allowed_keys(mask: AttentionMask, sizes: CallSizes, num_heads: int) -> NDArray[np.bool_]:
    """Return bools (B, H, Lq, Lk) for all fields of the mask together; True = may attend."""
    combined = np.ones((sizes.batch, num_heads, sizes.query_len, sizes.key_len), dtype=np.bool_)
    if mask.valid_lens is not None:
        combined &= _within_valid_lens(mask.valid_lens, sizes)
    if mask.allowed is not None:
        combined &= mask.allowed
    if mask.bias is not None:
        combined &= ~np.isneginf(mask.bias)
    if mask.has_positions:
        combined &= _within_reach(mask, sizes)
    return combined


def interval(mask: AttentionMask, query_len: int) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """Return (first, stop): `causal` and `window` allow key j iff first <= j < stop. None means no limit.

    Both are integers (1 or B, Lq), and may be below 0 or above Lk. Query i stands at position `query_offset` + i.

    >>> interval(AttentionMask(window=(1, None), query_offset=3), query_len=2)
    (array([[2, 3]]), None)
    """
    offset = np.asarray(mask.query_offset, dtype=np.int64).reshape(-1, 1)
    position = offset + np.arange(query_len, dtype=np.int64)
    left, right = mask.limits
    return None if left is None else position - left, None if right is None else position + right + 1


def as_valid_lens(mask: AttentionMask, sizes: CallSizes, num_heads: int) -> NDArray[np.integer] | None:
    """Return the whole mask as lengths (B, Lq), for layers that take no other mask; None if lengths can't express it.

    Lengths express a mask if each query may attend to its first n keys alone, the same in all heads. If `valid_lens`
    is the only field that is set, return it unchanged, (B,) or (B, Lq). Finite numbers in the bias are ignored.

    >>> from mha_core.call.arguments import CallSizes
    >>> sizes = CallSizes(batch=1, query_len=2, key_len=3)
    >>> as_valid_lens(AttentionMask(causal=True, query_offset=1), sizes, num_heads=4)
    array([[2, 3]])
    >>> print(as_valid_lens(AttentionMask(window=(0, 0)), sizes, num_heads=4))
    None
    """
    if mask.valid_lens is not None and not replace(mask, valid_lens=None).has_sources:
        return mask.valid_lens
    allowed = allowed_keys(mask, sizes, num_heads)
    lens = allowed[:, 0].sum(axis=-1)
    return lens if np.array_equal(allowed, np.broadcast_to(_first_keys(lens, sizes), allowed.shape)) else None


def padding_keys(mask: AttentionMask, sizes: CallSizes) -> NDArray[np.bool_]:
    """Return bools (B, Lk): keys that `valid_lens` alone, or `allowed` alone, excludes for every query and head.

    Such a key is padding. Layers replace its key and value inputs by 0, so that NaN there can't reach a result. Even
    with Lq = 0, `valid_lens` (B,) and `allowed` (B, 1, 1, Lk) make padding.
    """
    padding = np.zeros((sizes.batch, sizes.key_len), dtype=np.bool_)
    if mask.valid_lens is not None:
        padding |= ~_within_valid_lens(mask.valid_lens, sizes).any(axis=(1, 2))
    if mask.allowed is not None:
        padding |= ~_as_rank_4(np.asarray(mask.allowed)).any(axis=(1, 2))
    return padding


def additive_bias(mask: AttentionMask) -> NDArray:
    """Return the bias to add to the scores: `mask.bias` with rank 4, and with 0 in place of -inf.

    `mask.bias` must not be None. `allowed_keys` excludes the keys with -inf.
    """
    bias = _as_rank_4(np.asarray(mask.bias))
    return np.where(np.isneginf(bias), 0.0, bias)


def _within_valid_lens(valid_lens: NDArray, sizes: CallSizes) -> NDArray[np.bool_]:
    """Bool (B, 1, 1 or Lq, Lk): the keys that `valid_lens` allows."""
    return _first_keys(valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens, sizes)


def _first_keys(lens: NDArray, sizes: CallSizes) -> NDArray[np.bool_]:
    """Lengths (B, 1 or Lq) -> (B, 1, 1 or Lq, Lk): True for that many first keys."""
    return np.arange(sizes.key_len) < lens[:, None, :, None]


def _within_reach(mask: AttentionMask, sizes: CallSizes) -> NDArray[np.bool_]:
    """Bool (1 or B, 1, Lq, Lk): the keys that `causal` and `window` allow."""
    key = np.arange(sizes.key_len)
    first, stop = (None if end is None else end[:, None, :, None] for end in interval(mask, sizes.query_len))
    within = np.ones((1, 1, sizes.query_len, sizes.key_len), dtype=np.bool_)
    if first is not None:
        within = within & (key >= first)
    if stop is not None:
        within = within & (key < stop)
    return within


def _as_rank_4(array: NDArray) -> NDArray:
    return array.reshape((1,) * (4 - array.ndim) + array.shape)
