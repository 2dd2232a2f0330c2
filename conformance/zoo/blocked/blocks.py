"""Attention in blocks of queries done wrong.

The block sizes here are small, so that small cases see what goes wrong between blocks.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug, Steps, Table, after, keys_of
from conformance.zoo.forward.softmax import has_key, highest_of, open_scores
from mha_core import AttentionMask
from mha_core.call.arguments import CallSizes
from mha_core.call.blocks import Reach, query_blocks, reach
from mha_core.call.masks import additive_bias, allowed_keys
from mha_core.reference.state import State, Step

QUERIES, KEYS = 2, 3
"""Queries and keys of a block, if `in_blocks_of` does not say another size."""

_SIZES = ContextVar("_SIZES", default=(QUERIES, KEYS))


def queries_of_block() -> int:
    return _SIZES.get()[0]


def keys_of_block() -> int:
    return _SIZES.get()[1]


def in_blocks_of(bug: Bug, size: int) -> Bug:
    """Return a copy of `bug` with blocks of `size`. Only calls with at least `size` queries or keys can show it."""

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


def blocks_of_queries(state: State) -> list[slice]:
    return query_blocks(state.sizes.query_len, queries_of_block())


# The keys of a block ------------------------------------------------------------------------------

Ends = tuple[NDArray, NDArray]
"""The first key of a block, and the one where its keys stop, (B, 1) or (1, 1)."""


def _each_block(rule: Callable[[State, NDArray, slice], NDArray]) -> Steps:
    """The mask, AND `rule(state, right mask, queries)` in each block of queries, bool that broadcasts to it."""

    def allowed(state: State, right: NDArray) -> NDArray:
        found = right.copy()
        for queries in blocks_of_queries(state):
            found[:, :, queries] &= rule(state, right, queries)
        return found

    return after("allowed", allowed)


def _reach(state: State) -> Reach:
    """The interval first <= j < stop of keys that lengths and positions leave to each query, both (B, Lq)."""
    shape = (state.sizes.batch, state.sizes.query_len)
    return Reach(*(np.broadcast_to(end, shape) for end in reach(state.inputs.mask, state.sizes)))


def _ends(reached: Reach) -> Ends:
    """The right ends, (B, 1): least first and most stop of the queries that have a key."""
    has_key = reached.first < reached.stop
    least = reached.first.min(axis=1, keepdims=True, where=has_key, initial=np.iinfo(np.int64).max)
    return least, reached.stop.max(axis=1, keepdims=True, where=has_key, initial=0)


def _between(state: State, queries: slice, ends: Callable[[Reach], Ends]) -> NDArray:
    """Bool (B or 1, 1, 1, Lk): the keys between the ends, told by the reach of the block's queries."""
    reached = _reach(state)
    first, stop = ends(Reach(reached.first[:, queries], reached.stop[:, queries]))
    j = np.arange(state.sizes.key_len)
    within: NDArray = (j >= first) & (j < stop)
    return within[:, None, None]


def _within(ends: Callable[[Reach], Ends]) -> Steps:
    """A block gets the keys between `ends(the reach of its queries)` alone."""
    return _each_block(lambda s, right, queries: _between(s, queries, ends))


def _open_inside(state: State) -> NDArray:
    """A mask in which lengths and positions exclude only keys that no query of the block reaches."""
    found = keys_of(state, state.inputs.mask, valid_lens=None, causal=False, window=None).copy()
    for queries in blocks_of_queries(state):
        found[:, :, queries] &= _between(state, queries, _ends)
    return found


def _skipped_by(index: int) -> Steps:
    """A block is skipped where query `index` of it has no key."""
    return _each_block(lambda s, right, queries: right[:, :, queries][:, :, [index]].any(axis=-1, keepdims=True))


# The queries of a block ---------------------------------------------------------------------------


