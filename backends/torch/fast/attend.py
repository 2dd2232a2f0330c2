"""Attention in PyTorch from `queries`, `keys` and `values` to `heads`, without an array of all scores.

PyTorch's fused kernel computes it where it follows the definition (`fused.py`). Elsewhere it is computed one block of
queries after the other, by the kernel or by the stages, and the backward pass computes each block again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states

from backends.torch.fast.at_once import attend_at_once
from backends.torch.fast.fused import (
    APART,
    attend_fused,
    attend_fused_parts,
    fused,
    is_fusable,
    is_fusable_in_blocks,
)
from backends.torch.ops.attention import Score
from backends.torch.ops.framework import has_tangent, transforms_are_active
from backends.torch.ops.masks import Mask, cut, part_of
from mha_core.call.blocks import Block, Operands, query_blocks
from mha_core.call.blocks import query_block as fitting_block

BUDGET = 2**22
"""Bytes of scores in one block; a processor's caches hold two or three arrays of this size."""

FUSED_QUERIES = 128
"""Queries in a block that the fused kernel computes: with a window, more of them reach keys that few need."""

Item = TypeVar("Item")


class Floats(NamedTuple, Generic[Item]):
    """The differentiable tensors of one call. Other values, such as gradients, may stand in the tensors' places.

    queries: (B, H, Lq, d). keys, values: (B, G, Lk, d), (B, G, Lk, dv), past and new ones joined. vector: w of
    the additive score, or None. bias: the additive bias of the mask, or None.
    """

    queries: Item
    keys: Item
    values: Item
    vector: Item
    bias: Item


class Constants(NamedTuple):
    """The arguments of one call that have no gradients; `mask` is without its bias, `score` without its vector.

    rate: the dropout rate; 0 outside training.
    fused: whether PyTorch's scaled_dot_product_attention computes the blocks.
    """

    mask: Mask
    score: Score
    rate: float
    fused: bool = False

    @property
    def draws(self) -> bool:
        """Return whether dropout draws random numbers."""
        return self.rate > 0.0 and self.mask.keep is None


def attend_in_blocks(
    operands: Operands[Tensor],
    score: Score,
    mask: Mask,
    dropout: float,
    training: bool,
    *,
    query_block: int | None = None,
) -> Tensor:
    """Return heads (B, H, Lq, dv), without ever storing all scores (B, H, Lq, Lk).

    Args:
        operands: queries (B, H, Lq, d); keys (B, G, L, d) and values (B, G, L, dv), each as one array, or as several
            if joining these would be slow, as in a step of decoding.
        score, mask: the score function and the mask of the call.
        dropout, training: the rate of dropout, which acts only if `training` is True.
        query_block: how many queries to compute at once. None: all queries in the fused kernel if it supports the call,
            otherwise as many as fit in the memory budget.
    """
    rate, compiling = dropout if training else 0.0, torch.compiler.is_compiling()
    tensors = (operands.queries, operands.keys[0], operands.values[0], score.vector, mask.bias)
    given = (*tensors, *operands.keys[1:], *operands.values[1:])
    has_numbers = compiling or not (transforms_are_active() or any(map(has_tangent, given)))
    if len(operands.keys) > 1:
        apart = None if compiling or not has_numbers else attend_fused_parts(operands, score, mask, rate)
        return attend_at_once(operands, score, mask, dropout, training) if apart is None else apart
    if has_numbers and query_block is None and is_fusable(operands, score, mask, rate):
        fused_heads = attend_fused(*tensors[:3], score.scale, mask)
        if fused_heads is not None:
            return fused_heads
    floats: Floats[Any] = Floats(*tensors)
    constants = Constants(mask._replace(bias=None), score._replace(vector=None), rate)
    if not has_numbers:
        return _attend(floats, constants)
    if compiling:  # in one block, or in those that are asked for: sizes may be symbols, of which no number of blocks is
        return _attend(floats, constants) if query_block is None else _unrolled(floats, constants, query_block)
    if query_block is None and is_fusable_in_blocks(operands, score, mask, rate):
        constants = constants._replace(fused=True)
    heads: Tensor = _InBlocks.apply(*floats, constants, query_block)
    return heads


