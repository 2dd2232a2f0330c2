"""Formulas from the heads to the scores: values, dropout, softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.backward.formula import (
    Array,
    Formula,
    group_formulas,
    square,
    tiled,
    where_open,
)
from conformance.zoo.backward.attention import SOFTMAX_FIX
from conformance.zoo.bug import DoesNotApply
from conformance.zoo.forward.heads import interleaved
from mha_core.heads import sum_kv_groups
from mha_core.reference.forward import dropout_factor
from mha_core.reference.state import State

DROPOUT_FIX = "Multiply by keep / (1 - p) once where the forward direction does."


def _weighted(state: State, weights: NDArray | None = None, gradient: str = "d_weights") -> NDArray:
    return where_open(state, (state["weights"] if weights is None else weights) * state[gradient])


def _row_sums(axis: int | tuple[int, ...], gradient: str = "d_weights") -> Array:
    def formula(state: State) -> NDArray:
        total = _weighted(state, gradient=gradient).sum(axis=axis, keepdims=True)
        return _weighted(state) - state["weights"] * total

    return formula


def _softmax_backward(weights: Callable[[State], NDArray]) -> Array:
    """DS of other weights P: P * (dP - row sum of P dP)."""

    def formula(state: State) -> NDArray:
        p = weights(state)
        weighted = _weighted(state, p)
        return where_open(state, weighted - p * weighted.sum(axis=-1, keepdims=True))

    return formula


def _uniform(state: State) -> NDArray:
    return state["allowed"] / np.maximum(state["allowed"].sum(axis=-1, keepdims=True), 1)


def _of_queries(state: State) -> NDArray:
    """Softmax over the queries."""
    scores = np.where(state["allowed"], state["scores"], -np.inf)
    exponentials = np.exp(scores - np.where(np.isfinite(scores), scores, -np.inf).max(axis=(2, 3), keepdims=True))
    return exponentials / np.maximum(exponentials.sum(axis=-2, keepdims=True), 1e-300)


def _values_by(weights: Callable[[State], NDArray]) -> Array:
    return lambda s: sum_kv_groups(square(weights(s), s).swapaxes(-1, -2) @ s["d_heads"], s.config.num_kv_heads)


def _per_head_values(state: State) -> NDArray:
    product: NDArray = state["kept_weights"].swapaxes(-1, -2) @ state["d_heads"]
    return product


def _times(name: str, factor: Callable[[State], Any]) -> Array:
    return lambda s: s[name] * factor(s)


def _of_dropout() -> Iterator[Formula]:
    def keep(state: State) -> NDArray:
        if state.inputs.dropout_keep is None:
            raise DoesNotApply("no keep-mask")
        return state.inputs.dropout_keep * 1.0

    factors: tuple[tuple[str, str, Callable[[State], Any]], ...] = (
        ("no-dropout", "with dropout's factor left out", lambda s: 0.0 * keep(s) + 1.0),
        ("keep-alone", "with keep in place of keep / (1 - p)", keep),
        ("factor-squared", "with dropout's factor squared", lambda s: keep(s) * np.square(dropout_factor(s))),
        ("inverse-keep", "with dropped and kept exchanged", lambda s: (1.0 - keep(s)) / (1.0 - s.config.dropout)),
        (
            "keep-of-next",
            "with the keep-mask of the next key",
            lambda s: np.roll(keep(s), 1, -1) / (1.0 - s.config.dropout),
        ),
        ("keep-times", "with dropout's factor times 1 - p twice", lambda s: keep(s) * (1.0 - s.config.dropout)),
    )
    for slug, words, factor in factors:
        yield Formula(
            "d_weights",
            slug,
            f"that of kept weights, {words}",
            _times("d_kept_weights", factor),
            fix=DROPOUT_FIX,
        )
        yield Formula(
            "d_values",
            slug,
            f"weights^T @ d_heads {words}",
            _values_by(_times("weights", factor)),
            fix=DROPOUT_FIX,
        )


def _of_scores(slug: str, words: str, array: Array) -> Formula:
    return Formula("d_scores", slug, words, array, fix=SOFTMAX_FIX)


FORMULAS: tuple[Formula, ...] = (
    Formula(
        "d_heads", "interleaved", "d_merged split as (d, h)", lambda s: interleaved(s["d_merged"], s.config.num_heads)
    ),
    Formula(
        "d_kept_weights",
        "by-tiled-values",
        "d_heads @ values^T with key heads tiled",
        lambda s: s["d_heads"] @ tiled(s["values"], s).swapaxes(-1, -2),
    ),
    Formula(
        "d_kept_weights", "by-keys", "d_heads @ keys^T", lambda s: s["d_heads"] @ s.heads_of("keys").swapaxes(-1, -2)
    ),
    *_of_dropout(),
    Formula("d_values", "untransposed", "weights @ d_heads", _values_by(lambda s: s["kept_weights"].swapaxes(-1, -2))),
    Formula("d_values", "uniform", "that of uniform weights", _values_by(_uniform)),
    Formula("d_values", "by-allowed", "that of all weights 1", _values_by(lambda s: s["allowed"] * 1.0)),
    Formula("d_values", "by-squares", "that of squared weights", _values_by(lambda s: np.square(s["kept_weights"]))),
    Formula("d_values", "by-scores", "scores^T @ d_heads", _values_by(lambda s: where_open(s, s["scores"]))),
    Formula("d_values", "by-one-minus", "that of 1 - weights", _values_by(lambda s: 1.0 - s["kept_weights"])),
    Formula("d_values", "over-queries", "that of a softmax over queries", _values_by(_of_queries)),
    *group_formulas("d_values", _per_head_values),
    _of_scores("weighted", "P * dP, without the row sum", _weighted),
    _of_scores(
        "without-weights",
        "dP - rowsum(P * dP)",
        lambda s: where_open(s, s["d_weights"] - _weighted(s).sum(axis=-1, keepdims=True)),
    ),
    _of_scores(
        "weighted-again", "P * P * (dP - rowsum(P * dP))", lambda s: where_open(s, s["weights"] * s["d_scores"])
    ),
    _of_scores("as-it-is", "dP", lambda s: where_open(s, s["d_weights"])),
    _of_scores("sum-over-queries", "P * (dP - its sum over queries)", _row_sums(-2)),
    _of_scores("sum-over-heads", "P * (dP - its sum over heads)", _row_sums(1)),
    _of_scores("sum-over-both", "P * (dP - its sum over queries and keys)", _row_sums((-2, -1))),
    _of_scores("sum-before-dropout", "P * (dP - rowsum(P * dP before dropout))", _row_sums(-1, "d_kept_weights")),
    _of_scores("diagonal", "P * (1 - P) * dP, without other keys", lambda s: _weighted(s) * (1.0 - s["weights"])),
    _of_scores(
        "plain-sum",
        "P * (dP - rowsum(dP))",
        lambda s: _weighted(s) - s["weights"] * where_open(s, s["d_weights"]).sum(axis=-1, keepdims=True),
    ),
    _of_scores(
        "mean",
        "dP less its mean over the allowed keys",
        lambda s: where_open(s, s["d_weights"] - (_uniform(s) * s["d_weights"]).sum(axis=-1, keepdims=True)),
    ),
    _of_scores(
        "mean-of-all",
        "dP less its mean over all keys",
        lambda s: where_open(s, s["d_weights"] - s["d_weights"].mean(axis=-1, keepdims=True)),
    ),
    _of_scores(
        "plain-mean",
        "P * (dP - mean(dP))",
        lambda s: _weighted(s) - s["weights"] * where_open(s, s["d_weights"]).mean(axis=-1, keepdims=True),
    ),
    _of_scores(
        "log-softmax",
        "dP - P * rowsum(dP), a log-softmax's",
        lambda s: where_open(s, s["d_weights"] - s["weights"] * s["d_weights"].sum(axis=-1, keepdims=True)),
    ),
    _of_scores(
        "largest",
        "P * (dP - max(dP))",
        lambda s: _weighted(s) - s["weights"] * s["d_weights"].max(axis=-1, keepdims=True),
    ),
    _of_scores(
        "row-sum-not-weighted",
        "P * dP - rowsum(P * dP)",
        lambda s: where_open(s, _weighted(s) - _weighted(s).sum(axis=-1, keepdims=True)),
    ),
    _of_scores("of-kept", "that of the weights after dropout", _softmax_backward(lambda s: s["kept_weights"])),
    _of_scores("of-uniform", "that of uniform weights", _softmax_backward(_uniform)),
    _of_scores("of-squares", "that of squared weights", _softmax_backward(lambda s: np.square(s["weights"]))),
    _of_scores("over-queries", "that of a softmax over queries", _softmax_backward(_of_queries)),
)
