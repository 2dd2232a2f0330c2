"""The mask of one call in PyTorch, built on the device of the queries; the rules stand in `mha_core.masks`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from backends.torch.framework import describe, dtype_name
from mha_core.checks import CallSizes, check_call, check_valid_lens
from mha_core.heads import HeadShapes
from mha_core.masks import AttentionMask

Window = tuple[int | None, int | None]
Widths = tuple[int | None, int | None, int | None]


class Mask(NamedTuple):
    """What the sources of a mask come to.

    allowed: bool, broadcastable to (B, H, Lq, Lk); True = may attend.
    padding, past_padding: bool, broadcastable to (B, Lk - Lp) and (B, Lp): new keys, and keys of the
        past, that nobody can attend to; None if there are none.
    bias: broadcastable to (B, H, Lq, Lk), 0 where it only excluded; None without one.
    keep: bool (B, H, Lq, Lk), the dropout keep-mask; None without one.
    """

    allowed: Tensor
    padding: Tensor | None
    past_padding: Tensor | None
    bias: Tensor | None
    keep: Tensor | None


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
    """Check the whole call (SpecError), then combine the sources of its mask with AND.

    `head_shapes` and `split` are those of `mha_core.checks.check_call`; `dtype` is that of the layer's
    parameters, None if it has none.
    """
    device = queries.device
    mask = mask.map_arrays(lambda _, array: torch.as_tensor(array, device=device))
    sizes = check_call(
        queries=queries,
        keys=keys,
        values=values,
        mask=mask,
        dropout_keep=dropout_keep,
        past_keys=past_keys,
        past_values=past_values,
        num_heads=num_heads,
        widths=widths,
        head_shapes=head_shapes,
        split=split,
        layer_dtype=None if dtype is None or _autocasts(device) else dtype_name(dtype),
        describe=describe,
    )
    if mask.valid_lens is not None and _has_values(mask.valid_lens):
        check_valid_lens(mask.valid_lens.cpu().numpy(), sizes.key_len)

    allowed = torch.ones((1, 1, 1, sizes.key_len), dtype=torch.bool, device=device)
    padding = None
    for source in (_within_valid_lens(mask, sizes, device), mask.allowed):
        if source is not None:
            source = _as_rank_4(source)
            allowed = allowed & source
            unused = ~source.any(dim=2).any(dim=1)
            padding = unused if padding is None else padding | unused
    bias = None
    if mask.bias is not None:
        bias = _as_rank_4(mask.bias)
        excluded = bias == -torch.inf
        allowed = allowed & ~excluded
        bias = bias.masked_fill(excluded, 0.0)
    if mask.has_positions:
        allowed = allowed & _within_reach(mask, sizes, device)
    new, past = (None, None) if padding is None else _split_at(padding, sizes)
    return Mask(allowed, new, past, bias, dropout_keep)


def _split_at(padding: Tensor, sizes: CallSizes) -> tuple[Tensor, Tensor]:
    """(1 or B, 1 or Lk) as that of the new keys and that of the past."""
    if padding.shape[1] == 1:
        return padding, padding
    return padding[:, sizes.past_len :], padding[:, : sizes.past_len]


def _within_valid_lens(mask: AttentionMask, sizes: CallSizes, device: torch.device) -> Tensor | None:
    """(B, 1, 1 or Lq, Lk)."""
    if mask.valid_lens is None:
        return None
    lens = mask.valid_lens[:, None] if mask.valid_lens.ndim == 1 else mask.valid_lens
    return torch.arange(sizes.key_len, device=device) < lens[:, None, :, None]


def _within_reach(mask: AttentionMask, sizes: CallSizes, device: torch.device) -> Tensor:
    """(1 or B, 1, Lq, Lk): `causal` and `window`."""
    offset = torch.as_tensor(mask.query_offset, device=device).reshape(-1, 1, 1, 1)
    position = offset + torch.arange(sizes.query_len, device=device)[:, None]
    ahead = torch.arange(sizes.key_len, device=device) - position  # how far the key stands ahead of the query
    left, right = mask.window or (None, None)
    reach = ahead <= 0 if mask.causal else torch.ones_like(ahead, dtype=torch.bool)
    if left is not None:
        reach = reach & (ahead >= -left)
    if right is not None:
        reach = reach & (ahead <= right)
    return reach


def _as_rank_4(array: Tensor) -> Tensor:
    return array.reshape((1,) * (4 - array.ndim) + tuple(array.shape))


def _has_values(tensor: Tensor) -> bool:
    """False while a compiler traces, and for tensors without data."""
    return not (torch.compiler.is_compiling() or tensor.is_meta)


def _autocasts(device: torch.device) -> bool:
    """Whether PyTorch chooses the dtype of each product itself."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
