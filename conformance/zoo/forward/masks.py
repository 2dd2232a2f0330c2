"""Masks done wrong: which keys a query may attend to. How they are then excluded is in `softmax.py`."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Change, Steps, Table, after, keys_of, other_mask
from conformance.zoo.forward.scores import transposed
from mha_core import AttentionMask
from mha_core.reference import forward
from mha_core.reference.state import State

# Lengths ------------------------------------------------------------------------------------------


def _lens(change: Callable[[NDArray], NDArray | None]) -> Steps:
    """`change(valid_lens)` in place of the lengths."""
    return other_mask(valid_lens=lambda s, lens: change(lens))


def _keys_by_lens(
    rule: Callable[[NDArray, NDArray, int], NDArray], where: Callable[[State], bool] = lambda state: True
) -> Steps:
    """Key j by `rule(j, lens (B, 1 or Lq, 1), Lk)` in place of j < length, in the calls that `where` names."""

    def allowed(state: State, right: NDArray) -> NDArray:
        total, lens = state.sizes.key_len, state.inputs.mask.valid_lens.reshape(state.sizes.batch, -1, 1)
        return keys_of(state, state.inputs.mask, valid_lens=None) & rule(np.arange(total), lens, total)[:, None]

    return after("allowed", allowed, lambda state: _has_lens(state) and where(state))


def _has_lens(state: State) -> bool:
    return state.inputs.mask.valid_lens is not None


def _are_as_many(state: State, size: int) -> bool:
    lens = state.inputs.mask.valid_lens
    return lens is not None and lens.ndim == 1 and size == len(lens)


def _item_of_head(state: State) -> NDArray:
    """(B, H): the item of each head where items are tiled; heads of one item are neighbours in the folded batch."""
    batch, heads = state.sizes.batch, state.config.num_heads
    return np.arange(batch * heads).reshape(batch, heads) % max(batch, 1)


def _lens_tiled(state: State, right: NDArray) -> NDArray:
    lens = state.inputs.mask.valid_lens.reshape(state.sizes.batch, -1)[_item_of_head(state)]  # (B, H, 1 or Lq)
    return keys_of(state, state.inputs.mask, valid_lens=None) & (np.arange(state.sizes.key_len) < lens[..., None])


def _lens_on_queries(state: State, right: NDArray) -> NDArray:
    lens = state.inputs.mask.valid_lens
    return right & (np.arange(state.sizes.query_len)[:, None] < lens[:, None, None, None])


def _lens_on_queries_alone(state: State, right: NDArray) -> NDArray:
    positions = np.reshape(state.inputs.mask.query_offset, (-1, 1)) + np.arange(state.sizes.query_len)
    short = positions < state.inputs.mask.valid_lens[:, None]
    return keys_of(state, state.inputs.mask, valid_lens=None) & short[:, None, :, None]


_row = Table("keys", "Key j is allowed iff j < valid_len of its batch item (or of its batch item and query).")

LENGTHS = (
    _row("lens-ignored", "Lengths are ignored.", _lens(lambda lens: None)),
    _row(
        "lens-one-short",
        "The last valid key is excluded.",
        _lens(lambda lens: np.maximum(lens - 1, 0)),
        stage="weights",
    ),
    _row("lens-one-long", "One key beyond the length is let in.", _lens(lambda lens: lens + 1)),
    _row(
        "lens-from-the-right",
        "Lengths are counted from the right, as if padding stood on the left.",
        _keys_by_lens(lambda j, lens, total: j >= total - lens),
    ),
    _row(
        "lens-inverted",
        "Lengths let the padding in and keep the valid keys out.",
        _keys_by_lens(lambda j, lens, total: j >= lens),
    ),
    _row(
        "lens-of-first-item",
        "Every batch item gets the length of item 0.",
        _lens(lambda lens: np.broadcast_to(lens[:1], lens.shape)),
    ),
    _row(
        "lens-longest-for-all",
        "Every batch item gets the longest length of the batch.",
        _lens(lambda lens: np.broadcast_to(lens.max(axis=0, keepdims=True, initial=0), lens.shape)),
    ),
    _row(
        "lens-tiled",
        "Lengths are tiled where folding heads into the batch needs each one repeated.",
        after("allowed", _lens_tiled, _has_lens),
        stage="weights",
        fix="Repeat each length num_heads times (repeat_interleave, numpy.repeat); do not tile.",
        seen_in="line/lighthouse#77, ArrowLuo/CLIP4Clip#22",
    ),
    _row(
        "lens-of-queries-where-as-many",
        "Lengths (B,) are taken for those of the queries where there are as many queries as items.",
        _keys_by_lens(lambda j, lens, total: (j < lens[:, 0])[None], lambda s: _are_as_many(s, s.sizes.query_len)),
        stage="keys",
        fix="Give the mask its axes, (B, 1, 1, Lk): don't guess them from sizes.",
    ),
    _row(
        "lens-of-keys-where-as-many",
        "A padding mask (B, Lk) is read as (Lk, B) where there are as many keys as items.",
        _keys_by_lens(lambda j, lens, total: (j < lens[:, 0]).T[:, None], lambda s: _are_as_many(s, s.sizes.key_len)),
        stage="keys",
        fix="Give the mask its axes, (B, 1, 1, Lk): don't guess them from sizes.",
    ),
    _row(
        "lens-per-query-read-per-item",
        "Lengths (B, Lq) are read as (B,): every query gets that of query 0.",
        _lens(lambda lens: lens[:, 0] if lens.ndim == 2 and lens.shape[1] else lens),
        stage="weights",
    ),
    _row(
        "lens-per-query-longest",
        "Lengths (B, Lq) are read as (B,): every query gets the longest of its item.",
        _lens(lambda lens: lens.max(axis=1, initial=0) if lens.ndim == 2 else lens),
        stage="weights",
    ),
    _row(
        "lens-on-queries-alone",
        "Lengths exclude queries, and no keys.",
        after("allowed", _lens_on_queries_alone, lambda s: _has_lens(s) and s.inputs.mask.valid_lens.ndim == 1),
        stage="weights",
    ),
    _row(
        "lens-on-queries",
        "Lengths exclude queries as well as keys.",
        after("allowed", _lens_on_queries, lambda s: _has_lens(s) and s.inputs.mask.valid_lens.ndim == 1),
        stage="weights",
    ),
)


# allowed ------------------------------------------------------------------------------------------


def _allowed(change: Callable[[State, NDArray], NDArray | None]) -> Steps:
    """`change(state, allowed)` in place of `allowed`, which is given at rank 4."""
    return other_mask(allowed=lambda s, given: change(s, given.reshape((1,) * (4 - given.ndim) + given.shape)))


def _allowed_tiled(state: State, given: NDArray) -> NDArray:
    return given if given.shape[0] == 1 or given.shape[1] > 1 else given[_item_of_head(state), 0]


_mask = Table("weights", "Exclude the keys that the mask does not allow.")
_row = Table("weights", "allowed broadcasts to (B, H, Lq, Lk); True means that the query may attend to the key.")

ALLOWED = (
    _mask(
        "mask-inverted",
        "The mask is read the wrong way round: it excludes what it should let through.",
        after("allowed", lambda s, right: ~right),
        fix="True means that the query may attend to the key, in the whole mask.",
        seen_in="rasbt/LLMs-from-scratch#1061",
    ),
    _mask("mask-ignored", "The whole mask is ignored.", after("allowed", lambda s, right: np.ones_like(right))),
    _mask(
        "mask-transposed",
        "The mask's rows and columns are exchanged.",
        after("allowed", lambda s, right: transposed(right, right)),
        stage="keys",
        fix="The mask is (B, H, Lq, Lk): queries first.",
    ),
    _row(
        "allowed-inverted",
        "allowed is read as the keys to exclude, as torch.nn.MultiheadAttention does.",
        _allowed(lambda s, given: ~given),
        stage="keys",
    ),
    _row("allowed-ignored", "allowed is ignored.", _allowed(lambda s, given: None), stage="keys"),
    _row(
        "allowed-of-first-head",
        "Every head gets the mask of head 0.",
        after("allowed", lambda s, right: np.broadcast_to(right[:, :1], right.shape)),
    ),
    _row(
        "allowed-of-first-item",
        "Every batch item gets the allowed keys of item 0.",
        _allowed(lambda s, given: given[:1]),
    ),
    _row(
        "allowed-tiled",
        "allowed (B, 1, Lq, Lk) is tiled where folding heads into the batch needs each item repeated.",
        _allowed(_allowed_tiled),
        fix="Repeat each item num_heads times (repeat_interleave, numpy.repeat); do not tile.",
        seen_in="ArrowLuo/CLIP4Clip#22",
    ),
    _row(
        "bias-infinity-ignored",
        "-inf in the additive bias does not exclude the key.",
        other_mask(bias=lambda s, bias: None),
        fix="Exclude a key where the bias is -inf, as allowed = False does.",
    ),
)


# Several sources ----------------------------------------------------------------------------------


def _any_source(state: State) -> NDArray:
    """OR in place of AND; a bias without -inf is no source."""
    mask = state.inputs.mask
    given = [name for name in ("valid_lens", "allowed", "bias") if getattr(mask, name) is not None]
    sources = [AttentionMask(**{name: getattr(mask, name)}) for name in given]
    if mask.has_positions:
        sources.append(replace(mask, valid_lens=None, allowed=None, bias=None))
    sources = [source for source in sources if source.bias is None or np.isneginf(source.bias).any()]
    if not sources:
        return forward.allowed(state)
    return np.logical_or.reduce([keys_of(state, source) for source in sources])


def is_causal(state: State) -> bool:
    return state.inputs.mask.causal


_row = Table("weights", "Combine all masks with AND: a key is let in only if each of them lets it in.")

SEVERAL = (
    _row(
        "sources-combined-with-or",
        "A key that one source of the mask allows is let in, whatever the others say.",
        {"allowed": _any_source},
    ),
    _row(
        "causal-dropped-with-padding",
        "causal is dropped where lengths or allowed are given too.",
        other_mask(lambda s: _has_lens(s) or s.inputs.mask.allowed is not None, causal=lambda s, causal: False),
        seen_in="keras-team/keras#23038",
    ),
    _row(
        "padding-dropped-with-causal",
        "Lengths are dropped where causal is given too.",
        other_mask(is_causal, valid_lens=lambda s, lens: None),
        stage="keys",
    ),
    _row(
        "allowed-dropped-with-causal",
        "The given mask (allowed) is dropped where causal is given too.",
        other_mask(is_causal, allowed=lambda s, allowed: None),
    ),
    _row(
        "window-dropped-with-causal",
        "The window is dropped where causal is given too.",
        other_mask(is_causal, window=lambda s, window: None),
    ),
)


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
_placed = Table("weights", "Give query i the position query_offset + i of its batch item, for causal and for window.")

CAUSAL = (
    _row("causal-ignored", "causal is ignored.", other_mask(causal=lambda s, causal: False)),
    _row(
        "causal-without-diagonal",
        "A causal query does not see its own place: key j is allowed iff j < query_offset + i.",
        _ahead(lambda ahead: ahead < 0),
    ),
    _row(
        "causal-one-ahead",
        "A causal query sees one place ahead: key j is allowed iff j <= query_offset + i + 1.",
        _ahead(lambda ahead: ahead <= 1),
    ),
    _row(
        "causal-reversed",
        "A causal query sees the future and not the past: key j is allowed iff j >= query_offset + i.",
        _ahead(lambda ahead: ahead >= 0),
    ),
    _placed(
        "causal-bottom-right",
        "Causal rows are aligned at the last query and key, not the first: key j is allowed iff j <= i + Lk - Lq.",
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

OF_ZERO = "Let None alone be no bound (`if left is not None:`); a width of 0 ends the window at the query's own place."
_row = Table(
    "weights",
    "Let query i see key j where offset + i - left <= j <= offset + i + right (offset: query_offset; None: no bound).",
)

WINDOW = (
    _row("window-ignored", "The window is ignored.", _window(lambda left, right: None)),
    _row(
        "window-counts-self-on-the-left",
        "The left width counts the query's own place: offset + i - left + 1 <= j, one place less far back.",
        _window(lambda left, right: (_moved(left, -1), right)),
    ),
    _row(
        "window-one-more-on-the-left",
        "The window reaches one place too far back: offset + i - left - 1 <= j.",
        _window(lambda left, right: (_moved(left, 1), right)),
    ),
    _row(
        "window-counts-self-on-the-right",
        "The right width counts the query's own place: j <= offset + i + right - 1, one place less far ahead.",
        _window(lambda left, right: (left, _moved(right, -1))),
    ),
    _row(
        "window-one-more-on-the-right",
        "The window reaches one place too far ahead: j <= offset + i + right + 1.",
        _window(lambda left, right: (left, _moved(right, 1))),
    ),
    _row("window-without-left", "The window's left side is ignored.", _window(lambda left, right: (None, right))),
    _row("window-without-right", "The window's right side is ignored.", _window(lambda left, right: (left, None))),
    _row(
        "window-zero-is-none",
        "A width of 0 is taken for no bound on both sides, as `if left:` does.",
        _window(lambda left, right: (left or None, right or None)),
        fix=OF_ZERO,
    ),
    _row(
        "window-zero-left-is-none",
        "A width of 0 to the left is taken for no bound, as `if left:` does.",
        _window(lambda left, right: (left or None, right)),
        fix=OF_ZERO,
    ),
    _row(
        "window-zero-right-is-none",
        "A width of 0 to the right is taken for no bound, as `if right:` does.",
        _window(lambda left, right: (left, right or None)),
        fix=OF_ZERO,
    ),
    _row(
        "window-sides-exchanged",
        "The window's two sides are exchanged: offset + i - right <= j <= offset + i + left.",
        _window(lambda left, right: (right, left)),
    ),
    _row(
        "window-without-offset",
        "The window stands at i, not at offset + i.",
        after("allowed", _window_without_offset, lambda s: s.inputs.mask.window is not None),
    ),
)

BUGS = (*LENGTHS, *ALLOWED, *SEVERAL, *CAUSAL, *OFFSET, *WINDOW)
