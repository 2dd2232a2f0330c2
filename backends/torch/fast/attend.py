"""Attention in PyTorch without the stages in between: `queries`, `keys` and `values` to `heads`.

Where PyTorch's fused kernel follows the definition, that computes it (`fused.py`); elsewhere the stages do, a
block of queries after the other. Neither holds all scores: the backward pass computes them anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states

from backends.torch.fast.fused import APART, attend_fused, is_fusable
from backends.torch.ops.attention import Rules, attend_at_once, zero_past
from backends.torch.ops.framework import has_tangent, transforms_are_active
from backends.torch.ops.masks import Mask, cut, part_of
from mha_core.call.blocks import query_block, query_blocks

BUDGET = 2**22
"""Bytes of scores in one block: two or three such arrays are what a processor's caches hold."""

MOST_COMPILED = 16
"""Blocks that a compiled program may have, since each is written out in it."""


class Attended(NamedTuple):
    """What a call gives without its stages: the output (B, Lq, Do); and the keys and values for the next step."""

    output: Tensor
    present: tuple[Tensor, Tensor] | None


class Piece(NamedTuple):
    """A part of one call: some queries of some heads of some items, and the keys that any of them needs."""

    items: slice
    heads: slice
    groups: slice
    queries: slice
    keys: slice

    def of_queries(self, x: Tensor) -> Tensor:
        """The part of an array (B, H, Lq, n)."""
        return x[self.items, self.heads, self.queries]

    def of_keys(self, x: Tensor) -> Tensor:
        """The part of an array (B, G, Lk, n)."""
        return x[self.items, self.groups, self.keys]

    def of_scores(self, x: Tensor) -> Tensor:
        """The part of an array that broadcasts to (B, H, Lq, Lk)."""
        return cut(x, (self.items, self.heads, self.queries, self.keys))

    def of_mask(self, mask: Mask) -> Mask:
        return part_of(mask, self.items, self.heads, self.queries, self.keys)


