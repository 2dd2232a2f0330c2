"""Attention with all scores in one array, for a block of a call or for a call that is not worth cutting."""

import torch
from torch import Tensor

from backends.torch.ops.attention import (
    Score,
    add_bias,
    additive_score,
    cap,
    dot_score,
    drop,
    masked_softmax,
    weighted_sum,
)
from backends.torch.ops.heads import fold_groups, unfold_groups
from backends.torch.ops.masks import Mask
from mha_core.call.blocks import Operands

FEW_QUERIES = 32
"""Queries up to which keys times queries is the faster product on a CPU, in the dtypes of `_similarity`."""


def attend_at_once(operands: Operands[Tensor], score: Score, mask: Mask, dropout: float, training: bool) -> Tensor:
    """Return heads (B, H, Lq, dv). Past and new keys (values) are not joined: each array has its own matrix product.

    The query heads of a group are treated as more queries of their key head, so that no keys are repeated.
    """
    queries, keys, values = operands
    num_heads, num_groups = queries.shape[1], keys[0].shape[1]
    folded = fold_groups(queries, num_groups)  # (B, G, H / G * Lq, d)
    similarity = _joined([_similarity(folded, part, score) for part in keys])  # (B, G, H / G * Lq, Lk)
    scores = add_bias(cap(unfold_groups(similarity, num_heads), score), mask)  # (B, H, Lq, Lk)
    weights = masked_softmax(scores, mask)  # (B, H, Lq, Lk)
    kept = fold_groups(drop(weights, mask, dropout, training), num_groups)  # (B, G, H / G * Lq, Lk)
    of_parts = kept.split([part.shape[2] for part in values], dim=-1)
    first, *others = (weighted_sum(weights, part) for weights, part in zip(of_parts, values, strict=True))
    return unfold_groups(sum(others, start=first), num_heads)


def _similarity(queries: Tensor, keys: Tensor, score: Score) -> Tensor:
    if score.vector is not None:
        return additive_score(queries, keys, score.vector)
    few = not torch.compiler.is_compiling() and queries.shape[2] <= FEW_QUERIES  # a number there may be a symbol
    if few and queries.dtype in (torch.float32, torch.float64):
        return (keys @ (queries * score.scale).transpose(-2, -1)).transpose(-2, -1)
    return dot_score(queries, keys, score.scale)


def _joined(parts: list[Tensor]) -> Tensor:
    """The parts of the keys' axis, the last one, one after the other; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
