"""Attention in PyTorch's own operations, between the projections: the stages `scores` to `heads`.

Shapes as in `mha_core.stages`: queries (B, H, Lq, d), keys (B, G, Lk, d), values (B, G, Lk, dv).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from backends.torch.ops.heads import repeat_kv_heads
from backends.torch.ops.masks import Mask, additive_bias, allowed_keys
from mha_core.config import AttentionConfig


class Score(NamedTuple):
    """A layer's score function, in a form that can score one block of queries at a time.

    scale: the factor of a dot product. softcap: c in c * tanh(score / c), or None.
    vector: (S,), w of the additive score w . tanh(q + k), for q and k projected to width S; None for a dot product.
    """

    scale: float = 1.0
    vector: Tensor | None = None
    softcap: float | None = None

    def capped(self, config: AttentionConfig) -> Score:
        """This score with the softcap of a config."""
        return Score(self.scale, self.vector, config.softcap)

    @property
    def is_product(self) -> bool:
        """Return whether a score is q.k times the scale, and nothing else."""
        return self.vector is None and self.softcap is None


def zero_padding(x: Tensor, mask: Mask) -> Tensor:
    """Return x, new keys or values (B, L, width) or (B, G, L, width), with 0 in rows that no query may attend to."""
    return x if mask.padding is None else x.masked_fill(_rows_of(x, mask.padding), 0.0)


def after_past(past: Tensor | None, new: Tensor, mask: Mask) -> Tensor:
    """Return past and new keys (or values) as one (B, G, Lk, width), with 0 in past rows no query may attend to."""
    return parts_of(past, new, mask, join=True)[0]


def parts_of(past: Tensor | None, new: Tensor, mask: Mask, *, join: bool) -> tuple[Tensor, ...]:
    """Return (past, new), with 0 at padding of `past`. With `join`: (both joined,). Without a past: (new,)."""
    if past is None:
        return (new,)
    if mask.past_padding is not None:
        past = past.masked_fill(_rows_of(past, mask.past_padding), 0.0)
    return (torch.cat([past, new], dim=2),) if join else (past, new)


def _rows_of(x: Tensor, padding: Tensor) -> Tensor:
    """Padding (B, L) as (B, L, 1) or (B, 1, L, 1), which broadcasts with x (B, L, width) or (B, G, L, width)."""
    return padding[..., None] if x.ndim == 3 else padding[:, None, :, None]


def dot_score(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Return q.k * scale, (B, H, Lq, Lk). The queries are scaled before the product, so that float16 overflows less."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return (queries * scale) @ keys.transpose(-2, -1)


def additive_score(queries: Tensor, keys: Tensor, vector: Tensor) -> Tensor:
    """Return w . tanh(q + k), (B, H, Lq, Lk), for queries q and keys k that are projected to width S."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return torch.tanh(queries.unsqueeze(3) + keys.unsqueeze(2)) @ vector


def cap(similarity: Tensor, rule: AttentionConfig | Score) -> Tensor:
    """Return c * tanh(similarity / c), (B, H, Lq, Lk), where c is `rule.softcap`. If c is None, return `similarity`."""
    c = rule.softcap
    return similarity if c is None else c * torch.tanh(similarity / c)


def add_bias(scores: Tensor, mask: Mask) -> Tensor:
    """Return (B, H, Lq, Lk): the scores plus the mask's additive bias, if it has one."""
    bias = additive_bias(mask)
    return scores if bias is None else scores + bias


def masked_softmax(scores: Tensor, mask: Mask) -> Tensor:
    """Return (B, H, Lq, Lk): softmax over the allowed keys, 0 at the other keys. A row without an allowed key is all 0.

    Such a row gets finite scores before the softmax and zeros after it, so no NaN arises, forward or backward.
    """
    allowed = allowed_keys(mask)
    # In at least float32: half precision is too coarse for a sum of exponentials.
    exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if allowed is None:
        return torch.softmax(exact, dim=-1).to(scores.dtype)
    has_key = allowed.any(dim=-1, keepdim=True)
    exact = exact.masked_fill(~allowed, -torch.inf).masked_fill(~has_key, 0.0)
    return torch.softmax(exact, dim=-1).masked_fill(~allowed, 0.0).to(scores.dtype)


def drop(weights: Tensor, mask: Mask, dropout: float, training: bool) -> Tensor:
    """Return the weights (B, H, Lq, Lk) after dropout by `mask.keep` (True = keep), or at random if that is None."""
    if mask.keep is not None:
        return weights * mask.keep / (1.0 - dropout)
    return nn.functional.dropout(weights, dropout, training)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """(B, H, Lq, Lk), (B, G, Lk, dv) -> (B, H, Lq, dv)."""
    return weights @ repeat_kv_heads(values, weights.shape[1])
