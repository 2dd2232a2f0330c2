"""Attention in blocks of queries done wrong.

The block sizes here are small, so that small cases see what goes wrong between blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug
from mha_core import AttentionMask
from mha_core.call.blocks import Reach, query_blocks, reach
from mha_core.call.masks import additive_bias, allowed_keys
from mha_core.call.sizes import CallSizes
from mha_core.reference import forward
from mha_core.reference.state import State, Step

QUERIES, KEYS = 2, 3
"""Queries and keys of a block, if `in_blocks_of` does not say another size."""

_SIZES = ContextVar("_SIZES", default=(QUERIES, KEYS))


def queries_of_block() -> int:
    return _SIZES.get()[0]


def keys_of_block() -> int:
    return _SIZES.get()[1]


LAST_FIX = "Compute the last block too, with just the queries and keys that are left for it."
RANGE_FIX = (
    "A block needs every key that any of its queries, of any item in it, may attend to: least first to most stop."
)
SKIP_FIX = "Skip a block only if none of its queries, of any item in it, has a key."
POSITION_FIX = "Query i of a block that begins at query s stands at position query_offset + s + i."


def bug_of_blocks(
    id: str, sentence: str, fix: str, forward: Mapping[str, Step], seen_in: str = "", *, stage: str = "weights"
) -> Bug:
    return Bug(id, sentence, stage, fix, forward=forward, seen_in=seen_in)


def in_blocks_of(bug: Bug, size: int) -> Bug:
    """`bug` with blocks of `size` queries and keys; cases with fewer can't show it."""

    def sized(step: Step) -> Step:
        def run(state: State) -> Any:
            token = _SIZES.set((size, size))
            try:
                return step(state)
            finally:
                _SIZES.reset(token)

        return run

    return replace(
        bug,
        id=f"{bug.id}-of-{size}",
        sentence=f"In blocks of {size}: {bug.sentence[0].lower()}{bug.sentence[1:]}",
        forward={name: sized(step) for name, step in bug.forward.items()},
        backward={name: sized(step) for name, step in bug.backward.items()},
    )


# Blocks of queries --------------------------------------------------------------------------------


def blocks_of_queries(state: State) -> list[slice]:
    return query_blocks(state.sizes.query_len, queries_of_block())


def _allowed_in(state: State, rule: Callable[[State, slice], NDArray]) -> NDArray:
    """The mask, AND `rule(state, queries)` in each block of queries; the rule gives bool, broadcastable to it."""
    found = forward.allowed(state).copy()
    for queries in blocks_of_queries(state):
        found[:, :, queries] &= rule(state, queries)
    return found


def _reach(state: State) -> Reach:
    """The interval first <= j < stop of keys that lengths and positions leave to each query, both (B, Lq)."""
    shape = (state.sizes.batch, state.sizes.query_len)
    return Reach(*(np.broadcast_to(end, shape) for end in reach(state.inputs.mask, state.sizes)))


def _keys_within(keys: Callable[[State, Reach, slice], tuple[NDArray, NDArray]]) -> Mapping[str, Step]:
    """A block gets the keys first <= j < stop alone; `keys(state, reach, queries)` gives both, (B, 1) or (1, 1)."""

    def rule(state: State, queries: slice) -> NDArray:
        first, stop = keys(state, _reach(state), queries)
        j = np.arange(state.sizes.key_len)
        within: NDArray = (j >= first) & (j < stop)
        return within[:, None, None]

    return {"allowed": lambda state: _allowed_in(state, rule)}


def _ends(reached: Reach, queries: slice) -> tuple[NDArray, NDArray]:
    """The right ends, (B, 1): least first and most stop of the queries that have a key."""
    first, stop = reached.first[:, queries], reached.stop[:, queries]
    has_key = first < stop
    least = first.min(axis=1, keepdims=True, where=has_key, initial=np.iinfo(np.int64).max)
    return least, stop.max(axis=1, keepdims=True, where=has_key, initial=0)