def _at_rows(rows: Callable[[CallSizes], NDArray]) -> Steps:
    """Query i is masked by position as if it were query `rows(sizes)[i]`."""

    def allowed(state: State, right: NDArray) -> NDArray:
        mask, chosen = state.inputs.mask, rows(state.sizes)
        longer = state.sizes._replace(query_len=int(chosen.max(initial=-1)) + 1)
        positions = replace(mask, valid_lens=None, allowed=None, bias=None)
        by_position = allowed_keys(positions, longer, state.config.num_heads)
        return keys_of(state, mask, causal=False, window=None) & by_position[:, :, chosen]

    return after("allowed", allowed, lambda s: s.inputs.mask.has_positions)


def _from_zero(sizes: CallSizes) -> NDArray:
    return np.arange(sizes.query_len) % queries_of_block()


def _last_moved_back(sizes: CallSizes) -> NDArray:
    """The last partial block is moved back so that it is a whole one, but masked as if it were not."""
    rows, behind = np.arange(sizes.query_len), -sizes.query_len % queries_of_block()
    if behind and sizes.query_len >= queries_of_block():
        rows[-queries_of_block() :] += behind
    return rows


def _rows_of_first_query(sizes: CallSizes) -> NDArray:
    """(Lq,): the first query of the block that the query is in."""
    return np.arange(sizes.query_len) // queries_of_block() * queries_of_block()


def _bias_of_first_query(state: State, right: NDArray) -> NDArray:
    bias = additive_bias(state.inputs.mask)
    if bias.shape[2] > 1:
        bias = bias[:, :, _rows_of_first_query(state.sizes)]
    return state["capped"] + bias


def _allowed_of_first_query(state: State) -> NDArray:
    given = keys_of(state, AttentionMask(allowed=state.inputs.mask.allowed))
    return keys_of(state, state.inputs.mask, allowed=None) & given[:, :, _rows_of_first_query(state.sizes)]


def _keep_of_first_block(state: State, right: NDArray) -> NDArray:
    keep = state.inputs.dropout_keep
    if keep is None:
        return right
    return state["weights"] * keep[:, :, _from_zero(state.sizes)] / (1.0 - state.config.dropout)


LAST_FIX = "Compute the last block too, with just the queries and keys that are left for it."

_last = Table("weights", LAST_FIX)
_placed = Table("weights", "Query i of a block that begins at query s stands at position query_offset + s + i.")
_range = Table(
    "weights",
    "A block needs every key that any of its queries, of any item in it, may attend to: least first to most stop.",
)
_skip = Table("weights", "Skip a block only if none of its queries, of any item in it, has a key.")

QUERY_BLOCKS = (
    _last(
        "block-of-last-queries-dropped",
        "Queries behind the last whole block are not computed.",
        _each_block(lambda s, right, queries: np.asarray(queries.stop - queries.start == queries_of_block())),
    ),
    _placed(
        "block-of-last-queries-moved-back",
        "The last block of queries is read where a whole one fits (a clamped slice), but masked as if it were not.",
        _at_rows(_last_moved_back),
    ),
    _placed(
        "block-position-from-zero",
        "Every block of queries is masked as if it began at query 0.",
        _at_rows(_from_zero),
    ),
    _range(
        "block-keys-one-short",
        "A block's keys end one too early.",
        _within(lambda reached: (_ends(reached)[0], _ends(reached)[1] - 1)),
    ),
    _range(
        "block-keys-to-first-query",
        "A block's keys end where those of its first query do.",
        _within(lambda reached: (_ends(reached)[0], reached.stop[:, [0]])),
    ),
    _range(
        "block-keys-to-last-query",
        "A block's keys end where those of its last query do.",
        _within(lambda reached: (_ends(reached)[0], reached.stop[:, [-1]])),
    ),
    _range(
        "block-keys-from-last-query",
        "A block's keys begin where those of its last query do.",
        _within(lambda reached: (reached.first[:, [-1]], _ends(reached)[1])),
    ),
    _range(
        "block-keys-of-first-item",
        "A block's keys are told by batch item 0, for all items.",
        _within(lambda reached: (_ends(reached)[0][:1], _ends(reached)[1][:1])),
    ),
    _range(
        "block-not-masked-inside",
        "Each query of a block attends to all keys of its block.",
        {"allowed": _open_inside},
        fix="Mask inside a block, unless each of its queries may attend to all of its keys.",
        seen_in="pytorch/executorch#21857",
    ),
    _skip("block-skipped-by-first-query", "A block is skipped if its first query has no key.", _skipped_by(0)),
    _skip("block-skipped-by-last-query", "A block is skipped if its last query has no key.", _skipped_by(-1)),
    _skip(
        "block-skipped-by-first-item",
        "A block is skipped for all items if batch item 0 has no key in it.",
        _each_block(lambda s, right, queries: right[:1, :, queries].any(axis=(1, 2, 3), keepdims=True)),
    ),
    _range(
        "block-bias-of-first-query",
        "Every query of a block gets the bias of the block's first.",
        after("scores", _bias_of_first_query, lambda s: s.inputs.mask.bias is not None),
        stage="scores",
        fix="Take the bias's rows of all queries of the block, unless it has one for all.",
        seen_in="google-research/tabfm#40",
    ),
    _range(
        "block-allowed-of-first-query",
        "Every query of a block gets the allowed keys of the block's first.",
        {"allowed": _allowed_of_first_query},
        fix="Take the rows of `allowed` of all queries of the block, unless it has one for all.",
        seen_in="google-research/tabfm#40",
    ),
    _range(
        "block-dropout-of-first",
        "Every block of queries drops what the first block drops.",
        after("kept_weights", _keep_of_first_block),
        stage="heads",
        fix="Take each block's own rows of the keep-mask, or draw by the queries' places in the whole call.",
    ),
)


