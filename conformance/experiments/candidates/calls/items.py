"""Items: what those of a batch do to each other besides orders and mixtures: axes folded, softmaxes together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.measured import PREFIX, on_step
from conformance.zoo.bug import Bug, DoesNotApply, OnTop
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State, Step

FIX = "Each item of a batch uses its own queries, keys, values and mask; fold and unfold (B, H) in one order."

PARTS: dict[str, tuple[str, ...]] = {
    "queries": ("queries",),
    "keys": ("keys",),
    "values": ("values",),
    "keys-and-values": ("keys", "values"),
    "queries-and-keys": ("queries", "keys"),
    "heads": ("heads",),
    "queries-keys-and-values": ("queries", "keys", "values"),
}
"""Name -> the steps that are changed alike."""


# Folded axes --------------------------------------------------------------------------------------


def _refolded(array: NDArray) -> NDArray:
    """(B, H, ...) folded as (B * H) and unfolded as (H, B)."""
    items, heads = array.shape[:2]
    return array.reshape(heads, items, *array.shape[2:]).swapaxes(0, 1)


def _folded(array: NDArray) -> NDArray:
    """(B, H, ...) folded as (H * B) and unfolded as (B, H)."""
    items, heads = array.shape[:2]
    return array.swapaxes(0, 1).reshape(items, heads, *array.shape[2:])


def _lengths_refolded(array: NDArray) -> NDArray:
    """(B, H, L, d) folded as (B, L) and unfolded as (L, B)."""
    items, heads, length, width = array.shape
    merged = array.swapaxes(1, 2).reshape(length, items, heads, width)
    return merged.transpose(1, 2, 0, 3)


def _lengths_folded(array: NDArray) -> NDArray:
    """(B, H, L, d) folded as (L, B) and unfolded as (B, L)."""
    items, heads, length, width = array.shape
    return array.transpose(2, 0, 1, 3).reshape(items, length, heads, width).swapaxes(1, 2)


FOLDS: dict[str, tuple[str, Callable[[NDArray], NDArray]]] = {
    "heads-refolded": ("folded with its heads as (B, H) and unfolded as (H, B)", _refolded),
    "heads-folded": ("folded with its heads as (H, B) and unfolded as (B, H)", _folded),
    "lengths-refolded": ("folded with its positions as (B, L) and unfolded as (L, B)", _lengths_refolded),
    "lengths-folded": ("folded with its positions as (L, B) and unfolded as (B, L)", _lengths_folded),
}


def folded() -> Iterator[Bug]:
    """The batch axis folded with another one in a wrong order."""
    for part, names in PARTS.items():
        for slug, (words, fold) in FOLDS.items():
            yield Bug(
                f"{PREFIX}items-of-{part}-{slug}",
                f"The batch axis of the {part.replace('-', ' ')} is {words}.",
                names[0],
                FIX,
                forward={name: OnTop(FORWARD[name], _beneath(fold)) for name in names},
            )
    for slug, (words, fold) in list(FOLDS.items())[:2]:
        yield on_step(
            "weights",
            f"items-of-weights-{slug}",
            _after(fold),
            f"The batch axis of the weights is {words}.",
            FIX,
        )


def _beneath(fold: Callable[[NDArray], NDArray]) -> Callable[[State, Step], NDArray]:
    return lambda state, beneath: fold(beneath(state))


def _after(fold: Callable[[NDArray], NDArray]) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: fold(array)


# Normalised together ------------------------------------------------------------------------------


def _softmax_over(axes: tuple[int, ...]) -> Callable[[State, NDArray], NDArray]:
    """Exponentials divided by their sum over `axes`; where the weights of a row are all 0 they stay so."""

    def change(state: State, array: NDArray) -> NDArray:
        scores = np.where(state["allowed"], state["scores"], -np.inf)
        highest = scores.max(axis=axes, keepdims=True, initial=-np.inf)
        found = np.exp(scores - np.where(np.isneginf(highest), 0.0, highest))
        total = found.sum(axis=axes, keepdims=True)
        return found / np.where(total == 0.0, 1.0, total)

    return change


def _standardised(state: State, array: NDArray) -> NDArray:
    deviation = array.std(axis=0, keepdims=True)
    if state.sizes.batch < 2 or not deviation.all():
        raise DoesNotApply("one item has no deviation")
    return (array - array.mean(axis=0, keepdims=True)) / deviation


def _first_denominator(state: State, array: NDArray) -> NDArray:
    """Weights of which each item has the softmax's denominator of item 0."""
    scores = np.where(state["allowed"], state["scores"], -np.inf)
    highest = scores.max(axis=(0, -1), keepdims=True, initial=-np.inf)
    found = np.exp(scores - np.where(np.isneginf(highest), 0.0, highest))
    total = found[:1].sum(axis=-1, keepdims=True)
    return found / np.where(total == 0.0, 1.0, total)


def together() -> Iterator[Bug]:
    """What normalises over the batch."""
    for slug, words, axes in (
        ("items-and-keys", "all items and keys", (0, 3)),
        ("items", "the items", (0,)),
        ("items-and-queries", "all items and queries", (0, 2)),
        ("items-and-heads", "all items and heads", (0, 1)),
        ("items-heads-and-keys", "all items, heads and keys", (0, 1, 3)),
        ("items-queries-and-keys", "all items, queries and keys", (0, 2, 3)),
    ):
        yield on_step(
            "weights",
            f"softmax-over-{slug}",
            _softmax_over(axes),
            f"The softmax normalises over {words}.",
            "Normalise each item's weights over its keys alone.",
        )
    yield on_step(
        "weights",
        "denominator-of-first-item",
        _first_denominator,
        "Every item's weights are divided by the sum of item 0's.",
        "Normalise each item's weights over its own keys.",
    )
    for step in ("queries", "keys", "values", "heads", "output", "scores"):
        yield on_step(
            step, f"items-of-{step}-standardised", _standardised, f"The {step} are standardised over the batch.", FIX
        )


def _attends_over_items(state: State, array: NDArray) -> NDArray:
    """Attention of each position over the items: inputs (L, B, D) where (B, L, D) were meant, without a mask."""
    if state.sizes.query_len != state.sizes.key_len:
        raise DoesNotApply("the batch and the length can be exchanged unnoticed only where Lq = Lk")
    queries, keys, values = (
        one.transpose(2, 1, 0, 3) for one in (state["queries"], state.heads_of("keys"), state.heads_of("values"))
    )
    scores = queries @ keys.swapaxes(-1, -2) * state.config.softmax_scale
    found = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (found / found.sum(axis=-1, keepdims=True) @ values).transpose(2, 1, 0, 3)


def over_items() -> Iterator[Bug]:
    """Batch and length exchanged."""
    yield on_step(
        "heads",
        "attends-over-items",
        _attends_over_items,
        "Positions attend over the items of the batch: the first axis is taken for the length.",
        "Inputs are (B, L, D): attend over axis 1.",
        stage="weights",
    )


def all_of_items() -> Sequence[Bug]:
    """Every candidate that needs no measured number."""
    return (*folded(), *together(), *over_items())