def _to_query(index: int) -> Callable[[State, Reach, slice], tuple[NDArray, NDArray]]:
    """The keys up to where those of query `index` of the block end."""
    return lambda s, reached, queries: (_ends(reached, queries)[0], reached.stop[:, queries][:, [index]])


def _from_last_query(state: State, reached: Reach, queries: slice) -> tuple[NDArray, NDArray]:
    return reached.first[:, queries][:, [-1]], _ends(reached, queries)[1]


def _one_short(state: State, reached: Reach, queries: slice) -> tuple[NDArray, NDArray]:
    first, stop = _ends(reached, queries)
    return first, stop - 1


def _of_first_item(state: State, reached: Reach, queries: slice) -> tuple[NDArray, NDArray]:
    first, stop = _ends(reached, queries)
    return first[:1], stop[:1]


def _skipped_by(index: int) -> Mapping[str, Step]:
    """A block is skipped where query `index` of it has no key."""

    def rule(state: State, queries: slice) -> NDArray:
        has_key: NDArray = forward.allowed(state)[:, :, queries][:, :, [index]].any(axis=-1, keepdims=True)
        return has_key

    return {"allowed": lambda state: _allowed_in(state, rule)}


def _skipped_by_first_item(state: State, queries: slice) -> NDArray:
    has_key: NDArray = forward.allowed(state)[:1, :, queries].any(axis=(1, 2, 3), keepdims=True)
    return has_key


def _open_inside(state: State) -> NDArray:
    """A mask in which lengths and positions exclude only keys that no query of the block reaches."""
    mask = state.inputs.mask
    rest = replace(mask, valid_lens=None, causal=False, window=None)
    found = allowed_keys(rest, state.sizes, state.config.num_heads).copy()
    j = np.arange(state.sizes.key_len)
    for queries in blocks_of_queries(state):
        first, stop = _ends(_reach(state), queries)
        found[:, :, queries] &= ((j >= first) & (j < stop))[:, None, None]
    return found


def _at_rows(rows: Callable[[CallSizes], NDArray]) -> Mapping[str, Step]:
    """Query i is masked by position as if it were query `rows(sizes)[i]`."""

    def allowed(state: State) -> NDArray:
        mask, sizes, heads = state.inputs.mask, state.sizes, state.config.num_heads
        if not mask.has_positions:
            return forward.allowed(state)
        chosen = rows(sizes)
        longer = sizes._replace(query_len=int(chosen.max(initial=-1)) + 1)
        by_position = allowed_keys(replace(mask, valid_lens=None, allowed=None, bias=None), longer, heads)
        rest = allowed_keys(replace(mask, causal=False, window=None), sizes, heads)
        return rest & by_position[:, :, chosen]

    return {"allowed": allowed}


def _from_zero(sizes: CallSizes) -> NDArray:
    return np.arange(sizes.query_len) % queries_of_block()


def _last_moved_back(sizes: CallSizes) -> NDArray:
    """The last partial block is moved back so that it is a whole one, but masked as if it were not."""
    rows, behind = np.arange(sizes.query_len), -sizes.query_len % queries_of_block()
    if behind and sizes.query_len >= queries_of_block():
        rows[-queries_of_block() :] += behind
    return rows


def _last_queries_dropped(state: State, queries: slice) -> NDArray:
    return np.full((1, 1, 1, 1), queries.stop - queries.start == queries_of_block())


def _rows_of_first_query(sizes: CallSizes) -> NDArray:
    """(Lq,): the first query of the block that the query is in."""
    return np.arange(sizes.query_len) // queries_of_block() * queries_of_block()


def _bias_of_first_query(state: State) -> NDArray:
    if state.inputs.mask.bias is None:
        return forward.scores(state)
    bias = additive_bias(state.inputs.mask)
    if bias.shape[2] > 1:
        bias = bias[:, :, _rows_of_first_query(state.sizes)]
    return state["capped"] + bias


