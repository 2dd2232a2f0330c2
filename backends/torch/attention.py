"""Attention in PyTorch's own operations, between the projections: the stages `scores` to `heads`.

Shapes as in `mha_core.stages`: queries (B, H, Lq, d), keys (B, G, Lk, d), values (B, G, Lk, dv).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from backends.torch.heads import repeat_kv_heads
from backends.torch.masks import Mask


class Stages(NamedTuple):
    """The seven stages of one call, as tensors."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    scores: Tensor
    weights: Tensor
    heads: Tensor
    output: Tensor


def zero_padding(x: Tensor, mask: Mask) -> Tensor:
    """(B, Lk, width): 0 in the rows of keys that nobody can attend to, whatever stood there."""
    return x if mask.padding is None else x.masked_fill(mask.padding[..., None], 0.0)


def dot_score(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """(B, H, Lq, Lk): q.k * scale. The scale goes on the queries, where float16 has room for it."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return (queries * scale) @ keys.transpose(-2, -1)


def additive_score(queries: Tensor, keys: Tensor, vector: Tensor) -> Tensor:
    """(B, H, Lq, Lk): w . tanh(q + k), of queries and keys that are already S wide."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return torch.tanh(queries.unsqueeze(3) + keys.unsqueeze(2)) @ vector


def add_bias(scores: Tensor, mask: Mask) -> Tensor:
    """(B, H, Lq, Lk): the scores plus the additive bias, if there is one."""
    return scores if mask.bias is None else scores + mask.bias


def masked_softmax(scores: Tensor, mask: Mask) -> Tensor:
    """(B, H, Lq, Lk): softmax over the allowed keys; exactly 0 elsewhere, and in rows without any.

    A row without an allowed key is given finite scores before the softmax, and zeros after it:
    forward and backward never see a NaN that would have to be repaired.
    """
    allowed = mask.allowed
    has_key = allowed.any(dim=-1, keepdim=True)
    # In at least float32: half precision is too coarse for a sum of exponentials.
    exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
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