class Call(NamedTuple):
    """The tensors of one call that can have gradients; shapes as in `attend_in_blocks`, bias and vector or None."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    bias: Tensor | None
    vector: Tensor | None

    def attend(self, mask: Mask, rules: Rules, piece: Piece | None = None) -> Tensor:
        """Heads (B, H, Lq, dv), all scores at once; of a piece, its part of them."""
        mask, rules = mask._replace(bias=self.bias), rules._replace(vector=self.vector)
        if piece is None:
            return attend_at_once(self.queries, (self.keys,), (self.values,), mask, rules)
        q, k, v = piece.of_queries(self.queries), piece.of_keys(self.keys), piece.of_keys(self.values)
        return attend_at_once(q, (k,), (v,), piece.of_mask(mask), rules)


def attend_in_blocks(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, rules: Rules, block: int | None = None
) -> Tensor:
    """Heads (B, H, Lq, dv) of queries (B, H, Lq, d), keys (B, G, Lk, d) and values (B, G, Lk, dv).

    `block` is how many queries to compute at once; None is as many as the rule says.
    """
    call = Call(queries, keys, values, mask.bias, rules.vector)
    compiling = torch.compiler.is_compiling()
    if not compiling and (transforms_are_active() or any(has_tangent(tensor) for tensor in call)):
        return call.attend(mask, rules)
    if block is None and is_fusable(queries, keys, values, mask, rules):
        return attend_fused(queries, keys, values, mask, rules)
    if compiling:
        return _unrolled(call, mask, rules, block)
    heads: Tensor = _InBlocks.apply(*call, mask._replace(bias=None), rules._replace(vector=None), block)
    return heads


def attend_one_query(
    queries: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], mask: Mask, rules: Rules
) -> Tensor:
    """Heads (B, H, 1, dv), of the keys and values of the past and the new ones: (B, G, Lp, n) and (B, G, Lk - Lp, n).

    They are not joined, and each is read once.
    """
    keys, values = ([zero_past(parts[0], mask), *parts[1:]] for parts in (keys, values))
    return attend_at_once(queries, keys, values, mask, rules)


def _unrolled(call: Call, mask: Mask, rules: Rules, block: int | None) -> Tensor:
    """Heads (B, H, Lq, dv) as a compiler can take them: blocks of queries, each with all heads, joined at the end."""
    query_len = call.queries.shape[2]
    if block is None:
        batch, num_heads = call.queries.shape[:2]
        per_query = batch * num_heads * call.keys.shape[2] * _bytes_per_score(call)
        block = max(query_block(query_len, per_query, BUDGET), -(-query_len // MOST_COMPILED))
    every = slice(0, call.queries.shape[0]), slice(0, call.queries.shape[1]), slice(0, call.keys.shape[1])
    pieces = [Piece(*every, part, slice(0, call.keys.shape[2])) for part in query_blocks(query_len, block)]
    if len(pieces) <= 1:
        return call.attend(mask, rules)
    if rules.dropout and mask.keep is None:  # a compiler draws anew what it computes anew
        return torch.cat([call.attend(mask, rules, piece) for piece in pieces], dim=2)

    def attend(piece: Piece, *tensors: Tensor) -> Tensor:
        return Call(*tensors).attend(mask, rules, piece)

    return torch.cat([checkpoint(attend, piece, *call, use_reentrant=False) for piece in pieces], dim=2)


def _pieces(call: Call, mask: Mask, block: int | None) -> list[Piece]:
    """The pieces of a call, as many heads and items at once as fit the budget; forced blocks are single heads."""
    batch, num_heads, query_len = call.queries.shape[:3]
    num_groups, key_len = call.keys.shape[1:3]
    of_group = num_heads // num_groups
    per_query = of_group * key_len * _bytes_per_score(call)
    at_once = 1
    if block is None:
        block = query_block(query_len, per_query, BUDGET)
        at_once = max(1, BUDGET // max(1, per_query * block))
    groups_at_once = min(num_groups, at_once)
    varied = mask.reach is not None and max(len(bound) for bound in mask.reach) > 1
    apart = at_once < num_groups or (varied and num_heads * query_len * key_len >= APART)
    items_at_once = 1 if apart else max(1, at_once // num_groups)
    pieces = []
    for items in query_blocks(batch, items_at_once):
        for groups in query_blocks(num_groups, groups_at_once):
            heads = slice(groups.start * of_group, groups.stop * of_group)
            for queries in query_blocks(query_len, block):
                keys = slice(0, key_len) if mask.reach is None else mask.reach.keys(items, queries)
                pieces.append(Piece(items, heads, groups, queries, keys))
    return pieces


def _bytes_per_score(call: Call) -> int:
    """In at least float32; an additive score has a hidden layer for each."""
    return max(4, call.queries.element_size()) * (1 if call.vector is None else call.queries.shape[3])


class _InBlocks(torch.autograd.Function):
    """Heads, piece by piece; backwards each piece is computed again, and nothing of it is kept but its gradients."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, mask, rules, block = arguments
        call = Call(*tensors)
        ctx.save_for_backward(*call)
        ctx.pieces, ctx.mask, ctx.rules = _pieces(call, mask, block), mask, rules
        ctx.setting = _Setting.of(call.queries, random=rules.dropout > 0.0 and mask.keep is None)
        batch, num_heads, query_len = call.queries.shape[:3]
        width = call.values.shape[3]
        heads: Tensor | None = None
        for piece in ctx.pieces:
            part = call.attend(mask, rules, piece)
            if heads is None:
                heads = _empty(part, batch, num_heads, query_len, width)
            piece.of_queries(heads).copy_(part)
        return _empty(call.values, batch, num_heads, query_len, width) if heads is None else heads

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        call = Call(*ctx.saved_tensors)
        with ctx.setting.again():
            # PyTorch records what a backward pass does only where someone will differentiate it again.
            way = _recorded_gradients if torch.is_grad_enabled() else _gradients
            found = way(ctx, call, gradients[0])
        return (*found, None, None, None)


