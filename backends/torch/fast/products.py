"""The gradients of attention by plain products of a few heads, where PyTorch's fused kernel has slower ones."""

import torch
from torch import Tensor

from backends.torch.ops.heads import fold_groups, unfold_groups
from backends.torch.ops.masks import Mask
from mha_core.call.blocks import query_blocks

softmax_backward = torch.ops.aten._softmax_backward_data.out
"""The backward pass of `torch.softmax`, which autograd calls; here it can write where it reads."""

SCORES_OF_HEAD = 2**21
"""Bytes of a head's scores up to which products are faster: the kernel's backward pass cuts bfloat16 in small blocks,
and converts each from float32 and back; longer rows of scores leave the processor's caches between two products."""

SCORES_AT_ONCE = 6 * 2**20
"""Bytes of scores of the heads that are computed at once; two such arrays are in use, the same for all heads."""


def products_are_faster(queries: Tensor, keys: Tensor, mask: Mask) -> bool:
    """Return whether `gradients_by_products` is faster than the fused kernel's own backward pass on a CPU."""
    if queries.dtype != torch.bfloat16 or mask.excludes:
        return False
    return queries.element_size() * queries.shape[2] * keys.shape[2] <= SCORES_OF_HEAD


def gradients_by_products(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, d_heads: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries (B, H, Lq, d), keys (B, G, Lk, d) and values (B, G, Lk, dv) without a mask."""
    batch, num_groups, key_len = keys.shape[:3]
    of_group, query_len = queries.shape[1] // num_groups, queries.shape[2]
    at_once = max(1, SCORES_AT_ONCE // (queries.element_size() * of_group * query_len * key_len))
    items_at_once, groups_at_once = min(batch, max(1, at_once // num_groups)), min(num_groups, at_once)
    room = queries.new_empty(2, items_at_once * groups_at_once, of_group * query_len, key_len)
    found = torch.empty_like(queries), torch.empty_like(keys), torch.empty_like(values)
    for items in query_blocks(batch, items_at_once):
        for groups in query_blocks(num_groups, groups_at_once):
            width = groups.stop - groups.start
            heads = slice(groups.start * of_group, groups.stop * of_group)
            # Each but v is in two products, and a product copies what is not in one piece.
            q, d = (fold_groups(x[items, heads], width).flatten(0, 1).contiguous() for x in (queries, d_heads))
            k, v = keys[items, groups].flatten(0, 1).contiguous(), values[items, groups].flatten(0, 1)
            d_q, d_k, d_v = (x.unflatten(0, (-1, width)) for x in _of_heads(q, k, v, scale, d, room[:, : len(k)]))
            found[0][items, heads] = unfold_groups(d_q, width * of_group)
            found[1][items, groups], found[2][items, groups] = d_k, d_v
    return found


def _of_heads(q: Tensor, k: Tensor, v: Tensor, scale: float, d: Tensor, room: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q (N, Lq, d), k (N, Lk, d) and v (N, Lk, dv), given that of the heads, d (N, Lq, dv).

    Scores, and then weights, are computed in room[0] (N, Lq, Lk), and their gradients in room[1]: memory that is new
    for each product takes as long as the product.
    """
    weights, d_scores = room
    torch.baddbmm(weights, q, k.mT, beta=0.0, alpha=scale, out=weights)
    torch.softmax(weights, dim=-1, out=weights)
    torch.bmm(d, v.mT, out=d_scores)
    d_values = torch.bmm(weights.mT, d)
    softmax_backward(d_scores, weights, -1, weights.dtype, grad_input=d_scores)
    return _scaled(d_scores, k, scale), _scaled(d_scores.mT, q, scale), d_values


def _scaled(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return the product of each pair of matrices, times the scale, rounded once."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0.0, alpha=scale)
