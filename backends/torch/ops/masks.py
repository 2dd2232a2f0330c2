"""The mask of one call in PyTorch, built on the device of the queries; the rules stand in `mha_core.call.masks`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from backends.torch.ops.framework import as_tensor, describe, dtype_name, numbers
from mha_core.call.blocks import Reach, reach
from mha_core.call.call import Call, LayerSpec
from mha_core.call.checks import OFFSETS, check_call, check_numbers
from mha_core.call.masks import AttentionMask
from mha_core.call.sizes import CallSizes
from mha_core.heads import HeadShapes

Window = tuple[int | None, int | None]
Widths = tuple[int | None, int | None, int | None]


class Mask(NamedTuple):
    """What the sources of a mask come to, for all queries and keys or for some; None where there is nothing of a kind.

    first, stop: integers, broadcastable to (B, 1, Lq, 1): the keys first <= j < stop are what valid_lens, causal
        and window leave to a query.
    allowed: bool, as it was given but of rank 4; True = may attend.
    bias: as it was given but of rank 4; -inf excludes.
    keep: bool (B, H, Lq, Lk), the dropout keep-mask.
    padding, past_padding: bool, broadcastable to (B, Lk - Lp) and (B, Lp): new keys, and keys of the
        past, that nobody can attend to.
    reach: what first and stop hold, where it is known without waiting for a device; without such a source, too.
    is_diagonal: whether all that it excludes is what causal does with an offset of 0.
    only_padding: whether all that it excludes is padding.
    """

    first: Tensor | None = None
    stop: Tensor | None = None
    allowed: Tensor | None = None
    bias: Tensor | None = None
    keep: Tensor | None = None
    padding: Tensor | None = None
    past_padding: Tensor | None = None
    reach: Reach | None = None
    is_diagonal: bool = False
    only_padding: bool = False

    @property
    def excludes(self) -> bool:
        """Whether it has any source; without one, every query may attend to every key."""
        return any(source is not None for source in self[:4])


def allowed_keys(mask: Mask, key_len: int) -> Tensor | None:
    """Bool, broadcastable to (B, H, Lq, Lk): all sources combined; None where they leave every key."""
    allowed = mask.allowed
    if mask.bias is not None:
        allowed = _both(allowed, mask.bias != -torch.inf)
    if mask.stop is not None:
        allowed = _both(allowed, torch.arange(key_len, device=mask.stop.device) < mask.stop)
    if mask.first is not None:
        allowed = _both(allowed, torch.arange(key_len, device=mask.first.device) >= mask.first)
    return allowed


def additive_bias(mask: Mask) -> Tensor | None:
    """The bias to add to the scores: 0 where it only excludes."""
    return None if mask.bias is None else mask.bias.masked_fill(mask.bias == -torch.inf, 0.0)


def part_of(mask: Mask, items: slice, heads: slice, queries: slice, keys: slice) -> Mask:
    """The mask of some queries and keys, without what leaves all of those keys to all of those queries."""
    within = (items, heads, queries, keys)
    first, stop, allowed, bias, keep = (None if source is None else cut(source, within) for source in mask[:5])
    if mask.reach is not None and mask.reach.is_open(items, queries, keys):
        first = stop = None
    start = keys.start or 0
    first, stop = (None if bound is None else bound - start for bound in (first, stop))
    return Mask(first, stop, allowed, bias, keep)


def sources_of(queries: Any, device: torch.device, valid_lens: Any, **sources: Any) -> AttentionMask:
    """The sources of a call's mask: tensors in place of lists, numbers and NumPy's arrays.

    Integers stay what and where they are until `build_mask` has looked at them: on another device it could not.
    """
    if torch.compiler.is_compiling():  # NumPy's own ways with lists can't be traced
        sources = {"valid_lens": valid_lens, **sources}
        for name in ("valid_lens", "allowed", "query_offset", "bias"):
            given = sources.get(name)
            if given is not None and not isinstance(given, (int, Tensor)):
                dtype = queries.dtype if name == "bias" and isinstance(given, (list, tuple, float)) else None
                sources[name] = torch.as_tensor(given, dtype=dtype, device=device)
        return AttentionMask(**sources)
    mask = AttentionMask(valid_lens, **sources)
    if isinstance(queries, Tensor):
        mask = mask.with_bias_in(dtype_name(queries.dtype), lambda array, dtype: as_tensor(array, device, dtype))
    return mask.map_arrays(
        lambda name, array: (
            array
            if isinstance(array, (np.ndarray, Tensor)) and name in ("valid_lens", "query_offset")
            else as_tensor(array, device)
        )
    )


def build_mask(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: AttentionMask,
    dropout_keep: Tensor | None,
    past_keys: Tensor | None = None,
    past_values: Tensor | None = None,
    *,
    num_heads: int,
    widths: Widths = (None, None, None),
    head_shapes: HeadShapes | None = None,
    split: bool = False,
    dtype: torch.dtype | None = None,
) -> Mask:
    """Check the whole call (SpecError), then put the sources of its mask in the shapes that they have in `Mask`.

    All arrays have been through `as_tensor`, but for those of the mask's integers, which may be NumPy's. `head_shapes`
    and `split` are those of `mha_core.call.checks.check_call`; `dtype` is that of the layer's parameters, None if
    it has none.
    """
    device = queries.device if isinstance(queries, Tensor) else torch.device("cpu")
    call = Call(queries, keys, values, mask, dropout_keep, past_keys, past_values)
    sizes = check_call(call, LayerSpec(num_heads, widths, head_shapes, split, expected_dtype(dtype, device)), describe)
    lens = None if mask.valid_lens is None else numbers(mask.valid_lens)
    offset = mask.query_offset if isinstance(mask.query_offset, int) else numbers(mask.query_offset)
    check_numbers(lens, offset, sizes.key_len)
    is_known = lens is mask.valid_lens and offset is mask.query_offset
    known = mask if is_known else replace(mask, valid_lens=lens, query_offset=offset)
    mask = mask.map_arrays(lambda _, array: _moved(array, device))
    limits = {"valid_lens": ((0, sizes.key_len), lens), "query_offset": (OFFSETS, offset)}
    mask = mask.map_arrays(lambda name, array: _within(array, *limits[name]) if name in limits else array)
    known_reach = _known_reach(mask, known, sizes)
    is_open = known_reach is not None and known_reach.is_open(*(slice(0, size) for size in sizes[:3]))
    first, stop = (None, None) if is_open else _interval(mask, sizes, device)
    padding = _padding(mask, sizes, device)
    new, past = (None, None) if padding is None else _split_at(padding, sizes)
    return Mask(
        *(first, stop, _as_rank_4(mask.allowed), _as_rank_4(mask.bias), dropout_keep, new, past),
        reach=known_reach,
        is_diagonal=_is_diagonal(mask),
        only_padding=_is_only_padding(mask),
    )


def _split_at(padding: Tensor, sizes: CallSizes) -> tuple[Tensor, Tensor]:
    """(1 or B, 1 or Lk) as that of the new keys and that of the past."""
    if padding.shape[1] == 1:
        return padding, padding
    return padding[:, sizes.past_len :], padding[:, : sizes.past_len]


def _moved(array: Any, device: torch.device) -> Any:
    """A source as a tensor on the device of the queries, wherever it stood; what is refused as it is."""
    return array.to(device) if isinstance(array, Tensor) else as_tensor(array, device)


def _within(integers: Tensor, limits: tuple[int, int], checked: Any) -> Tensor:
    """The same in int64; of numbers that could not be looked at (`checked` is None), the nearest within the limits."""
    wide = integers.to(torch.int64)
    if checked is not None:
        return wide
    if integers.dtype == torch.uint64:  # beyond int64 it becomes negative
        wide = wide.masked_fill(wide < 0, limits[1])
    return wide.clamp(*limits)


def _interval(mask: AttentionMask, sizes: CallSizes, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """`Mask.first` and `Mask.stop`."""
    first = stop = None
    if mask.valid_lens is not None:
        lens = mask.valid_lens
        stop = (lens[:, None] if lens.ndim == 1 else lens)[:, None, :, None]
    left, right = mask.limits
    if left is not None or right is not None:
        offset = torch.as_tensor(mask.query_offset, dtype=torch.int64, device=device).reshape(-1, 1, 1, 1)
        position = offset + torch.arange(sizes.query_len, device=device)[:, None]
        if right is not None:
            reached = position + (right + 1)
            stop = reached if stop is None else torch.minimum(stop, reached)
        if left is not None:
            first = position - left
    return first, stop


def _padding(mask: AttentionMask, sizes: CallSizes, device: torch.device) -> Tensor | None:
    """(1 or B, 1 or Lk): what `valid_lens` alone, or `allowed` alone, excludes for every query and head."""
    padding = None
    if mask.valid_lens is not None:
        lens = mask.valid_lens
        if lens.ndim == 2:
            lens = lens.amax(dim=1) if lens.shape[1] else lens.new_zeros(lens.shape[:1])
        padding = torch.arange(sizes.key_len, device=device) >= lens[:, None]
    if mask.allowed is not None:
        unused = ~_as_rank_4(mask.allowed).any(dim=2).any(dim=1)
        padding = unused if padding is None else padding | unused
    return padding


def _known_reach(mask: AttentionMask, known: AttentionMask, sizes: CallSizes) -> Reach | None:
    """`Mask.reach`: None while a compiler traces, and where some source's numbers are not at hand."""
    intervals = ("valid_lens", "query_offset") if mask.has_positions else ("valid_lens",)
    if torch.compiler.is_compiling() or any(
        getattr(known, name) is None and getattr(mask, name) is not None for name in intervals
    ):
        return None
    return reach(known, sizes)


