"""Formulas from the scores to queries and keys: the mask's bias, the softcap, the score function, grouped heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.backward.formula import (
    Array,
    Formula,
    group_formulas,
    nothing,
    square,
    tiled,
    where_open,
    with_arrays,
)
from conformance.zoo.bug import DoesNotApply
from mha_core.heads import sum_kv_groups
from mha_core.reference import backward
from mha_core.reference.forward import unscaled
from mha_core.reference.state import State

SLOPE_FIX = "The slope of c tanh(x / c) is 1 - tanh(x / c)^2."


def _per_head_keys(state: State, gradient: str = "d_similarity") -> NDArray:
    if state.config.score == "additive":
        by_weight: NDArray = state["d_additive_hidden"].sum(axis=2) @ state.parameters["score.key.weight"]
        return by_weight
    by_query: NDArray = state[gradient].swapaxes(-1, -2) @ state["queries"] * state.config.softmax_scale
    return by_query


def _dot_only(state: State) -> None:
    if state.config.score == "additive":
        raise DoesNotApply("queries and keys of a dot product")


def _queries_by(gradient: str, other: str = "keys", *, tile: bool = False) -> Array:
    def formula(state: State) -> NDArray:
        _dot_only(state)
        right = tiled(state[other], state) if tile else state[other] if other == "queries" else state.heads_of(other)
        product: NDArray = state[gradient] @ right * state.config.softmax_scale
        return product

    return formula


def _keys_by(gradient: str, other: str = "queries", *, transposed: bool = True) -> Array:
    def formula(state: State) -> NDArray:
        _dot_only(state)
        left = state[gradient].swapaxes(-1, -2) if transposed else square(state[gradient].swapaxes(-1, -2), state)
        right = state[other] if other == "queries" else state.heads_of(other)
        return sum_kv_groups(left @ right * state.config.softmax_scale, state.config.num_kv_heads)

    return formula


def _ratio(state: State) -> tuple[NDArray, float]:
    """The similarity over the softcap, and the softcap."""
    if state.config.softcap is None:
        raise DoesNotApply("no softcap")
    return unscaled(state) * state.config.softmax_scale / state.config.softcap, state.config.softcap


def _of_slope(slug: str, words: str, slope: Callable[[NDArray, float], NDArray]) -> Formula:
    """Another slope of the softcap c, made of (x / c, c)."""

    def array(state: State) -> NDArray:
        return where_open(state, state["d_scores"] * slope(*_ratio(state)))

    return Formula("d_similarity", slug, words, array, fix=SLOPE_FIX)


def _hidden_slope(slope: Callable[[NDArray], NDArray | float]) -> Array:
    def formula(state: State) -> NDArray:
        hidden = state["additive_hidden"]
        gradient: NDArray = state["d_similarity"][..., None] * state.parameters["score.vector"] * slope(hidden)
        return gradient

    return formula


def _bias_of(state: State, axis: int, index: int) -> NDArray | None:
    gradient = np.zeros_like(state["d_scores"])
    at = tuple(index if place == axis else slice(None) for place in range(4))
    gradient[at] = state["d_scores"][at]
    return backward.d_bias(with_arrays(state, d_scores=gradient))


def _bias_by(gradient: str) -> Array:
    return lambda s: backward.d_bias(with_arrays(s, d_scores=s[gradient]))


FORMULAS: tuple[Formula, ...] = (
    _of_slope("no-slope", "d_scores, without the softcap's slope", lambda x, c: np.ones_like(x)),
    _of_slope("tanh", "d_scores * (1 - tanh(x / c))", lambda x, c: 1.0 - np.tanh(x)),
    _of_slope("abs-tanh", "d_scores * (1 - |tanh(x / c)|)", lambda x, c: 1.0 - np.abs(np.tanh(x))),
    _of_slope("slope-squared", "d_scores * slope^2", lambda x, c: (1.0 - np.tanh(x) ** 2) ** 2),
    _of_slope("slope-at-x", "d_scores * (1 - tanh(x)^2)", lambda x, c: 1.0 - np.tanh(x * c) ** 2),
    _of_slope("slope-of-capped", "d_scores * (1 - (c tanh(x / c))^2)", lambda x, c: 1.0 - (c * np.tanh(x)) ** 2),
    _of_slope("slope-twice", "d_scores * (1 - tanh(tanh(x / c))^2)", lambda x, c: 1.0 - np.tanh(np.tanh(x)) ** 2),
    _of_slope("slope-inverse", "d_scores / slope", lambda x, c: 1.0 / (1.0 - np.tanh(x) ** 2)),
    _of_slope("where-small", "d_scores where |x| < c, else 0", lambda x, c: (np.abs(x) < 1.0) * 1.0),
    Formula("d_additive_hidden", "no-slope", "without the tanh's slope", _hidden_slope(lambda t: 1.0)),
    Formula("d_additive_hidden", "tanh", "with 1 - tanh as slope", _hidden_slope(lambda t: 1.0 - t)),
    Formula(
        "d_additive_hidden", "slope-squared", "with the slope squared", _hidden_slope(lambda t: (1.0 - t * t) ** 2)
    ),
    Formula(
        "d_additive_hidden",
        "slope-twice",
        "with 1 - tanh(tanh)^2 as slope",
        _hidden_slope(lambda t: 1.0 - np.tanh(t) ** 2),
    ),
    Formula(
        "d_additive_hidden",
        "no-vector",
        "without the score's vector",
        lambda s: s["d_similarity"][..., None] * (1.0 - s["additive_hidden"] ** 2),
    ),
    *(
        Formula("d_queries", f"by-{gradient}", f"{gradient} @ keys, scaled", _queries_by(gradient))
        for gradient in ("d_scores", "d_weights", "d_kept_weights", "weights")
    ),
    *(
        Formula("d_queries", f"by-{other}", f"d_similarity @ {other}, scaled", _queries_by("d_similarity", other))
        for other in ("queries", "values")
    ),
    Formula("d_queries", "by-tiled-keys", "that of key heads tiled", _queries_by("d_similarity", tile=True)),
    *(
        Formula("d_keys", f"by-{gradient}", f"{gradient}^T @ queries, scaled", _keys_by(gradient))
        for gradient in ("d_scores", "d_weights", "d_kept_weights", "weights")
    ),
    *(
        Formula("d_keys", f"by-{other}", f"d_similarity^T @ {other}, scaled", _keys_by("d_similarity", other))
        for other in ("keys", "values")
    ),
    Formula("d_keys", "untransposed", "d_similarity @ queries, scaled", _keys_by("d_similarity", transposed=False)),
    *group_formulas("d_keys", _per_head_keys),
    *(
        Formula(
            "d_bias",
            f"by-{gradient}",
            f"{gradient}, summed",
            _bias_by(gradient),
        )
        for gradient in ("d_similarity", "d_weights", "d_kept_weights", "weights", "scores")
    ),
    *(
        Formula(
            "d_bias",
            f"{end}-{axis}",
            f"that of the {end} {axis} alone",
            partial(_bias_of, axis=position, index=index),
        )
        for position, axis in enumerate(("item", "head", "query", "key"))
        for end, index in (("first", 0), ("last", -1))
    ),
    nothing("d_bias"),
)
