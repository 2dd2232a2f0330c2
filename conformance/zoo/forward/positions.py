"""Masks by position done wrong: causal, the query offset, and the window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug
from mha_core import AttentionMask
from mha_core.call.masks import allowed_keys
from mha_core.reference.state import State, Step

CAUSAL_FIX = "Key j is allowed iff j <= query_offset + i for query i."
OFFSET_FIX = "Query i stands at position query_offset + i of its batch item, for causal and for window."
WINDOW_FIX = (
    "Key j is allowed iff position - left <= j <= position + right, position = query_offset + i; "
    "the query's own place is not counted, and None is unbounded."
)

Sides = tuple[int | None, int | None]


def _causal(change: Callable[[State, AttentionMask], AttentionMask]) -> Mapping[str, Step]:
    """`change(state, mask)` where the mask is causal. Neither source by position makes padding."""

    def allowed(state: State) -> NDArray:
        mask = state.inputs.mask
        return allowed_keys(change(state, mask) if mask.causal else mask, state.sizes, state.config.num_heads)

    return {"allowed": allowed}


def _offset(change: Callable[[State, NDArray], NDArray]) -> Mapping[str, Step]:
    """Another query offset, given as an array of shape () or (B,)."""

    def allowed(state: State) -> NDArray:
        mask = state.inputs.mask
        mask = replace(mask, query_offset=change(state, np.asarray(mask.query_offset)))
        return allowed_keys(mask, state.sizes, state.config.num_heads)

    return {"allowed": allowed}


def _reach(rule: Callable[[NDArray], NDArray]) -> Mapping[str, Step]:
    """Causal by `rule(how far the key stands ahead of the query)` in place of <= 0."""

    def allowed(state: State) -> NDArray:
        mask = state.inputs.mask
        if not mask.causal:
            return allowed_keys(mask, state.sizes, state.config.num_heads)
        position = np.asarray(mask.query_offset).reshape(-1, 1, 1, 1) + np.arange(state.sizes.query_len)[:, None]
        rest = allowed_keys(replace(mask, causal=False), state.sizes, state.config.num_heads)
        return rest & rule(np.arange(state.sizes.key_len) - position)

    return {"allowed": allowed}


def _window(change: Callable[[int | None, int | None], Sides | None]) -> Mapping[str, Step]:
    """The mask with `change(left, right)` in place of its window."""

    def allowed(state: State) -> NDArray:
        mask = state.inputs.mask
        if mask.window is not None:
            mask = replace(mask, window=change(*mask.window))
        return allowed_keys(mask, state.sizes, state.config.num_heads)

    return {"allowed": allowed}


def _window_without_offset(state: State) -> NDArray:
    mask, heads = state.inputs.mask, state.config.num_heads
    if mask.window is None:
        return allowed_keys(mask, state.sizes, heads)
    rest = allowed_keys(replace(mask, window=None), state.sizes, heads)
    return rest & allowed_keys(AttentionMask(window=mask.window), state.sizes, heads)


def _moved(side: int | None, by: int) -> int | None:
    return None if side is None else side + by


def _bug(id: str, sentence: str, fix: str, forward: Mapping[str, Step], seen_in: str = "") -> Bug:
    return Bug(id, sentence, "weights", fix, forward=forward, seen_in=seen_in)


CAUSAL = (
    _bug("causal-ignored", "causal is ignored.", CAUSAL_FIX, _causal(lambda s, mask: replace(mask, causal=False))),
    _bug(
        "causal-without-diagonal",
        "A causal query does not see its own place.",
        CAUSAL_FIX,
        _reach(lambda ahead: ahead < 0),
    ),
    _bug("causal-one-ahead", "A causal query sees one place ahead.", CAUSAL_FIX, _reach(lambda ahead: ahead <= 1)),
    _bug(
        "causal-reversed",
        "A causal query sees the future and not the past.",
        CAUSAL_FIX,
        _reach(lambda ahead: ahead >= 0),
    ),
    _bug(
        "causal-bottom-right",
        "Causal rows are aligned at the last query and key instead of the first.",
        OFFSET_FIX,
        _causal(lambda s, mask: replace(mask, query_offset=mask.query_offset + s.sizes.key_len - s.sizes.query_len)),
        "pytorch/pytorch#103082, onnx/onnx#8068",
    ),
)

OFFSET = (
    _bug(
        "offset-ignored",
        "The query offset is ignored: queries start at position 0.",
        OFFSET_FIX,
        _offset(lambda s, offset: 0 * offset),
    ),
    _bug(
        "offset-negated",
        "The query offset is applied with the wrong sign.",
        OFFSET_FIX,
        _offset(lambda s, offset: -offset),
    ),
    _bug("offset-twice", "The query offset is applied twice.", OFFSET_FIX, _offset(lambda s, offset: 2 * offset)),
    _bug(
        "offset-of-first-item",
        "Every batch item gets the query offset of item 0.",
        OFFSET_FIX,
        _offset(lambda s, offset: offset.reshape(-1)[:1]),
    ),
)

WINDOW = (
    _bug("window-ignored", "The window is ignored.", WINDOW_FIX, _window(lambda left, right: None)),
    _bug(
        "window-counts-self-on-the-left",
        "The left width counts the query's own place: it reaches one place less far back.",
        WINDOW_FIX,
        _window(lambda left, right: (_moved(left, -1), right)),
    ),
    _bug(
        "window-one-more-on-the-left",
        "The window reaches one place too far back.",
        WINDOW_FIX,
        _window(lambda left, right: (_moved(left, 1), right)),
    ),
    _bug(
        "window-counts-self-on-the-right",
        "The right width counts the query's own place: it reaches one place less far ahead.",
        WINDOW_FIX,
        _window(lambda left, right: (left, _moved(right, -1))),
    ),
    _bug(
        "window-one-more-on-the-right",
        "The window reaches one place too far ahead.",
        WINDOW_FIX,
        _window(lambda left, right: (left, _moved(right, 1))),
    ),
    _bug(
        "window-without-left",
        "The window's left side is ignored.",
        WINDOW_FIX,
        _window(lambda left, right: (None, right)),
    ),
    _bug(
        "window-without-right",
        "The window's right side is ignored.",
        WINDOW_FIX,
        _window(lambda left, right: (left, None)),
    ),
    _bug(
        "window-zero-is-none",
        "A width of 0 is taken for no bound, as `if left:` does.",
        WINDOW_FIX,
        _window(lambda left, right: (left or None, right or None)),
    ),
    _bug(
        "window-sides-exchanged",
        "The window's two sides are exchanged.",
        WINDOW_FIX,
        _window(lambda left, right: (right, left)),
    ),
    _bug(
        "window-without-offset", "The window forgets the query offset.", OFFSET_FIX, {"allowed": _window_without_offset}
    ),
)

BUGS = (*CAUSAL, *OFFSET, *WINDOW)
