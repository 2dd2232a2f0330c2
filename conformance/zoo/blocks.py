"""Attention in blocks done wrong: blocks of queries, blocks of keys, and the parts of a decoding step.

The block sizes here are small, so that small cases see what goes wrong between blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.bug import Bug
from conformance.zoo.scores import bias_of
from mha_core import AttentionMask, reference
from mha_core.blocks import Reach, query_blocks, reach
from mha_core.checks import CallSizes
from mha_core.masks import allowed_keys
from mha_core.reference import State, Step

QUERIES = 2
"""Queries of a block."""

KEYS = 3
"""Keys of a block."""

LAST_FIX = "Compute the last block too, with just the queries and keys that are left for it."
RANGE_FIX = (
    "A block needs every key that any of its queries, of any item in it, may attend to: least first to most stop."
)
SKIP_FIX = "Skip a block only if none of its queries, of any item in it, has a key."
POSITION_FIX = "Query i of a block that begins at query s stands at position query_offset + s + i."
ONLINE_FIX = (
    "Keep the maximum m and the sum l so far; for a block with the maximum n, multiply l and the weighted sum so far "
    "by exp(m - max(m, n)) before its own are added, and divide by l at the end."
)
JOIN_FIX = "Take one softmax over the scores of past and new keys together, then add up the two weighted sums."


def _bug(
    id: str, sentence: str, fix: str, forward: Mapping[str, Step], seen_in: str = "", stage: str = "weights"
) -> Bug:
    return Bug(id, sentence, stage, fix, forward=forward, seen_in=seen_in)


# Blocks of queries --------------------------------------------------------------------------------


def blocks_of_queries(state: State) -> list[slice]:
    return query_blocks(state.sizes.query_len, QUERIES)


def _allowed_in(state: State, rule: Callable[[State, slice], NDArray]) -> NDArray:
    """The mask, AND `rule(state, queries)` in each block of queries; the rule gives bool, broadcastable to it."""
    found = reference.allowed(state).copy()
    for queries in blocks_of_queries(state):
        found[:, :, queries] &= rule(state, queries)
    return found


def _reach(state: State) -> Reach:
    """What lengths and positions leave to each query, both (B, Lq)."""
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
        has_key: NDArray = reference.allowed(state)[:, :, queries][:, :, [index]].any(axis=-1, keepdims=True)
        return has_key

    return {"allowed": lambda state: _allowed_in(state, rule)}


def _skipped_by_first_item(state: State, queries: slice) -> NDArray:
    has_key: NDArray = reference.allowed(state)[:1, :, queries].any(axis=(1, 2, 3), keepdims=True)
    return has_key


def _open_inside(state: State) -> NDArray:
    """Within the keys of its block, no query is held back by lengths or positions."""
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
            return reference.allowed(state)
        chosen = rows(sizes)
        longer = sizes._replace(query_len=int(chosen.max(initial=-1)) + 1)
        by_position = allowed_keys(replace(mask, valid_lens=None, allowed=None, bias=None), longer, heads)
        rest = allowed_keys(replace(mask, causal=False, window=None), sizes, heads)
        return rest & by_position[:, :, chosen]

    return {"allowed": allowed}


def _from_zero(sizes: CallSizes) -> NDArray:
    return np.arange(sizes.query_len) % QUERIES


def _last_moved_back(sizes: CallSizes) -> NDArray:
    """The last partial block is read further in front, where a whole one fits, and masked as if it were not."""
    rows, behind = np.arange(sizes.query_len), -sizes.query_len % QUERIES
    if behind and sizes.query_len >= QUERIES:
        rows[-QUERIES:] += behind
    return rows


def _last_queries_dropped(state: State, queries: slice) -> NDArray:
    return np.full((1, 1, 1, 1), queries.stop - queries.start == QUERIES)


def _last_keys_dropped(state: State) -> NDArray:
    key_len = state.sizes.key_len
    return reference.allowed(state) & (np.arange(key_len) < key_len - key_len % KEYS)


def _rows_of_first_query(sizes: CallSizes) -> NDArray:
    """(Lq,): the first query of the block that the query is in."""
    return np.arange(sizes.query_len) // QUERIES * QUERIES


def _bias_of_first_query(state: State) -> NDArray:
    bias = bias_of(state)
    if np.ndim(bias) == 4 and np.shape(bias)[2] > 1:
        bias = np.asarray(bias)[:, :, _rows_of_first_query(state.sizes)]
    return reference.cap(state, reference.similarity(state)) + bias


def _allowed_of_first_query(state: State) -> NDArray:
    mask, sizes, heads = state.inputs.mask, state.sizes, state.config.num_heads
    given = allowed_keys(AttentionMask(allowed=mask.allowed), sizes, heads)
    rest = allowed_keys(replace(mask, allowed=None), sizes, heads)
    return rest & given[:, :, _rows_of_first_query(sizes)]


def _keep_of_first_block(state: State) -> NDArray:
    keep = state.inputs.dropout_keep
    if keep is None:
        return reference.kept_weights(state)
    rows = _from_zero(state.sizes)
    return state["weights"] * keep[:, :, rows] / (1.0 - state.config.dropout)


def _block_maximum(state: State) -> NDArray:
    """One maximum for all queries of a block: what lies far below it underflows, and 0 / 0 becomes 0."""
    scores = open_scores(state)
    highest = scores.copy()
    for queries in blocks_of_queries(state):
        highest[:, :, queries] = scores[:, :, queries].max(axis=(2, 3), keepdims=True, initial=-np.inf)
    return _divided(state, np.exp(scores - finite(highest)))


QUERY_BLOCKS = (
    _bug(
        "block-of-last-queries-dropped",
        "Queries behind the last whole block are not computed.",
        LAST_FIX,
        {"allowed": lambda s: _allowed_in(s, _last_queries_dropped)},
    ),
    _bug(
        "block-of-last-queries-moved-back",
        "The last block of queries is read where a whole one fits (a clamped slice), but masked as if it were not.",
        POSITION_FIX,
        _at_rows(_last_moved_back),
    ),
    _bug(
        "block-position-from-zero",
        "Every block of queries is masked as if it began at query 0.",
        POSITION_FIX,
        _at_rows(_from_zero),
    ),
    _bug("block-keys-one-short", "A block's keys end one too early.", RANGE_FIX, _keys_within(_one_short)),
    _bug(
        "block-keys-to-first-query",
        "A block's keys end where those of its first query do.",
        RANGE_FIX,
        _keys_within(_to_query(0)),
    ),
    _bug(
        "block-keys-to-last-query",
        "A block's keys end where those of its last query do.",
        RANGE_FIX,
        _keys_within(_to_query(-1)),
    ),
    _bug(
        "block-keys-from-last-query",
        "A block's keys begin where those of its last query do.",
        RANGE_FIX,
        _keys_within(_from_last_query),
    ),
    _bug(
        "block-keys-of-first-item",
        "A block's keys are told by batch item 0, for all items.",
        RANGE_FIX,
        _keys_within(_of_first_item),
    ),
    _bug(
        "block-not-masked-inside",
        "Each query of a block attends to all keys of its block.",
        "Mask inside a block, unless each of its queries may attend to all of its keys.",
        {"allowed": _open_inside},
        "pytorch/executorch#21857",
    ),
    _bug("block-skipped-by-first-query", "A block is skipped if its first query has no key.", SKIP_FIX, _skipped_by(0)),
    _bug("block-skipped-by-last-query", "A block is skipped if its last query has no key.", SKIP_FIX, _skipped_by(-1)),
    _bug(
        "block-skipped-by-first-item",
        "A block is skipped for all items if batch item 0 has no key in it.",
        SKIP_FIX,
        {"allowed": lambda s: _allowed_in(s, _skipped_by_first_item)},
    ),
    _bug(
        "block-bias-of-first-query",
        "Every query of a block gets the bias of the block's first.",
        "Take the bias's rows of all queries of the block, unless it has one for all.",
        {"scores": _bias_of_first_query},
        "google-research/tabfm#40",
        "scores",
    ),
    _bug(
        "block-allowed-of-first-query",
        "Every query of a block gets the allowed keys of the block's first.",
        "Take the rows of `allowed` of all queries of the block, unless it has one for all.",
        {"allowed": _allowed_of_first_query},
        "google-research/tabfm#40",
    ),
    _bug(
        "block-dropout-of-first",
        "Every block of queries drops what the first block drops.",
        "Take each block's own rows of the keep-mask, or draw by the queries' places in the whole call.",
        {"kept_weights": _keep_of_first_block},
        stage="heads",
    ),
)


# Blocks of keys -----------------------------------------------------------------------------------


def open_scores(state: State) -> NDArray:
    return np.where(state["allowed"], state["scores"], -np.inf)


def finite(highest: NDArray) -> NDArray:
    """A maximum that can be subtracted, also where there is no key."""
    return np.where(np.isneginf(highest), 0.0, highest)


def _divided(state: State, exponentials: NDArray, total: NDArray | None = None) -> NDArray:
    """By their own sum, or another one; 0 where a key is excluded or the sum is 0."""
    total = exponentials.sum(axis=-1, keepdims=True) if total is None else total
    return np.where(state["allowed"], exponentials / np.where(total == 0.0, 1.0, total), 0.0)


def _key_blocks(state: State) -> list[slice]:
    return query_blocks(state.sizes.key_len, KEYS)


def _block_maxima(state: State) -> NDArray:
    """(B, H, Lq, Lk): of the block of keys that the key is in."""
    scores = open_scores(state)
    highest = scores.copy()
    for keys in _key_blocks(state):
        highest[..., keys] = scores[..., keys].max(axis=-1, keepdims=True, initial=-np.inf)
    return highest


def _maximum_so_far(state: State) -> NDArray:
    """(B, H, Lq, Lk): up to the end of the block of keys that the key is in."""
    return finite(np.maximum.accumulate(_block_maxima(state), axis=-1))


def _never_rescaled(state: State) -> NDArray:
    return _divided(state, np.exp(open_scores(state) - _maximum_so_far(state)))


def _sum_alone_rescaled(state: State) -> NDArray:
    scores = open_scores(state)
    right = np.exp(scores - finite(scores.max(axis=-1, keepdims=True, initial=-np.inf)))
    return _divided(state, np.exp(scores - _maximum_so_far(state)), right.sum(axis=-1, keepdims=True))


def _maximum_of_each_block(state: State) -> NDArray:
    return _divided(state, np.exp(open_scores(state) - finite(_block_maxima(state))))


def _averaged(state: State) -> NDArray:
    found = np.exp(open_scores(state) - finite(_block_maxima(state)))
    blocks = _key_blocks(state)
    for keys in blocks:
        total = found[..., keys].sum(axis=-1, keepdims=True)
        found[..., keys] /= np.where(total == 0.0, 1.0, total) * len(blocks)
    return np.where(state["allowed"], found, 0.0)


def _padding_counted(state: State) -> NDArray:
    """Zeros behind the last key, up to a whole block, score 0."""
    scores, has_key = open_scores(state), state["allowed"].any(axis=-1, keepdims=True)
    padding = -state.sizes.key_len % KEYS
    highest = scores.max(axis=-1, keepdims=True, initial=0.0 if padding else -np.inf)
    exponentials = np.exp(scores - finite(highest))
    total = exponentials.sum(axis=-1, keepdims=True) + padding * np.exp(-finite(highest))
    return _divided(state, exponentials, np.where(has_key, total, 1.0))


KEY_BLOCKS = (
    _bug(
        "block-of-last-keys-dropped",
        "Keys behind the last whole block are not attended to.",
        LAST_FIX,
        {"allowed": _last_keys_dropped},
    ),
    _bug(
        "block-padding-counted",
        "The last block of keys is filled up with zeros, and their scores of 0 count in the sum.",
        LAST_FIX,
        {"weights": _padding_counted},
        "jax-ml/jax#27224",
    ),
    _bug(
        "online-never-rescaled",
        "The online softmax does not rescale its sums when its maximum rises.",
        ONLINE_FIX,
        {"weights": _never_rescaled},
    ),
    _bug(
        "online-sum-alone-rescaled",
        "The online softmax rescales its sum and not its weighted sum when its maximum rises.",
        ONLINE_FIX,
        {"weights": _sum_alone_rescaled},
    ),
    _bug(
        "online-maximum-of-each-block",
        "Each block of keys subtracts its own maximum, and the sums are added as they are.",
        ONLINE_FIX,
        {"weights": _maximum_of_each_block},
    ),
    _bug(
        "block-softmaxes-averaged",
        "Each block of keys has a softmax of its own, and the results are averaged.",
        ONLINE_FIX,
        {"weights": _averaged},
    ),
    _bug(
        "block-maximum-shared",
        "One maximum is subtracted from all queries of a block: quieter rows underflow.",
        "Subtract from each row the maximum of its own allowed scores.",
        {"weights": _block_maximum},
    ),
)


# A decoding step ----------------------------------------------------------------------------------


def _past_and_new(weights: Callable[[State, list[slice]], NDArray]) -> Mapping[str, Step]:
    """`weights(state, [past, new])` where there is a past, and new keys."""

    def step(state: State) -> NDArray:
        past_len = state.sizes.past_len
        if not 0 < past_len < state.sizes.key_len:
            return reference.weights(state)
        return weights(state, [slice(0, past_len), slice(past_len, None)])

    return {"weights": step}


def _exponentials_of(state: State, parts: list[slice]) -> NDArray:
    """Of each part, with its own maximum subtracted."""
    scores = open_scores(state)
    for part in parts:
        scores[..., part] -= finite(scores[..., part].max(axis=-1, keepdims=True, initial=-np.inf))
    return np.exp(scores)


def _each_normalised(state: State, parts: list[slice]) -> NDArray:
    found = _exponentials_of(state, parts)
    for part in parts:
        total = found[..., part].sum(axis=-1, keepdims=True)
        found[..., part] /= np.where(total == 0.0, 1.0, total)
    return np.where(state["allowed"], found, 0.0)


STEPS = (
    _bug(
        "past-and-new-normalised-apart",
        "Past and new keys have a softmax each, and the two weighted sums are added.",
        JOIN_FIX,
        _past_and_new(_each_normalised),
    ),
    _bug(
        "past-and-new-maxima-apart",
        "Past and new keys each subtract their own maximum, and the sums are added as they are.",
        JOIN_FIX,
        _past_and_new(lambda s, parts: _divided(s, _exponentials_of(s, parts))),
    ),
)

BUGS = (*QUERY_BLOCKS, *KEY_BLOCKS, *STEPS)
