"""Bugs of the softcap, of the past of a decoding step, and of inputs that are given split into heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.call.masks import additive_bias, allowed_keys
from mha_core.reference import backward, forward
from mha_core.reference.forward import cap
from mha_core.reference.state import State, Step

CAP_FIX = "score = softcap * tanh(scaled score / softcap), then the bias, then exclusion."
PAST_FIX = "Keys and values of the past stand before the new ones, as they are; positions count them."
SPLIT_FIX = "Heads that are given split are (B, H, L, d)."


# The softcap --------------------------------------------------------------------------------------


def _capped(cap: Callable[[State, NDArray, float], NDArray]) -> Mapping[str, Step]:
    """`cap(state, similarity, softcap)` in layers that have a softcap."""

    def capped(state: State) -> NDArray:
        softcap, similarity = state.config.softcap, state["similarity"]
        return similarity if softcap is None else cap(state, similarity, softcap)

    return {"capped": capped}


def _after_bias(state: State) -> NDArray:
    """The softcap applied after the bias is added, not before."""
    if state.inputs.mask.bias is None:
        return forward.scores(state)
    return cap(state, state["similarity"] + additive_bias(state.inputs.mask))


def _before_scale(state: State, similarity: NDArray, softcap: float) -> NDArray:
    scale = state.config.softmax_scale
    return cap(state, similarity / scale) * scale


def _without_slope(state: State) -> NDArray:
    return state["d_scores"]


def _cap_bug(id: str, sentence: str, forward: Mapping[str, Step], seen_in: str = "") -> Bug:
    return Bug(id, sentence, "scores", CAP_FIX, forward=forward, seen_in=seen_in)


SOFTCAP = (
    _cap_bug("softcap-ignored", "The softcap is not applied.", _capped(lambda s, x, c: x)),
    _cap_bug("softcap-after-bias", "The softcap bounds the bias too.", {"scores": _after_bias}),
    _cap_bug(
        "softcap-clip",
        "The score is cut off at the softcap instead of bent.",
        _capped(lambda s, x, c: np.clip(x, -c, c)),
    ),
    _cap_bug(
        "softcap-rational",
        "The softcap bends by x / (1 + |x| / c) instead of tanh.",
        _capped(lambda s, x, c: x / (1.0 + np.abs(x) / c)),
    ),
    _cap_bug(
        "softcap-without-factor",
        "The score is tanh(x / c), without the factor c.",
        _capped(lambda s, x, c: np.tanh(x / c)),
    ),
    _cap_bug(
        "softcap-not-divided",
        "The score is c * tanh(x), with x not divided by c.",
        _capped(lambda s, x, c: c * np.tanh(x)),
    ),
    _cap_bug("softcap-before-scale", "The softcap is applied before the scale.", _capped(_before_scale)),
    Bug(
        "gradient-without-softcap-slope",
        "The gradient passes through the softcap unchanged.",
        "gradients",
        "Multiply the scores' gradient by 1 - tanh^2.",
        backward={"d_similarity": _without_slope},
    ),
)


# The past -----------------------------------------------------------------------------------------


def _joined(join: Callable[[State, NDArray, NDArray], NDArray]) -> Mapping[str, Step]:
    """`join(state, past, new)` in place of the past and then the new ones, for keys and values."""

    def keys(state: State) -> NDArray:
        past = state.inputs.past_keys
        return state["new_keys"] if past is None else join(state, past, state["new_keys"])

    def values(state: State) -> NDArray:
        past = state.inputs.past_values
        return state["new_values"] if past is None else join(state, past, state["new_values"])

    return {"keys": keys, "values": values}


def _positions_of_new_keys(state: State) -> NDArray:
    """Queries counted from the first new key."""
    mask, past_len = state.inputs.mask, state.sizes.past_len
    if past_len == 0 or not mask.has_positions:
        return forward.allowed(state)
    shifted = replace(mask, query_offset=np.asarray(mask.query_offset) - past_len)
    return allowed_keys(shifted, state.sizes, state.config.num_heads)


def _past_unmasked(state: State, past: NDArray, new: NDArray) -> NDArray:
    return np.concatenate([past, new], axis=2)


def _without_past(state: State) -> dict[str, NDArray]:
    gradients = backward.d_inputs(state)
    return {name: np.zeros_like(x) if name.startswith("past_") else x for name, x in gradients.items()}


PAST = (
    Bug(
        "past-dropped",
        "Keys and values of the past count as zeros.",
        "keys",
        PAST_FIX,
        forward=_joined(lambda s, past, new: np.concatenate([np.zeros_like(past), new], axis=2)),
    ),
    Bug(
        "past-behind",
        "The past stands behind the new keys and values.",
        "keys",
        PAST_FIX,
        forward=_joined(lambda s, past, new: np.concatenate([new, past], axis=2)),
    ),
    Bug(
        "past-reversed",
        "The past stands in reversed order.",
        "keys",
        PAST_FIX,
        forward=_joined(lambda s, past, new: np.concatenate([past[:, :, ::-1], new], axis=2)),
    ),
    Bug(
        "past-not-padded",
        "Unused rows of the cache are not replaced by 0, so a NaN in them spreads.",
        "keys",
        "Replace rows of the cache that nobody may attend to by 0.",
        forward=_joined(_past_unmasked),
    ),
    Bug(
        "past-not-counted",
        "Positions count from the first new key, not from the first of the past.",
        "weights",
        PAST_FIX,
        forward={"allowed": _positions_of_new_keys},
        seen_in="google/flax#5591",
    ),
    Bug(
        "gradient-of-past-missing",
        "The keys and values of the past get no gradient.",
        "gradients",
        "Give the first Lp rows of the gradients of keys and values to the past.",
        backward={"d_inputs": _without_past},
    ),
)


# Heads that are given -----------------------------------------------------------------------------


def _read_as_length_first(state: State) -> NDArray:
    """The memory of queries (B, H, Lq, d) read as (B, Lq, H, d)."""
    if not state.is_split:
        raise DoesNotApply("only heads that are given split can be read in another order")
    given = forward.queries(state)
    batch, heads, length, width = given.shape
    return given.reshape(batch, length, heads, width).swapaxes(1, 2)


GIVEN = (
    Bug(
        "given-heads-length-first",
        "Heads that are given as (B, H, L, d) are read as (B, L, H, d).",
        "queries",
        SPLIT_FIX,
        forward={"queries": _read_as_length_first},
    ),
)


BUGS = (*SOFTCAP, *PAST, *GIVEN)
