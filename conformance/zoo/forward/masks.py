"""Masks done wrong: which keys a query may attend to. How they are then excluded is in `softmax.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug
from conformance.zoo.forward.scores import transposed
from mha_core import AttentionMask
from mha_core.call.masks import allowed_keys
from mha_core.reference import forward
from mha_core.reference.state import State, Step

LENS_FIX = "Key j is allowed iff j < valid_len of its batch item (or of its batch item and query)."
ALLOWED_FIX = "allowed broadcasts to (B, H, Lq, Lk); True means that the query may attend to the key."
AND_FIX = "Combine all sources of the mask with AND."


def _other_mask(change: Callable[[State, AttentionMask], AttentionMask]) -> Mapping[str, Step]:
    """The mask as if the caller had given `change(state, mask)`. Padding that it lets in is attended to as it is."""

    def allowed(state: State) -> NDArray:
        return allowed_keys(change(state, state.inputs.mask), state.sizes, state.config.num_heads)

    return {"allowed": allowed}


# Lengths ------------------------------------------------------------------------------------------


def _lens(change: Callable[[State, NDArray], NDArray]) -> Mapping[str, Step]:
    """The mask with `change(state, valid_lens)` in place of its lengths."""

    def other(state: State, mask: AttentionMask) -> AttentionMask:
        return mask if mask.valid_lens is None else replace(mask, valid_lens=change(state, mask.valid_lens))

    return _other_mask(other)


def _keys_by_lens(rule: Callable[[NDArray, NDArray, int], NDArray]) -> Mapping[str, Step]:
    """Key j by `rule(j, lens (B, 1 or Lq, 1), Lk)` in place of j < length."""

    def other(state: State, mask: AttentionMask) -> AttentionMask:
        if mask.valid_lens is None:
            return mask
        lens = mask.valid_lens.reshape(state.sizes.batch, -1, 1)
        within = rule(np.arange(state.sizes.key_len), lens, state.sizes.key_len)[:, None]
        allowed = within if mask.allowed is None else within & mask.allowed
        return replace(mask, valid_lens=None, allowed=allowed)

    return _other_mask(other)


def _lens_tiled(state: State) -> NDArray:
    """The heads of one item are neighbours in the folded batch; tiling gives them lengths of other items."""
    mask, heads = state.inputs.mask, state.config.num_heads
    if mask.valid_lens is None:
        return forward.allowed(state)
    items = np.arange(state.sizes.batch * heads).reshape(state.sizes.batch, heads) % max(state.sizes.batch, 1)
    lens = mask.valid_lens.reshape(state.sizes.batch, -1)[items]  # (B, H, 1 or Lq)
    within = np.arange(state.sizes.key_len) < lens[..., None]
    return allowed_keys(replace(mask, valid_lens=None), state.sizes, heads) & within


def _lens_on_queries(state: State) -> NDArray:
    lens = state.inputs.mask.valid_lens
    if lens is None or lens.ndim != 1:
        return forward.allowed(state)
    is_real = np.arange(state.sizes.query_len)[:, None] < lens[:, None, None, None]
    return forward.allowed(state) & is_real


def _bug(id: str, sentence: str, stage: str, fix: str, forward: Mapping[str, Step], *, seen_in: str = "") -> Bug:
    return Bug(id, sentence, stage, fix, forward=forward, seen_in=seen_in)


LENGTHS = (
    _bug(
        "lens-ignored",
        "Lengths are ignored.",
        "keys",
        LENS_FIX,
        _other_mask(lambda s, mask: replace(mask, valid_lens=None)),
    ),
    _bug(
        "lens-one-short",
        "The last valid key is excluded.",
        "weights",
        LENS_FIX,
        _lens(lambda s, lens: np.maximum(lens - 1, 0)),
    ),
    _bug("lens-one-long", "One key beyond the length is let in.", "keys", LENS_FIX, _lens(lambda s, lens: lens + 1)),
    _bug(
        "lens-from-the-right",
        "Lengths are counted from the right, as if padding stood on the left.",
        "keys",
        LENS_FIX,
        _keys_by_lens(lambda j, lens, total: j >= total - lens),
    ),
    _bug(
        "lens-inverted",
        "Lengths let the padding in and keep the valid keys out.",
        "keys",
        LENS_FIX,
        _keys_by_lens(lambda j, lens, total: j >= lens),
    ),
    _bug(
        "lens-of-first-item",
        "Every batch item gets the length of item 0.",
        "keys",
        LENS_FIX,
        _lens(lambda s, lens: np.broadcast_to(lens[:1], lens.shape)),
    ),
    _bug(
        "lens-longest-for-all",
        "Every batch item gets the longest length of the batch.",
        "keys",
        LENS_FIX,
        _lens(lambda s, lens: np.broadcast_to(lens.max(axis=0, keepdims=True, initial=0), lens.shape)),
    ),
    _bug(
        "lens-tiled",
        "Lengths are tiled where folding heads into the batch needs each one repeated.",
        "weights",
        "Repeat each length num_heads times (repeat_interleave, numpy.repeat); do not tile.",
        {"allowed": _lens_tiled},
        seen_in="line/lighthouse#77, ArrowLuo/CLIP4Clip#22",
    ),
    _bug(
        "lens-per-query-read-per-item",
        "Lengths (B, Lq) are read as (B,): every query gets that of query 0.",
        "weights",
        LENS_FIX,
        _lens(lambda s, lens: lens[:, 0] if lens.ndim == 2 and lens.shape[1] else lens),
    ),
    _bug(
        "lens-per-query-longest",
        "Lengths (B, Lq) are read as (B,): every query gets the longest of its item.",
        "weights",
        LENS_FIX,
        _lens(lambda s, lens: lens.max(axis=1, initial=0) if lens.ndim == 2 else lens),
    ),
    _bug(
        "lens-on-queries",
        "Lengths exclude queries as well as keys.",
        "weights",
        LENS_FIX,
        {"allowed": _lens_on_queries},
    ),
)


# allowed ------------------------------------------------------------------------------------------


def _allowed(change: Callable[[State, NDArray], NDArray | None]) -> Mapping[str, Step]:
    """Another `allowed`, given at rank 4."""

    def other(state: State, mask: AttentionMask) -> AttentionMask:
        if mask.allowed is None:
            return mask
        given = np.asarray(mask.allowed)
        return replace(mask, allowed=change(state, given.reshape((1,) * (4 - given.ndim) + given.shape)))

    return _other_mask(other)


def _allowed_tiled(state: State, given: NDArray) -> NDArray:
    if given.shape[0] == 1 or given.shape[1] > 1:
        return given
    batch, heads = state.sizes.batch, state.config.num_heads
    return given[np.arange(batch * heads).reshape(batch, heads) % max(batch, 1), 0]


def _mask_transposed(state: State) -> NDArray:
    return transposed(forward.allowed(state), forward.allowed(state))


ALLOWED = (
    _bug(
        "mask-inverted",
        "The mask is read the wrong way round: it excludes what it should let through.",
        "weights",
        "True means that the query may attend to the key, in the whole mask.",
        {"allowed": lambda s: ~forward.allowed(s)},
        seen_in="rasbt/LLMs-from-scratch#1061",
    ),
    _bug(
        "mask-ignored",
        "The whole mask is ignored.",
        "weights",
        "Exclude the keys that the mask does not allow.",
        {"allowed": lambda s: np.ones_like(forward.allowed(s))},
    ),
    _bug(
        "mask-transposed",
        "The mask's rows and columns are exchanged.",
        "keys",
        "The mask is (B, H, Lq, Lk): queries first.",
        {"allowed": _mask_transposed},
    ),
    _bug(
        "allowed-inverted",
        "allowed is read as the keys to exclude, as torch.nn.MultiheadAttention does.",
        "keys",
        ALLOWED_FIX,
        _allowed(lambda s, given: ~given),
    ),
    _bug("allowed-ignored", "allowed is ignored.", "keys", ALLOWED_FIX, _allowed(lambda s, given: None)),
    _bug(
        "allowed-of-first-head",
        "Every head gets the mask of head 0.",
        "weights",
        ALLOWED_FIX,
        {"allowed": lambda s: np.broadcast_to(forward.allowed(s)[:, :1], forward.allowed(s).shape)},
    ),
    _bug(
        "allowed-of-first-item",
        "Every batch item gets the allowed keys of item 0.",
        "weights",
        ALLOWED_FIX,
        _allowed(lambda s, given: given[:1]),
    ),
    _bug(
        "allowed-tiled",
        "allowed (B, 1, Lq, Lk) is tiled where folding heads into the batch needs each item repeated.",
        "weights",
        "Repeat each item num_heads times (repeat_interleave, numpy.repeat); do not tile.",
        _allowed(_allowed_tiled),
        seen_in="ArrowLuo/CLIP4Clip#22",
    ),
    _bug(
        "bias-infinity-ignored",
        "-inf in the additive bias does not exclude the key.",
        "weights",
        "Exclude a key where the bias is -inf, as allowed = False does.",
        _other_mask(lambda s, mask: replace(mask, bias=None)),
    ),
)


# Several sources ----------------------------------------------------------------------------------


def _any_source(state: State) -> NDArray:
    """OR in place of AND."""
    mask = state.inputs.mask
    nothing = AttentionMask()
    sources = [
        replace(nothing, **{name: getattr(mask, name)})
        for name in ("valid_lens", "allowed", "bias")
        if getattr(mask, name) is not None
    ]
    if mask.has_positions:
        sources.append(replace(mask, valid_lens=None, allowed=None, bias=None))
    if mask.bias is not None and not np.isneginf(mask.bias).any():
        sources = [source for source in sources if source.bias is None]
    if not sources:
        return forward.allowed(state)
    return np.logical_or.reduce([allowed_keys(source, state.sizes, state.config.num_heads) for source in sources])


def _has_padding(mask: AttentionMask) -> bool:
    return mask.valid_lens is not None or mask.allowed is not None


SEVERAL = (
    _bug(
        "sources-combined-with-or",
        "A key that one source of the mask allows is let in, whatever the others say.",
        "weights",
        AND_FIX,
        {"allowed": _any_source},
    ),
    _bug(
        "causal-dropped-with-padding",
        "causal is dropped where lengths or allowed are given too.",
        "weights",
        AND_FIX,
        _other_mask(lambda s, mask: replace(mask, causal=False) if _has_padding(mask) else mask),
        seen_in="keras-team/keras#23038",
    ),
    _bug(
        "padding-dropped-with-causal",
        "Lengths are dropped where causal is given too.",
        "keys",
        AND_FIX,
        _other_mask(lambda s, mask: replace(mask, valid_lens=None) if mask.causal else mask),
    ),
    _bug(
        "window-dropped-with-causal",
        "The window is dropped where causal is given too.",
        "weights",
        AND_FIX,
        _other_mask(lambda s, mask: replace(mask, window=None) if mask.causal else mask),
    ),
)

BUGS = (*LENGTHS, *ALLOWED, *SEVERAL)