def _gradients(ctx: Any, call: Call, d_heads: Tensor) -> list[Tensor | None]:
    """The gradient of each tensor of the call that needs one, added up in at least float32."""
    needed = ctx.needs_input_grad[: len(call)]
    sums = [_zeros(tensor) if wanted else None for tensor, wanted in zip(call, needed, strict=True)]
    for piece in ctx.pieces:
        part_of_each = (piece.of_queries, piece.of_keys, piece.of_keys, piece.of_scores, _whole)
        parts = [None if x is None else part(x).detach() for x, part in zip(call, part_of_each, strict=True)]
        with torch.enable_grad():
            leaves = [x.requires_grad_() for x, wanted in zip(parts, needed, strict=True) if wanted and x is not None]
            mask = piece.of_mask(ctx.mask)
            heads = Call(*parts).attend(mask, ctx.rules)  # type: ignore[arg-type]  # as many as a Call has fields
        found = torch.autograd.grad(heads, leaves, piece.of_queries(d_heads), materialize_grads=True)
        wanted_sums = [(total, part) for total, part in zip(sums, part_of_each, strict=True) if total is not None]
        for (total, part), gradient in zip(wanted_sums, found, strict=True):
            part(total).add_(gradient)
    return [None if total is None else total.to(x.dtype) for total, x in zip(sums, call, strict=True)]  # type: ignore[union-attr]  # None goes with None


def _recorded_gradients(ctx: Any, call: Call, d_heads: Tensor) -> list[Tensor | None]:
    """The same as functions of the call's tensors and of `d_heads`, to be differentiated again; it keeps the scores."""
    needed = ctx.needs_input_grad[: len(call)]
    leaves = [x for x, wanted in zip(call, needed, strict=True) if wanted and x is not None]
    heads = [call.attend(ctx.mask, ctx.rules, piece) for piece in ctx.pieces]
    parts = [piece.of_queries(d_heads) for piece in ctx.pieces]
    zeros = [(x * 0.0).sum() for x in leaves]  # where there is no piece, the gradient is one of nothing
    found = iter(
        torch.autograd.grad(
            [*heads, *zeros], leaves, [*parts, *map(torch.ones_like, zeros)], create_graph=True, materialize_grads=True
        )
    )
    return [next(found) if wanted else None for wanted in needed]


def _whole(x: Tensor) -> Tensor:
    return x


def _empty(like: Tensor, batch: int, num_heads: int, length: int, width: int) -> Tensor:
    """(B, H, L, width) that lies in memory as (B, L, H, width), so that merging the heads copies nothing."""
    return like.new_empty((batch, length, num_heads, width)).transpose(1, 2)


def _zeros(x: Tensor | None) -> Tensor | None:
    """Zeros of the shape of x and its order in memory, in at least float32."""
    return None if x is None else torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))


class _Setting(NamedTuple):
    """What a function depends on besides its arguments: autocast, and random numbers if it draws any."""

    device_type: str
    autocast: tuple[torch.dtype, bool]
    state: Any
    device_states: Any

    @classmethod
    def of(cls, x: Tensor, *, random: bool) -> _Setting:
        kind = x.device.type
        autocast = (torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        return cls(kind, autocast, torch.get_rng_state() if random else None, get_device_states(x) if random else None)

    @contextmanager
    def again(self) -> Iterator[None]:
        """As it was then; and afterwards as it is now."""
        dtype, enabled = self.autocast
        with torch.autocast(self.device_type, dtype, enabled=enabled):
            if self.state is None:
                yield
                return
            devices, states = self.device_states
            with torch.random.fork_rng(devices, device_type=self.device_type if devices else "cuda"):
                torch.set_rng_state(self.state)
                set_device_states(devices, states, device_type=self.device_type)
                yield
