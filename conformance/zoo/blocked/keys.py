"""Attention in blocks of keys done wrong: an online softmax, and the two parts of a decoding step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.blocked.queries import LAST_FIX, blocks_of_queries, keys_of_block
from conformance.zoo.forward.softmax import has_key, highest_of, open_scores
from conformance.zoo.rows import Steps, Table, after
from mha_core.call.blocks import query_blocks
from mha_core.reference.state import State


def finite(highest: NDArray) -> NDArray:
    """A maximum that can be subtracted, also where there is no key."""
    return np.where(np.isneginf(highest), 0.0, highest)


def exponentials(state: State) -> NDArray:
    """exp(score - maximum of its row), (B, H, Lq, Lk); 0 where a key is excluded."""
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

_last = Table("weights", LAST_FIX)
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

BUGS = (*KEY_BLOCKS, *STEPS)
