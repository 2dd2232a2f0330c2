"""Masks by position done wrong: causal, the query offset, and the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.forward.masks import is_causal
from conformance.zoo.rows import Change, Steps, Table, after, keys_of, other_mask
from mha_core import AttentionMask
from mha_core.reference.state import State

Sides: TypeAlias = tuple[int | None, int | None]


def _own(state: State) -> NDArray:
    return np.asarray(state.inputs.mask.query_offset)


def _ahead(rule: Callable[[NDArray], NDArray], offset: Callable[[State], NDArray | int] = _own) -> Steps:
    """Causal by `rule(how far the key stands ahead of the query)` in place of <= 0; query i stands at offset + i."""

    def allowed(state: State, right: NDArray) -> NDArray:
        position = np.reshape(offset(state), (-1, 1, 1, 1)) + np.arange(state.sizes.query_len)[:, None]
        return keys_of(state, state.inputs.mask, causal=False) & rule(np.arange(state.sizes.key_len) - position)

    return after("allowed", allowed, is_causal)


def _offset(change: Change) -> Steps:
    return other_mask(query_offset=change)


def _window(change: Callable[[int | None, int | None], Sides | None]) -> Steps:
    """`change(left, right)` in place of the window."""
    return other_mask(window=lambda s, window: change(*window))


def _window_without_offset(state: State, right: NDArray) -> NDArray:
    mask = state.inputs.mask
    return keys_of(state, mask, window=None) & keys_of(state, AttentionMask(window=mask.window))


def _moved(side: int | None, by: int) -> int | None:
    return None if side is None else side + by


_row = Table("weights", "Key j is allowed iff j <= query_offset + i for query i.")
_placed = Table("weights", "Query i stands at position query_offset + i of its batch item, for causal and for window.")

CAUSAL = (
    _row("causal-ignored", "causal is ignored.", other_mask(causal=lambda s, causal: False)),
    _row("causal-without-diagonal", "A causal query does not see its own place.", _ahead(lambda ahead: ahead < 0)),
    _row("causal-one-ahead", "A causal query sees one place ahead.", _ahead(lambda ahead: ahead <= 1)),
    _row("causal-reversed", "A causal query sees the future and not the past.", _ahead(lambda ahead: ahead >= 0)),
    _placed(
        "causal-bottom-right",
        "Causal rows are aligned at the last query and key instead of the first.",
        _ahead(lambda ahead: ahead <= 0, lambda s: s.sizes.key_len - s.sizes.query_len),
        seen_in="pytorch/pytorch#103082, onnx/onnx#8068",
    ),
)

OFFSET = (
    _placed(
        "offset-ignored",
        "The query offset is ignored: queries start at position 0.",
        _offset(lambda s, offset: 0 * offset),
    ),
    _placed("offset-negated", "The query offset is applied with the wrong sign.", _offset(lambda s, offset: -offset)),
    _placed("offset-twice", "The query offset is applied twice.", _offset(lambda s, offset: 2 * offset)),
    _placed(
        "offset-of-first-item",
        "Every batch item gets the query offset of item 0.",
        _offset(lambda s, offset: offset.reshape(-1)[:1]),
    ),
)

_row = Table(
    "weights",
    "Key j is allowed iff position - left <= j <= position + right, position = query_offset + i; "
    "the query's own place is not counted, and None is unbounded.",
)

WINDOW = (
    _row("window-ignored", "The window is ignored.", _window(lambda left, right: None)),
    _row(
        "window-counts-self-on-the-left",
        "The left width counts the query's own place: it reaches one place less far back.",
        _window(lambda left, right: (_moved(left, -1), right)),
    ),
    _row(
        "window-one-more-on-the-left",
        "The window reaches one place too far back.",
        _window(lambda left, right: (_moved(left, 1), right)),
    ),
    _row(
        "window-counts-self-on-the-right",
        "The right width counts the query's own place: it reaches one place less far ahead.",
        _window(lambda left, right: (left, _moved(right, -1))),
    ),
    _row(
        "window-one-more-on-the-right",
        "The window reaches one place too far ahead.",
        _window(lambda left, right: (left, _moved(right, 1))),
    ),
    _row("window-without-left", "The window's left side is ignored.", _window(lambda left, right: (None, right))),
    _row("window-without-right", "The window's right side is ignored.", _window(lambda left, right: (left, None))),
    _row(
        "window-zero-is-none",
        "A width of 0 is taken for no bound on both sides, as `if left:` does.",
        _window(lambda left, right: (left or None, right or None)),
    ),
    _row(
        "window-zero-left-is-none",
        "A width of 0 to the left is taken for no bound, as `if left:` does.",
        _window(lambda left, right: (left or None, right)),
    ),
    _row(
        "window-zero-right-is-none",
        "A width of 0 to the right is taken for no bound, as `if right:` does.",
        _window(lambda left, right: (left, right or None)),
    ),
    _row("window-sides-exchanged", "The window's two sides are exchanged.", _window(lambda left, right: (right, left))),
    _placed(
        "window-without-offset",
        "The window forgets the query offset.",
        after("allowed", _window_without_offset, lambda s: s.inputs.mask.window is not None),
    ),
)

BUGS = (*CAUSAL, *OFFSET, *WINDOW)
