"""Bugs of the softcap, of the past of a decoding step, and of inputs that are given split into heads."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import GRADIENTS, Steps, Table, after, entries, other_mask, require
from conformance.zoo.forward.scores import has_bias
from mha_core.call.masks import additive_bias
from mha_core.reference.forward import cap
from mha_core.reference.state import State

# The softcap --------------------------------------------------------------------------------------


def _capped(cap: Callable[[NDArray, float], NDArray]) -> Steps:
    """`cap(similarity, softcap)` in layers that have a softcap."""

    def capped(state: State, right: NDArray) -> NDArray:
        softcap = state.config.softcap
        return right if softcap is None else cap(state["similarity"], softcap)

    return after("capped", capped)


def _before_scale(state: State, right: NDArray) -> NDArray:
    scale = state.config.softmax_scale
    return right if state.config.softcap is None else cap(state, state["similarity"] / scale) * scale


_row = Table(
    "scores", "Compute c * tanh(x / c) of each scaled score x (c: the softcap), then add the bias, then exclude keys."
)

SOFTCAP = (
    _row("softcap-ignored", "The softcap is not applied.", _capped(lambda x, c: x)),
    _row(
        "softcap-after-bias",
        "The softcap bounds the bias too: c * tanh((x + bias) / c) of a scaled score x.",
        after("scores", lambda s, right: cap(s, s["similarity"] + additive_bias(s.inputs.mask)), has_bias),
    ),
    _row(
        "softcap-clip",
        "A softcap c turns a score x into clip(x, -c, c), not into c * tanh(x / c).",
        _capped(lambda x, c: np.clip(x, -c, c)),
    ),
    _row(
        "softcap-rational",
        "A softcap c turns a score x into x / (1 + |x| / c), not into c * tanh(x / c).",
        _capped(lambda x, c: x / (1.0 + np.abs(x) / c)),
    ),
    _row(
        "softcap-without-factor",
        "A softcap c turns a score x into tanh(x / c), without the factor c.",
        _capped(lambda x, c: np.tanh(x / c)),
    ),
    _row(
        "softcap-not-divided",
        "A softcap c turns a score x into c * tanh(x), with x not divided by c.",
        _capped(lambda x, c: c * np.tanh(x)),
    ),
    _row(
        "softcap-before-scale",
        "The softcap c is applied before the scale: a product x = q . k becomes scale * c * tanh(x / c).",
        after("capped", _before_scale),
        fix="Scale first: make c * tanh(scale * x / c) of x.",
    ),
    _row(
        "gradient-without-softcap-slope",
        "The gradient passes through the softcap unchanged.",
        {"d_similarity": lambda s: s["d_scores"]},
        stage=GRADIENTS,
        fix="Multiply the scores' gradient by 1 - tanh^2.",
    ),
)


# The past -----------------------------------------------------------------------------------------


def _joined(join: Callable[[NDArray, NDArray], list[NDArray]]) -> Steps:
    """The arrays of `join(past, new)` one after another, for keys and values."""

    def joined(right: NDArray, past: NDArray | None, new: NDArray) -> NDArray:
        return right if past is None else np.concatenate(join(past, new), axis=2)

    return {
        **after("keys", lambda s, right: joined(right, s.inputs.past_keys, s["new_keys"])),
        **after("values", lambda s, right: joined(right, s.inputs.past_values, s["projected_values"])),
    }


_row = Table("keys", "Put keys and values of the past before the new ones, as they are; count them in positions.")

PAST = (
    _row(
        "past-dropped",
        "Keys and values of the past count as zeros.",
        _joined(lambda past, new: [np.zeros_like(past), new]),
    ),
    _row("past-behind", "The past stands behind the new keys and values.", _joined(lambda past, new: [new, past])),
    _row(
        "past-reversed",
        "The past stands in reversed order.",
        _joined(lambda past, new: [past[:, :, ::-1], new]),
    ),
    _row(
        "past-not-padded",
        "Unused rows of the cache are not replaced by 0, so a NaN in them spreads.",
        _joined(lambda past, new: [past, new]),
        fix="Replace rows of the cache that nobody may attend to by 0.",
    ),
    _row(
        "past-not-counted",
        "Positions count from the first new key, not from the first of the past.",
        other_mask(query_offset=lambda s, offset: offset - s.sizes.past_len),
        stage="weights",
        seen_in="google/flax#5591",
    ),
    _row(
        "gradient-of-past-missing",
        "The keys and values of the past get no gradient.",
        entries("d_inputs", lambda s, right: {n: np.zeros_like(right[n]) for n in right if n.startswith("past_")}),
        stage=GRADIENTS,
        fix="Give the first Lp rows of the gradients of keys and values to the past.",
    ),
)


# Heads that are given -----------------------------------------------------------------------------


def _read_as_length_first(state: State, queries: NDArray) -> NDArray:
    """The memory of queries (B, H, Lq, d) read as (B, Lq, H, d)."""
    require(state.is_split, "only heads that are given split can be read in another order")
    batch, heads, length, width = queries.shape
    return queries.reshape(batch, length, heads, width).swapaxes(1, 2)


GIVEN = (
    Table("queries", "Heads that are given split are (B, H, L, d).")(
        "given-heads-length-first",
        "Heads that are given as (B, H, L, d) are read as (B, L, H, d).",
        after("projected_queries", _read_as_length_first),
    ),
)

BUGS = (*SOFTCAP, *PAST, *GIVEN)