def finite(highest: NDArray) -> NDArray:
    """Return the row maxima with 0 in place of -inf (rows without a key), so that they can be subtracted."""
    return np.where(np.isneginf(highest), 0.0, highest)


def exponentials(state: State) -> NDArray:
    """Return (B, H, Lq, Lk): exp(score - maximum of its row); 0 where a key is excluded."""
    return np.exp(open_scores(state) - finite(highest_of(open_scores(state))))


def _divided(state: State, exponentials: NDArray, total: NDArray | None = None) -> NDArray:
    """The exponentials divided by their sum, or by `total`; 0 where a key is excluded or the divisor is 0."""
    total = exponentials.sum(axis=-1, keepdims=True) if total is None else total
    return np.where(state["allowed"], exponentials / np.where(total == 0.0, 1.0, total), 0.0)


def _less(highest: Callable[[State], NDArray]) -> Steps:
    """exp(score - `highest(state)`), divided by their sum."""
    return {"weights": lambda s: _divided(s, np.exp(open_scores(s) - highest(s)))}


def _key_blocks(state: State) -> list[slice]:
    return query_blocks(state.sizes.key_len, keys_of_block())


def _maximum_in(state: State, blocks: list[slice]) -> NDArray:
    """(B, H, Lq, Lk): for each key, the maximum of the scores in its block of keys."""
    scores = open_scores(state)
    highest = scores.copy()
    for keys in blocks:
        highest[..., keys] = highest_of(scores[..., keys])
    return highest


def _maximum_so_far(state: State) -> NDArray:
    """(B, H, Lq, Lk): for each key, the maximum of the scores up to the end of its block of keys."""
    return finite(np.maximum.accumulate(_maximum_in(state, _key_blocks(state)), axis=-1))


def _maximum_of_queries(state: State) -> NDArray:
    """One maximum for all queries of a block: what lies far below it underflows, and 0 / 0 becomes 0."""
    scores = open_scores(state)
    highest = scores.copy()
    for queries in blocks_of_queries(state):
        highest[:, :, queries] = scores[:, :, queries].max(axis=(2, 3), keepdims=True, initial=-np.inf)
    return finite(highest)


def _sum_alone_rescaled(state: State) -> NDArray:
    total = exponentials(state).sum(axis=-1, keepdims=True)
    return _divided(state, np.exp(open_scores(state) - _maximum_so_far(state)), total)


