"""Attention in blocks of keys done wrong: an online softmax, and the two parts of a decoding step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.blocked.queries import LAST_FIX, blocks_of_queries, bug_of_blocks, keys_of_block
from mha_core.call.blocks import query_blocks
from mha_core.reference import forward
from mha_core.reference.state import State, Step

ONLINE_FIX = (
    "Keep the maximum m and the sum l so far; for a block with the maximum n, multiply l and the weighted sum so far "
    "by exp(m - max(m, n)) before its own are added, and divide by l at the end."
)
JOIN_FIX = "Take one softmax over the scores of past and new keys together, then add up the two weighted sums."


def open_scores(state: State) -> NDArray:
    return np.where(state["allowed"], state["scores"], -np.inf)


def finite(highest: NDArray) -> NDArray:
    """A maximum that can be subtracted, also where there is no key."""
    return np.where(np.isneginf(highest), 0.0, highest)


def _divided(state: State, exponentials: NDArray, total: NDArray | None = None) -> NDArray:
    """The exponentials divided by their sum, or by `total`; 0 where a key is excluded or the divisor is 0."""
    total = exponentials.sum(axis=-1, keepdims=True) if total is None else total
    return np.where(state["allowed"], exponentials / np.where(total == 0.0, 1.0, total), 0.0)


def _key_blocks(state: State) -> list[slice]:
    return query_blocks(state.sizes.key_len, keys_of_block())


def _block_maxima(state: State) -> NDArray:
    """(B, H, Lq, Lk): for each key, the maximum of the scores in its block of keys."""
    scores = open_scores(state)
    highest = scores.copy()
    for keys in _key_blocks(state):
        highest[..., keys] = scores[..., keys].max(axis=-1, keepdims=True, initial=-np.inf)
    return highest


def _maximum_so_far(state: State) -> NDArray:
    """(B, H, Lq, Lk): for each key, the maximum of the scores up to the end of its block of keys."""
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
    """The weights if the last block is filled up with zeros, which score 0 and count in the sum."""
    scores, has_key = open_scores(state), state["allowed"].any(axis=-1, keepdims=True)
    padding = -state.sizes.key_len % keys_of_block()
    highest = scores.max(axis=-1, keepdims=True, initial=0.0 if padding else -np.inf)
    exponentials = np.exp(scores - finite(highest))
    total = exponentials.sum(axis=-1, keepdims=True) + padding * np.exp(-finite(highest))
    return _divided(state, exponentials, np.where(has_key, total, 1.0))


def _last_keys_dropped(state: State) -> NDArray:
    key_len = state.sizes.key_len
    return forward.allowed(state) & (np.arange(key_len) < key_len - key_len % keys_of_block())


def _block_maximum(state: State) -> NDArray:
    """One maximum for all queries of a block: what lies far below it underflows, and 0 / 0 becomes 0."""
    scores = open_scores(state)
    highest = scores.copy()
    for queries in blocks_of_queries(state):
        highest[:, :, queries] = scores[:, :, queries].max(axis=(2, 3), keepdims=True, initial=-np.inf)
    return _divided(state, np.exp(scores - finite(highest)))


KEY_BLOCKS = (
    bug_of_blocks(
        "block-of-last-keys-dropped",
        "Keys behind the last whole block are not attended to.",
        LAST_FIX,
        {"allowed": _last_keys_dropped},
    ),
    bug_of_blocks(
        "block-padding-counted",
        "The last block of keys is filled up with zeros, and their scores of 0 count in the sum.",
        LAST_FIX,
        {"weights": _padding_counted},
        "jax-ml/jax#27224",
    ),
    bug_of_blocks(
        "online-never-rescaled",
        "The online softmax does not rescale its sums when its maximum rises.",
        ONLINE_FIX,
        {"weights": _never_rescaled},
    ),
    bug_of_blocks(
        "online-sum-alone-rescaled",
        "The online softmax rescales its sum and not its weighted sum when its maximum rises.",
        ONLINE_FIX,
        {"weights": _sum_alone_rescaled},
    ),
    bug_of_blocks(
        "online-maximum-of-each-block",
        "Each block of keys subtracts its own maximum, and the sums are added as they are.",
        ONLINE_FIX,
        {"weights": _maximum_of_each_block},
    ),
    bug_of_blocks(
        "block-softmaxes-averaged",
        "Each block of keys has a softmax of its own, and the results are averaged.",
        ONLINE_FIX,
        {"weights": _averaged},
    ),
    bug_of_blocks(
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
            return forward.weights(state)
        return weights(state, [slice(0, past_len), slice(past_len, None)])

    return {"weights": step}


def _exponentials_of(state: State, parts: list[slice]) -> NDArray:
    """exp(score - maximum), (B, H, Lq, Lk), each of the `parts` of the keys with its own maximum subtracted."""
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
    bug_of_blocks(
        "past-and-new-normalised-apart",
        "Past and new keys have a softmax each, and the two weighted sums are added.",
        JOIN_FIX,
        _past_and_new(_each_normalised),
    ),
    bug_of_blocks(
        "past-and-new-maxima-apart",
        "Past and new keys each subtract their own maximum, and the sums are added as they are.",
        JOIN_FIX,
        _past_and_new(lambda s, parts: _divided(s, _exponentials_of(s, parts))),
    ),
)

BUGS = (*KEY_BLOCKS, *STEPS)