def _allowed_of_first_query(state: State) -> NDArray:
    mask, sizes, heads = state.inputs.mask, state.sizes, state.config.num_heads
    given = allowed_keys(AttentionMask(allowed=mask.allowed), sizes, heads)
    rest = allowed_keys(replace(mask, allowed=None), sizes, heads)
    return rest & given[:, :, _rows_of_first_query(sizes)]


def _keep_of_first_block(state: State) -> NDArray:
    keep = state.inputs.dropout_keep
    if keep is None:
        return forward.kept_weights(state)
    rows = _from_zero(state.sizes)
    return state["weights"] * keep[:, :, rows] / (1.0 - state.config.dropout)


BUGS = (
    bug_of_blocks(
        "block-of-last-queries-dropped",
        "Queries behind the last whole block are not computed.",
        LAST_FIX,
        {"allowed": lambda s: _allowed_in(s, _last_queries_dropped)},
    ),
    bug_of_blocks(
        "block-of-last-queries-moved-back",
        "The last block of queries is read where a whole one fits (a clamped slice), but masked as if it were not.",
        POSITION_FIX,
        _at_rows(_last_moved_back),
    ),
    bug_of_blocks(
        "block-position-from-zero",
        "Every block of queries is masked as if it began at query 0.",
        POSITION_FIX,
        _at_rows(_from_zero),
    ),
    bug_of_blocks("block-keys-one-short", "A block's keys end one too early.", RANGE_FIX, _keys_within(_one_short)),
    bug_of_blocks(
        "block-keys-to-first-query",
        "A block's keys end where those of its first query do.",
        RANGE_FIX,
        _keys_within(_to_query(0)),
    ),
    bug_of_blocks(
        "block-keys-to-last-query",
        "A block's keys end where those of its last query do.",
        RANGE_FIX,
        _keys_within(_to_query(-1)),
    ),
    bug_of_blocks(
        "block-keys-from-last-query",
        "A block's keys begin where those of its last query do.",
        RANGE_FIX,
        _keys_within(_from_last_query),
    ),
    bug_of_blocks(
        "block-keys-of-first-item",
        "A block's keys are told by batch item 0, for all items.",
        RANGE_FIX,
        _keys_within(_of_first_item),
    ),
    bug_of_blocks(
        "block-not-masked-inside",
        "Each query of a block attends to all keys of its block.",
        "Mask inside a block, unless each of its queries may attend to all of its keys.",
        {"allowed": _open_inside},
        "pytorch/executorch#21857",
    ),
    bug_of_blocks(
        "block-skipped-by-first-query", "A block is skipped if its first query has no key.", SKIP_FIX, _skipped_by(0)
    ),
    bug_of_blocks(
        "block-skipped-by-last-query", "A block is skipped if its last query has no key.", SKIP_FIX, _skipped_by(-1)
    ),
    bug_of_blocks(
        "block-skipped-by-first-item",
        "A block is skipped for all items if batch item 0 has no key in it.",
        SKIP_FIX,
        {"allowed": lambda s: _allowed_in(s, _skipped_by_first_item)},
    ),
    bug_of_blocks(
        "block-bias-of-first-query",
        "Every query of a block gets the bias of the block's first.",
        "Take the bias's rows of all queries of the block, unless it has one for all.",
        {"scores": _bias_of_first_query},
        "google-research/tabfm#40",
        stage="scores",
    ),
    bug_of_blocks(
        "block-allowed-of-first-query",
        "Every query of a block gets the allowed keys of the block's first.",
        "Take the rows of `allowed` of all queries of the block, unless it has one for all.",
        {"allowed": _allowed_of_first_query},
        "google-research/tabfm#40",
    ),
    bug_of_blocks(
        "block-dropout-of-first",
        "Every block of queries drops what the first block drops.",
        "Take each block's own rows of the keep-mask, or draw by the queries' places in the whole call.",
        {"kept_weights": _keep_of_first_block},
        stage="heads",
    ),
)