def _softmax_in_each(state: State, blocks: list[slice], count: int = 1) -> NDArray:
    """A softmax in each block of keys, divided by `count`."""
    found = np.exp(open_scores(state) - finite(_maximum_in(state, blocks)))
    for keys in blocks:
        total = found[..., keys].sum(axis=-1, keepdims=True)
        found[..., keys] /= np.where(total == 0.0, 1.0, total) * count
    return np.where(state["allowed"], found, 0.0)


def _padding_counted(state: State) -> NDArray:
    """The weights if the last block is filled up with zeros, which score 0 and count in the sum."""
    scores = open_scores(state)
    padding = -state.sizes.key_len % keys_of_block()
    highest = finite(scores.max(axis=-1, keepdims=True, initial=0.0 if padding else -np.inf))
    found = np.exp(scores - highest)
    total = found.sum(axis=-1, keepdims=True) + padding * np.exp(-highest)
    return _divided(state, found, np.where(has_key(state), total, 1.0))


def _last_dropped(state: State, right: NDArray) -> NDArray:
    key_len = state.sizes.key_len
    return right & (np.arange(key_len) < key_len - key_len % keys_of_block())


ONLINE_FIX = (
    "Keep the maximum m and the sum l so far; for a block with the maximum n, multiply l and the weighted sum so far "
    "by exp(m - max(m, n)) before its own are added, and divide by l at the end."
)

_online = Table("weights", ONLINE_FIX)

KEY_BLOCKS = (
    _last(
        "block-of-last-keys-dropped",
        "Keys behind the last whole block are not attended to.",
        after("allowed", _last_dropped),
    ),
    _last(
        "block-padding-counted",
        "The last block of keys is filled up with zeros, and their scores of 0 count in the sum.",
        {"weights": _padding_counted},
        seen_in="jax-ml/jax#27224",
    ),
    _online(
        "online-never-rescaled",
        "The online softmax does not rescale its sums when its maximum rises.",
        _less(_maximum_so_far),
    ),
    _online(
        "online-sum-alone-rescaled",
        "The online softmax rescales its sum and not its weighted sum when its maximum rises.",
        {"weights": _sum_alone_rescaled},
    ),
    _online(
        "online-maximum-of-each-block",
        "Each block of keys subtracts its own maximum, and the sums are added as they are.",
        _less(lambda s: finite(_maximum_in(s, _key_blocks(s)))),
    ),
    _online(
        "block-softmaxes-averaged",
        "Each block of keys has a softmax of its own, and the results are averaged.",
        {"weights": lambda s: _softmax_in_each(s, _key_blocks(s), len(_key_blocks(s)))},
    ),
    _online(
        "block-maximum-shared",
        "One maximum is subtracted from all queries of a block: quieter rows underflow.",
        _less(_maximum_of_queries),
        fix="Subtract from each row its own maximum, that of the keys that count.",
    ),
)


# A decoding step ----------------------------------------------------------------------------------


def _in_parts(weights: Callable[[State, list[slice]], NDArray]) -> Steps:
    """`weights(state, [past, new])` where there is a past, and new keys."""
    return after(
        "weights",
        lambda s, right: weights(s, [slice(0, s.sizes.past_len), slice(s.sizes.past_len, None)]),
        lambda s: 0 < s.sizes.past_len < s.sizes.key_len,
    )


def _maxima_apart(state: State, parts: list[slice]) -> NDArray:
    return _divided(state, np.exp(open_scores(state) - finite(_maximum_in(state, parts))))


_join = Table(
    "weights",
    "Take one softmax over the scores of past and new keys together, then add up the two weighted sums.",
)

STEPS = (
    _join(
        "past-and-new-normalised-apart",
        "Past and new keys have a softmax each, and the two weighted sums are added.",
        _in_parts(_softmax_in_each),
    ),
    _join(
        "past-and-new-maxima-apart",
        "Past and new keys each subtract their own maximum, and the sums are added as they are.",
        _in_parts(_maxima_apart),
    ),
)

BUGS = (*QUERY_BLOCKS, *KEY_BLOCKS, *STEPS)
