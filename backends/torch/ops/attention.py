"""Attention in PyTorch's own operations, between the projections: the stages `scores` to `heads`.

Shapes as in `mha_core.stages`: queries (B, H, Lq, d), keys (B, G, Lk, d), values (B, G, Lk, dv).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from backends.torch.ops.heads import fold_groups, repeat_kv_heads, unfold_groups
from backends.torch.ops.masks import Mask, additive_bias, allowed_keys


class Stages(NamedTuple):
    """The seven stages of one call, as tensors."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    scores: Tensor
    weights: Tensor
    heads: Tensor
    output: Tensor


class Rules(NamedTuple):
    """What a layer does between its projections.

    scale: of a dot product.
    vector: of an additive score, whose queries and keys are S wide already; None for a dot product.
    softcap: None without one.
    dropout: the rate; 0 outside training.
    """

    scale: float = 1.0
    vector: Tensor | None = None
    softcap: float | None = None
    dropout: float = 0.0


def zero_padding(x: Tensor, mask: Mask) -> Tensor:
    """(B, L, width) or (B, G, L, width): 0 in the rows of new keys that nobody can attend to, whatever stood there."""
    return x if mask.padding is None else x.masked_fill(_rows_of(x, mask.padding), 0.0)


def after_past(past: Tensor | None, new: Tensor, mask: Mask) -> Tensor:
    """(B, G, Lk, width): the keys or values of the past, 0 where nobody can attend to them, and then the new ones."""
    return new if past is None else torch.cat([zero_past(past, mask), new], dim=2)


def zero_past(past: Tensor, mask: Mask) -> Tensor:
    """(B, G, Lp, width): 0 where nobody can attend to the past."""
    return past if mask.past_padding is None else past.masked_fill(_rows_of(past, mask.past_padding), 0.0)


def _rows_of(x: Tensor, padding: Tensor) -> Tensor:
    """Padding (B, L) in the shape that x broadcasts with."""
    return padding[..., None] if x.ndim == 3 else padding[:, None, :, None]


def dot_score(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """(B, H, Lq, Lk): q.k * scale. The scale goes on the queries, where float16 has room for it."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return (queries * scale) @ keys.transpose(-2, -1)


def additive_score(queries: Tensor, keys: Tensor, vector: Tensor) -> Tensor:
    """(B, H, Lq, Lk): w . tanh(q + k), of queries and keys that are already S wide."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return torch.tanh(queries.unsqueeze(3) + keys.unsqueeze(2)) @ vector


def cap(scores: Tensor, softcap: float | None) -> Tensor:
    """(B, H, Lq, Lk): c * tanh(scores / c), of a softcap c."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def add_bias(scores: Tensor, mask: Mask) -> Tensor:
    """(B, H, Lq, Lk): the scores plus the additive bias, if there is one."""
    bias = additive_bias(mask)
    return scores if bias is None else scores + bias


def masked_softmax(scores: Tensor, mask: Mask) -> Tensor:
    """(B, H, Lq, Lk): softmax over the allowed keys; exactly 0 elsewhere, and in rows without any.

    A row without an allowed key is given finite scores before the softmax, and zeros after it:
    forward and backward never see a NaN that would have to be repaired.
    """
    allowed = allowed_keys(mask, scores.shape[-1])
    # In at least float32: half precision is too coarse for a sum of exponentials.
    exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if allowed is None:
        return torch.softmax(exact, dim=-1).to(scores.dtype)
    has_key = allowed.any(dim=-1, keepdim=True)
    exact = exact.masked_fill(~allowed, -torch.inf).masked_fill(~has_key, 0.0)
    return torch.softmax(exact, dim=-1).masked_fill(~allowed, 0.0).to(scores.dtype)


def drop(weights: Tensor, mask: Mask, rate: float, training: bool) -> Tensor:
    """(B, H, Lq, Lk): the weights after dropout, with the mask's keep-mask if it has one."""
    if mask.keep is not None:
        return weights * mask.keep / (1.0 - rate)
    return nn.functional.dropout(weights, rate, training)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """(B, H, Lq, dv)."""
    return weights @ repeat_kv_heads(values, weights.shape[1])


def attend_at_once(
    queries: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], mask: Mask, rules: Rules
) -> Tensor:
    """Heads (B, H, Lq, dv) by way of all scores; keys and values may stand in several arrays, one after the other.

    The query heads of a group are more queries of their key head: no keys are repeated.
    """
    num_heads, num_groups = queries.shape[1], keys[0].shape[1]
    folded = fold_groups(queries, num_groups)
    scores = joined([_score(folded, part, rules) for part in keys], dim=-1)
    scores = add_bias(cap(unfold_groups(scores, num_heads), rules.softcap), mask)  # (B, H, Lq, Lk)
    weights = drop(masked_softmax(scores, mask), mask, rules.dropout, rules.dropout > 0.0)
    shares = fold_groups(weights, num_groups).split([part.shape[2] for part in values], dim=-1)
    first, *others = (weighted_sum(share, part) for share, part in zip(shares, values, strict=True))
    return unfold_groups(sum(others, start=first), num_heads)


def joined(parts: list[Tensor], dim: int) -> Tensor:
    """The parts one after the other; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


def _score(queries: Tensor, keys: Tensor, rules: Rules) -> Tensor:
    return (
        dot_score(queries, keys, rules.scale) if rules.vector is None else additive_score(queries, keys, rules.vector)
    )