def _is_diagonal(mask: AttentionMask) -> bool:
    offset = mask.query_offset
    others = (mask.valid_lens, mask.allowed, mask.bias, mask.window)
    return mask.causal and isinstance(offset, int) and offset == 0 and all(source is None for source in others)


def _is_only_padding(mask: AttentionMask) -> bool:
    per_item = mask.valid_lens is None or mask.valid_lens.ndim == 1
    per_key = mask.allowed is None or tuple(_as_rank_4(mask.allowed).shape[1:3]) == (1, 1)
    return per_item and per_key and mask.bias is None and not mask.has_positions


def _both(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one & other


def cut(array: Tensor, within: tuple[slice, ...]) -> Tensor:
    """The part of an array of rank 4 that belongs to a part of what it broadcasts to."""
    return array[tuple(slice(None) if size == 1 else axis for size, axis in zip(array.shape, within, strict=True))]


def _as_rank_4(array: Any) -> Any:
    return None if array is None else array.reshape((1,) * (4 - array.ndim) + tuple(array.shape))


def expected_dtype(dtype: torch.dtype | None, device: torch.device) -> str | None:
    """The dtype that inputs must have beside parameters of `dtype`; None under autocast, where PyTorch chooses."""
    if dtype is None or (torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)):
        return None
    return dtype_name(dtype)


def check_first_call(queries: Any, keys: Any, values: Any, dtype: torch.dtype | None, device: torch.device) -> None:
    """Refuse the inputs of a layer's first call, which decides its widths, before they reach a parameter."""
    check_call(Call(queries, keys, values), LayerSpec(dtype=expected_dtype(dtype, device)), describe)
