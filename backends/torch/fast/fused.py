"""PyTorch's fused attention, where it follows the definition.

It is `torch.nn.functional.scaled_dot_product_attention`. On a CPU its kernel gives 0 where all scores of a row are
NaN, excludes keys by adding -inf, which is NaN beside NaN or infinity, and multiplies that -inf by the scale when it
is causal. So it is used for finite arrays only, with no mask, with padding (zeros by then) or with a causal mask and a
positive scale; with other masks of lengths and positions, on a CPU, for one block of queries after the other. Its
backward pass can't be differentiated; for second derivatives the stages compute it.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from backends.torch.fast.at_once import attend_at_once
from backends.torch.fast.products import gradients_by_products, heads_are_faster, heads_by_products, products_are_faster
from backends.torch.ops.attention import Score
from backends.torch.ops.heads import fold_groups, unfold_groups
from backends.torch.ops.masks import Mask, allowed_keys
from mha_core.call.blocks import Operands

KERNEL: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
"""The kernel on a CPU, which also returns what shows that all scores were numbers; None in a PyTorch without it."""

APART = 2**17
"""Scores of one item from which on a call of its own, with only the keys that it has, is faster."""


def is_fusable(operands: Operands[Tensor], score: Score, mask: Mask, rate: float) -> bool:
    """Return whether scaled_dot_product_attention computes this call correctly, without storing the scores.

    `rate` is the dropout rate. On a CPU, True is valid only if all numbers are finite, which `attend_fused` checks.
    """
    if not (not mask.excludes or mask.only_padding or (mask.is_diagonal and score.scale > 0.0)):
        return False
    return _fits(operands, score, mask, rate)


def is_fusable_in_blocks(operands: Operands[Tensor], score: Score, mask: Mask, rate: float) -> bool:
    """Return whether scaled_dot_product_attention computes each block of this call correctly, with the block's mask.

    `rate` is the dropout rate. Return False under torch.compile: its graph would have a kernel call for each block.
    """
    if mask.reach is None or mask.allowed is not None or mask.bias is not None:
        return False
    queries, keys = operands.queries, operands.keys[0]
    if queries.device.type != "cpu" or torch.compiler.is_compiling() or not _fits(operands, score, mask, rate):
        return False
    return _is_finite(queries, keys)


def _fits(operands: Operands[Tensor], score: Score, mask: Mask, rate: float) -> bool:
    """Whether the kernel has the score, widths and dropout of this call."""
    if not score.is_product or rate or mask.keep is not None:
        return False
    queries, keys, values = operands
    return queries.shape[3] == values[0].shape[3] and all(0 not in x.shape for x in (queries, *keys))


def attend_fused(queries: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Mask) -> Tensor | None:
    """Return heads (B, H, Lq, dv), by the fused kernel; None if a NaN or an infinity would make the kernel wrong."""
    tensors, on_cpu = (queries, keys, values), queries.device.type == "cpu"
    if torch.compiler.is_compiling():
        heads = fused(*tensors, scale, mask)
        return heads + _missed_nan(queries, keys) if on_cpu else heads
    recorded = _is_recorded(*tensors)
    if on_cpu and not recorded and heads_are_faster(queries, keys, mask):
        return heads_by_products(*tensors, scale)
    if on_cpu and not recorded and queries.shape[1] == keys.shape[1] and _is_bare(tensors, mask):
        heads, sums = KERNEL(*tensors, is_causal=mask.is_diagonal, scale=scale)
        return heads if _are_sound(sums) or _is_finite(queries, keys) else None
    if on_cpu and not _is_finite(queries, keys):
        return None
    attend = _TwiceDifferentiable.apply if recorded else fused
    return attend(*tensors, scale, mask)


def attend_fused_parts(operands: Operands[Tensor], score: Score, mask: Mask, rate: float) -> Tensor | None:
    """Return heads (B, H, Lq, dv), by a kernel call for each array of keys; None if the kernel can't compute this call.

    The heads of the kernel calls are averaged, weighted by each array's share of the softmax's denominator.
    """
    queries, keys, values = operands
    tensors, num_heads, num_groups = (queries, *keys, *values), queries.shape[1], keys[0].shape[1]
    if queries.device.type != "cpu" or queries.dtype not in (torch.float32, torch.float64) or _is_recorded(*tensors):
        return None
    if mask.excludes or not _fits(operands, score, mask, rate) or not _is_bare(tensors, mask):
        return None
    folded = fold_groups(queries, num_groups)  # (B, G, H / G * Lq, d)
    made = [KERNEL(folded, k, v, scale=score.scale) for k, v in zip(keys, values, strict=True)]
    sums = torch.stack([sums for _, sums in made])  # (parts, B, G, H / G * Lq)
    if not _are_sound(sums) and not _is_finite(queries, *keys):
        return None
    shares = torch.softmax(sums, dim=0).to(queries.dtype)[..., None]
    total = made[0][0].mul_(shares[0])
    for (heads, _), share in zip(made[1:], shares[1:], strict=True):
        total.addcmul_(heads, share)
    return unfold_groups(total, num_heads)


def _is_recorded(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _is_bare(tensors: tuple[Tensor, ...], mask: Mask) -> bool:
    """Return whether `scaled_dot_product_attention` would do nothing but call `KERNEL` with these tensors."""
    if KERNEL is None or (mask.excludes and not mask.is_diagonal) or torch._C._is_any_autocast_enabled():
        return False
    return all(x.stride(3) == 1 for x in tensors) and torch.backends.cuda.flash_sdp_enabled()


def _are_sound(sums: Tensor) -> bool:
    """Return whether every row had finite scores. `sums` (B, H, Lq): log-sum-exp of each row, from the kernel.

    The kernel leaves 0 for a row of nothing but NaN and -inf. Any other NaN, and inf, makes a sum that is not finite.
    """
    return math.isfinite(sums.sum().item()) and bool(sums.all())


def fused(queries: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Mask) -> Tensor:
    """Return heads (B, H, Lq, dv) of a call or a block, computed by scaled_dot_product_attention."""
    options: dict[str, Any] = {"scale": scale, "enable_gqa": queries.shape[1] != keys.shape[1]}
    if not mask.excludes:
        return scaled_dot_product_attention(queries, keys, values, **options)
    if mask.is_diagonal:
        return scaled_dot_product_attention(queries, keys, values, is_causal=True, **options)
    lens = _known_lens(queries, keys, mask)
    if lens is not None:
        return _item_by_item(queries, keys, values, lens, options)
    allowed = allowed_keys(mask)
    assert allowed is not None
    # Rows without a key attend to all keys and become zeros afterwards, because kernels differ in such rows.
    has_key = allowed.any(dim=-1, keepdim=True)
    heads = scaled_dot_product_attention(queries, keys, values, attn_mask=allowed | ~has_key, **options)
    return heads.masked_fill(~has_key, 0.0)


def _known_lens(queries: Tensor, keys: Tensor, mask: Mask) -> list[int] | None:
    """The number of keys of each item; None if not known, not the whole mask, or if calls by item are not faster."""
    num_heads, query_len, key_len = queries.shape[1], queries.shape[2], keys.shape[2]
    worth = queries.device.type == "cpu" and num_heads * query_len * key_len >= APART
    if mask.reach is None or mask.allowed is not None or not worth:
        return None
    return [int(stop) for stop in mask.reach.stop[:, 0]]


def _item_by_item(queries: Tensor, keys: Tensor, values: Tensor, lens: list[int], options: dict[str, Any]) -> Tensor:
    """Heads (B, H, Lq, dv) from one call for each item, with its first `lens[item]` keys; the others are not read."""
    items = zip(queries.split(1), keys.split(1), values.split(1), lens, strict=True)
    heads = [
        scaled_dot_product_attention(q, k[:, :, :n], v[:, :, :n], **options) if n else torch.zeros_like(q)
        for q, k, v, n in items
    ]
    # Joined in the order in which the heads will be merged.
    return torch.cat([part.transpose(1, 2) for part in heads]).transpose(1, 2)


def _is_finite(*arrays: Tensor) -> bool:
    """Whether all numbers are finite, by the sum of each array; False also where that sum overflows."""
    return all(math.isfinite(_sum(array.detach()).item()) for array in arrays)


def _sum(array: Tensor) -> Tensor:
    # PyTorch adds up bfloat16 in float32 by itself; when it is told to, it copies the array first.
    return array.sum(dtype=torch.float32 if array.dtype == torch.float16 else None)


def _missed_nan(queries: Tensor, keys: Tensor) -> Tensor:
    """(B, H, Lq, 1) to add to the heads: NaN in rows whose scores are all NaN, where the kernel gives 0; else 0."""
    of_query = (queries.detach() * 0.0).sum(dim=-1, keepdim=True)
    of_first_key = torch.where(keys.detach()[:, :, :1].isnan(), torch.nan, 0.0).sum(dim=-1, keepdim=True)
    return of_query + of_first_key.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1).to(of_query.dtype)


class _TwiceDifferentiable(torch.autograd.Function):
    """The fused kernel with its own backward pass or products, or with the stages' where it is differentiated again."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Mask) -> Tensor:
        tensors = (queries, keys, values)
        ctx.scale, ctx.mask = scale, mask
        ctx.by_products = queries.device.type == "cpu" and products_are_faster(queries, keys, mask)
        if ctx.by_products:
            ctx.save_for_backward(*tensors)
            way = heads_by_products if heads_are_faster(queries, keys, mask) else partial(fused, mask=mask)
            return way(*tensors, scale)
        q, k, v = (x.detach().requires_grad_(needed) for x, needed in zip(tensors, ctx.needs_input_grad, strict=False))
        with torch.enable_grad():
            heads = fused(q, k, v, scale, mask)
        ctx.save_for_backward(*tensors, q, k, v, heads)
        return heads.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        q, k, v, *made = ctx.saved_tensors
        again = torch.is_grad_enabled()
        if ctx.by_products and not again:
            each = gradients_by_products(q, k, v, ctx.scale, gradients[0])
            return (*(x if needed else None for x, needed in zip(each, ctx.needs_input_grad, strict=False)), None, None)
        if again:
            score = Score(ctx.scale)
            made = [q, k, v, attend_at_once(Operands(q, (k,), (v,)), score, ctx.mask, dropout=0.0, training=False)]
        *leaves, heads = made
        wanted = [x for x, needed in zip(leaves, ctx.needs_input_grad, strict=False) if needed]
        found = iter(
            torch.autograd.grad(
                heads, wanted, gradients[0], create_graph=again, retain_graph=True, materialize_grads=True
            )
        )
        return (*(next(found) if needed else None for needed in ctx.needs_input_grad[:3]), None, None)
