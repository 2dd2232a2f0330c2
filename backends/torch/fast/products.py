"""Attention in bfloat16 by plain products of a few heads, where PyTorch's fused kernel is slower, and its gradients."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from backends.torch.ops.heads import fold_groups, unfold_groups
from backends.torch.ops.masks import Mask
from mha_core.call.blocks import query_blocks

softmax_backward = torch.ops.aten._softmax_backward_data.out
"""The backward pass of `torch.softmax`, which autograd calls; here it can write where it reads."""

SCORES_OF_HEAD = 2**21
"""Bytes of a head's scores up to which products are faster: the kernel's backward pass cuts bfloat16 in small blocks,
and converts each from float32 and back; longer rows of scores leave the processor's caches between two products.
Where products are faster forward too, they are up to four times as many bytes."""

SCORES_AT_ONCE = 6 * 2**20
"""Bytes of scores of the heads whose gradients are computed at once, in two such arrays, the same for all heads."""

SCORES_FORWARD = 2**21
"""Bytes of scores that are computed at once without gradients, in one array."""

FEWEST = 128
"""Queries, and keys, from which on a choice between the kernel and products is worth its time."""


def products_are_faster(queries: Tensor, keys: Tensor, mask: Mask) -> bool:
    """Return whether `gradients_by_products` is faster than the fused kernel's own backward pass on a CPU."""
    if queries.dtype != torch.bfloat16 or mask.excludes:
        return False
    bytes_of_head = queries.element_size() * queries.shape[2] * keys.shape[2]
    if bytes_of_head <= SCORES_OF_HEAD:
        return True
    return bytes_of_head <= 4 * SCORES_OF_HEAD and heads_are_faster(queries, keys, mask)


def heads_are_faster(queries: Tensor, keys: Tensor, mask: Mask) -> bool:
    """Return whether `heads_by_products` is faster than the fused kernel on this CPU, as measured once in a process.

    Both follow the definition, and their last bits differ: where PyTorch is to be deterministic, the kernel is taken.
    """
    if queries.dtype != torch.bfloat16 or mask.excludes or min(queries.shape[2], keys.shape[2]) < FEWEST:
        return False
    if torch._C._is_any_autocast_enabled() or torch.are_deterministic_algorithms_enabled():
        return False
    return _products_are_clearly_faster(torch.get_num_threads())


@cache
def _products_are_clearly_faster(threads: int) -> bool:
    """Return whether they took at most 0.9 of the kernel's time: of each the fastest of nine, in turn.

    On an Intel Xeon with matrix instructions the kernel is faster; on an AMD EPYC without it takes 1.7 times as long.
    """
    x = torch.ones(1, 4 * threads, 512, 64, dtype=torch.bfloat16)
    with torch.inference_mode():
        ways = (partial(heads_by_products, x, x, x, 1.0), partial(scaled_dot_product_attention, x, x, x))
        by_products, by_kernel = map(min, zip(*([_seconds(way) for way in ways] for _ in range(9)), strict=True))
    return by_products < 0.9 * by_kernel


def _seconds(compute: Callable[[], Tensor]) -> float:
    start = perf_counter()
    compute()
    return perf_counter() - start


def heads_by_products(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Return heads (B, H, Lq, dv) of queries (B, H, Lq, d), keys (B, G, Lk, d), values (B, G, Lk, dv) without a mask.

    The scores of a few heads or, where those of one head are many, of a few queries are computed at once.
    """
    (batch, num_groups, key_len), num_heads, width = keys.shape[:3], queries.shape[1], values.shape[3]
    folded = fold_groups(queries, num_groups)  # (B, G, H / G * Lq, d)
    rows = folded.shape[2]
    rows_at_once = min(rows, max(1, SCORES_FORWARD // (queries.element_size() * key_len)))
    at_once = max(1, SCORES_FORWARD // (queries.element_size() * rows_at_once * key_len))
    room = queries.new_empty(min(at_once, batch * num_groups), rows_at_once, key_len)
    if num_groups == num_heads:  # then merging the heads copies nothing
        found = queries.new_empty(batch, rows, num_heads, width).transpose(1, 2)
    else:
        found = queries.new_empty(batch, num_groups, rows, width)
    for items, groups in _few_heads(batch, num_groups, at_once):
        k, v = (x[items, groups].flatten(0, 1) for x in (keys, values))
        for some in query_blocks(rows, rows_at_once):
            q = folded[items, groups, some].flatten(0, 1)
            weights = _weights(q, k, scale, room[: len(q), : q.shape[1]])
            found[items, groups, some] = torch.bmm(weights, v).unflatten(0, (-1, groups.stop - groups.start))
    return unfold_groups(found, num_heads)


def _few_heads(batch: int, num_groups: int, at_once: int) -> Iterator[tuple[slice, slice]]:
    """Items and groups that together have at most `at_once` key heads, until all have been there."""
    for items in query_blocks(batch, max(1, at_once // num_groups)):
        for groups in query_blocks(num_groups, min(num_groups, at_once)):
            yield items, groups


def gradients_by_products(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, d_heads: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries (B, H, Lq, d), keys (B, G, Lk, d) and values (B, G, Lk, dv) without a mask."""
    batch, num_groups, key_len = keys.shape[:3]
    of_group, query_len = queries.shape[1] // num_groups, queries.shape[2]
    at_once = max(1, SCORES_AT_ONCE // (queries.element_size() * of_group * query_len * key_len))
    room = queries.new_empty(2, min(at_once, batch * num_groups), of_group * query_len, key_len)
    found = torch.empty_like(queries), torch.empty_like(keys), torch.empty_like(values)
    for items, groups in _few_heads(batch, num_groups, at_once):
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
    weights, d_scores = _weights(q, k, scale, room[0]), room[1]
    torch.bmm(d, v.mT, out=d_scores)
    d_values = torch.bmm(weights.mT, d)
    softmax_backward(d_scores, weights, -1, weights.dtype, grad_input=d_scores)
    return _scaled(d_scores, k, scale), _scaled(d_scores.mT, q, scale), d_values


def _weights(q: Tensor, k: Tensor, scale: float, room: Tensor) -> Tensor:
    """The weights (N, Lq, Lk) of q (N, Lq, d) and k (N, Lk, d), in `room`, where the scores were before."""
    torch.baddbmm(room, q, k.mT, beta=0.0, alpha=scale, out=room)
    return torch.softmax(room, dim=-1, out=room)


def _scaled(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return the product of each pair of matrices, times the scale, rounded once."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0.0, alpha=scale)