def _attend(floats: Floats[Any], constants: Constants) -> Tensor:
    """Heads (B, H, Lq, dv) of a call, or of a block of one: fused, or with all its scores in one array."""
    if constants.fused and floats.keys.shape[2]:
        return fused(floats.queries, floats.keys, floats.values, constants.score.scale, constants.mask)
    operands = Operands(floats.queries, (floats.keys,), (floats.values,))
    score = constants.score._replace(vector=floats.vector)
    mask = constants.mask._replace(bias=floats.bias)
    return attend_at_once(operands, score, mask, constants.rate, constants.rate > 0.0)


def _floats_of(floats: Floats[Any], block: Block, of_group: int) -> Floats[Any]:
    """Views of the parts that belong to a block; None stays None. `of_group` query heads share a key head."""
    groups = slice(block.heads.start // of_group, block.heads.stop // of_group)
    queries, keys, values, vector, bias = floats
    return Floats(
        None if queries is None else queries[block.items, block.heads, block.queries],
        None if keys is None else keys[block.items, groups, block.keys],
        None if values is None else values[block.items, groups, block.keys],
        vector,
        None if bias is None else cut(bias, block),
    )


def _constants_of(constants: Constants, block: Block) -> Constants:
    return constants._replace(mask=part_of(constants.mask, block))


def _of_group(floats: Floats[Any]) -> int:
    """H / G: how many query heads share a key head."""
    return floats.queries.shape[1] // floats.keys.shape[1]


def _unrolled(floats: Floats[Any], constants: Constants, query_block: int) -> Tensor:
    """Heads (B, H, Lq, dv) for torch.compile: blocks of queries with all heads, each written out, joined at the end."""
    batch, num_heads, query_len = floats.queries.shape[:3]
    key_len, of_group = floats.keys.shape[2], _of_group(floats)
    every = slice(0, batch), slice(0, num_heads)
    blocks = [Block(*every, queries, slice(0, key_len)) for queries in query_blocks(query_len, query_block)]
    if len(blocks) <= 1:
        return _attend(floats, constants)

    def attend(block: Block, *tensors: Tensor) -> Tensor:
        return _attend(_floats_of(Floats(*tensors), block, of_group), _constants_of(constants, block))

    if constants.draws:  # a compiler draws anew what it computes anew
        return torch.cat([attend(block, *floats) for block in blocks], dim=2)
    return torch.cat([checkpoint(attend, block, *floats, use_reentrant=False) for block in blocks], dim=2)


def _blocks(floats: Floats[Any], constants: Constants, query_block: int | None) -> list[Block]:
    """The blocks of a call, as many heads and items at once as fit the budget; forced ones have a single key head."""
    mask = constants.mask
    batch, num_heads, query_len = floats.queries.shape[:3]
    num_groups, key_len = floats.keys.shape[1:3]
    of_group = _of_group(floats)
    per_query = of_group * key_len * _bytes_per_score(floats)
    at_once = 1
    if constants.fused:  # the kernel has blocks of its own, with all heads
        query_block, at_once = FUSED_QUERIES, batch * num_groups
    elif query_block is None:
        query_block = fitting_block(query_len, per_query, BUDGET)
        at_once = max(1, BUDGET // max(1, per_query * query_block))
    groups_at_once = min(num_groups, at_once)
    varied = mask.reach is not None and max(len(bound) for bound in mask.reach) > 1
    apart = at_once < num_groups or (varied and num_heads * query_len * key_len >= APART)
    items_at_once = 1 if apart else max(1, at_once // num_groups)
    blocks = []
    for items in query_blocks(batch, items_at_once):
        for heads in query_blocks(num_heads, groups_at_once * of_group):
            for queries in query_blocks(query_len, query_block):
                keys = slice(0, key_len) if mask.reach is None else mask.reach.keys(items, queries)
                blocks.append(Block(items, heads, queries, keys))
    return blocks


def _bytes_per_score(floats: Floats[Any]) -> int:
    """Bytes of one score in at least float32; for the additive score, of its S hidden numbers."""
    return max(4, floats.queries.element_size()) * (1 if floats.vector is None else floats.queries.shape[3])


class _InBlocks(torch.autograd.Function):
    """Heads, block by block; the backward pass computes each block again and adds up its gradients."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, constants, query_block = arguments
        floats: Floats[Any] = Floats(*tensors)
        ctx.save_for_backward(*floats)
        ctx.blocks, ctx.constants = _blocks(floats, constants, query_block), constants
        ctx.setting = _Setting.of(floats.queries, random=constants.draws)
        batch, num_heads, query_len = floats.queries.shape[:3]
        width, of_group = floats.values.shape[3], _of_group(floats)
        heads: Tensor | None = None
        for block in ctx.blocks:
            part = _attend(_floats_of(floats, block, of_group), _constants_of(constants, block))
            if heads is None:
                heads = _empty(part, batch, num_heads, query_len, width)
            heads[block.items, block.heads, block.queries] = part
        return _empty(floats.values, batch, num_heads, query_len, width) if heads is None else heads

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        floats: Floats[Any] = Floats(*ctx.saved_tensors)
        needed: Floats[bool] = Floats(*ctx.needs_input_grad[: len(floats)])
        with ctx.setting.again():
            # PyTorch enables gradients in a backward pass only if that will be differentiated again.
            way = _recorded_gradients if torch.is_grad_enabled() else _gradients
            found = way(ctx.blocks, ctx.constants, floats, needed, gradients[0])
        return (*found, None, None)


def _gradients(
    blocks: list[Block], constants: Constants, floats: Floats[Any], needed: Floats[bool], d_heads: Tensor
) -> list[Tensor | None]:
    """The gradient of each of the floats that needs one, added up in at least float32, block by block."""
    of_group = _of_group(floats)
    sums = Floats(*(_zeros(x) if wanted else None for x, wanted in zip(floats, needed, strict=True)))
    for block in blocks:
        parts: Floats[Any] = Floats(*(x if x is None else x.detach() for x in _floats_of(floats, block, of_group)))
        with torch.enable_grad():
            leaves = [x.requires_grad_() for x, wanted in zip(parts, needed, strict=True) if wanted]
            heads = _attend(parts, _constants_of(constants, block))
        d_part = d_heads[block.items, block.heads, block.queries]
        found = torch.autograd.grad(heads, leaves, d_part, materialize_grads=True)
        totals = [total for total in _floats_of(sums, block, of_group) if total is not None]
        for total, gradient in zip(totals, found, strict=True):
            total.add_(gradient)  # a view: the sum of all blocks grows with it
    return [None if total is None else total.to(x.dtype) for total, x in zip(sums, floats, strict=True)]


def _recorded_gradients(
    blocks: list[Block], constants: Constants, floats: Floats[Any], needed: Floats[bool], d_heads: Tensor
) -> list[Tensor | None]:
    """The gradients of `_gradients`, as functions that can be differentiated again; that keeps all scores."""
    of_group, constants = _of_group(floats), constants._replace(fused=False)
    leaves = [x for x, wanted in zip(floats, needed, strict=True) if wanted]
    heads = [_attend(_floats_of(floats, block, of_group), _constants_of(constants, block)) for block in blocks]
    d_parts = [d_heads[block.items, block.heads, block.queries] for block in blocks]
    zeros = [(x * 0.0).sum() for x in leaves]  # zeros that depend on the leaf, for calls without a block
    d_zeros = [torch.ones_like(zero) for zero in zeros]
    found = iter(
        torch.autograd.grad([*heads, *zeros], leaves, [*d_parts, *d_zeros], create_graph=True, materialize_grads=True)
    )
    return [next(found) if wanted else None for wanted in needed]


def _empty(like: Tensor, batch: int, num_heads: int, length: int, width: int) -> Tensor:
    """(B, H, L, width) that lies in memory as (B, L, H, width), so that merging the heads copies nothing."""
    return like.new_empty((batch, length, num_heads, width)).transpose(1, 2)


def _zeros(x: Tensor) -> Tensor:
    """Zeros of the shape of x and its order in memory, in at least float32."""
    return torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))


class _Setting(NamedTuple):
    """Autocast, and the random state if dropout draws: with them a block is computed again as in the forward pass."""

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
        """Restore autocast and random state of the forward pass; put back the current ones on exit."""
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
