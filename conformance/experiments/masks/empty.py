"""Rows without an allowed key, padding and NaN: what a layer may make of them, where, and from which source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.masks.exclusion import added
from conformance.experiments.masks.places import ahead
from conformance.experiments.masks.sources import SOURCES, array_of, given, is_given
from conformance.experiments.measured import around, on_step
from conformance.zoo.bug import Bug
from mha_core import AttentionMask
from mha_core.call.masks import padding_keys
from mha_core.reference.state import State, Step

EMPTY_FIX = "Give a row without an allowed key the weights 0; its output is the output bias."
PADDING_FIX = "Replace padded rows of the key and value inputs by 0 before the projection."
NAN_FIX = "Let NaN go where the equation sends it: to the rows that may attend to it."

# Rows without a key -------------------------------------------------------------------------------

Rows = Callable[[State], NDArray]
"""(state) -> bool (B, H, Lq, 1)."""


def _empty(state: State) -> NDArray:
    return np.asarray(~state["allowed"].any(axis=-1, keepdims=True))


def _emptied_by(source: str) -> Rows:
    def rows(state: State) -> NDArray:
        if not is_given(state.inputs.mask, source):
            return np.zeros_like(_empty(state))
        return ~array_of(state, source).any(axis=-1, keepdims=True) & _empty(state)

    return rows


def _by_several(state: State) -> NDArray:
    """Emptied by several sources together, and by none of them alone."""
    alone = [_emptied_by(source)(state) for source in given(state.inputs.mask)]
    return _empty(state) & ~np.any([np.zeros_like(_empty(state)), *alone], axis=0)


def _whole(state: State) -> NDArray:
    empty = _empty(state)
    return np.broadcast_to(empty.all(axis=(1, 2), keepdims=True), empty.shape)


def _conditions() -> Iterator[tuple[str, str, Rows]]:
    yield "", "A row without an allowed key", _empty
    for source, words in SOURCES.items():
        yield f"-by-{source.replace('_', '-')}", f"A row that {words} leaves no key", _emptied_by(source)
    yield "-by-several", "A row that only several sources together leave no key", _by_several
    yield "-of-item", "A row of an item without any allowed key", _whole
    yield "-of-some", "A row without an allowed key in an item that has others", lambda s: _empty(s) & ~_whole(s)


def _all_by_scores(state: State, beneath: Step) -> NDArray:
    other = {**state.arrays, "allowed": np.ones_like(state["allowed"])}
    found: NDArray = beneath(replace(state, arrays=other))
    return found


def _by_the_rest(source: str) -> Callable[[State, Step], NDArray]:
    """By the scores of the keys that the other sources let in."""

    def weights(state: State, beneath: Step) -> NDArray:
        others = [array_of(state, other) for other in given(state.inputs.mask) if other != source]
        allowed = np.all([np.ones_like(state["allowed"]), *others], axis=0)
        found: NDArray = beneath(replace(state, arrays={**state.arrays, "allowed": allowed}))
        return found

    return weights


def _one_key(index: Callable[[State], NDArray]) -> Callable[[State, Step], NDArray]:
    return lambda state, beneath: np.broadcast_to(index(state), state["allowed"].shape).astype(np.float64)


def _number(value: Callable[[State], float]) -> Callable[[State, Step], NDArray]:
    return lambda state, beneath: np.full(state["allowed"].shape, value(state))


def _replacements() -> Iterator[tuple[str, str, Callable[[State, Step], NDArray]]]:
    yield "nan", "is NaN", _number(lambda s: float("nan"))
    yield "uniform", "has the weight 1 / Lk on every key", _number(lambda s: 1.0 / max(s.sizes.key_len, 1))
    yield "by-scores", "attends to all keys by their scores", _all_by_scores
    yield "ones", "has the weight 1 on every key", _number(lambda s: 1.0)
    yield "more-uniform", "has the weight 1 / (Lk + 1) on every key", _number(lambda s: 1.0 / (s.sizes.key_len + 1))
    yield "first", "attends to key 0", _one_key(lambda s: np.arange(s.sizes.key_len) == 0)
    yield "last", "attends to the last key", _one_key(lambda s: np.arange(s.sizes.key_len) == s.sizes.key_len - 1)
    yield "own", "attends to the key of the query's index", _one_key(_own)
    yield "own-position", "attends to the key at the query's position", _one_key(lambda s: ahead(s) == 0)
    yield "zero", "has the weights 0", _number(lambda s: 0.0)
    for source, words in SOURCES.items():
        yield f"without-{source.replace('_', '-')}", f"attends as if {words} were not given", _by_the_rest(source)


def _own(state: State) -> NDArray:
    return np.arange(state.sizes.key_len) == np.arange(state.sizes.query_len)[:, None]


@cache
def empty_row_bugs() -> tuple[Bug, ...]:
    """Everything that a row without an allowed key may get: weights first, then outputs."""
    return (*_weights_of_rows(), *_outputs_of_rows())


def _weights_of_rows() -> Iterator[Bug]:
    for where, row, rows in _conditions():
        for slug, words, weights in _replacements():

            def change(
                state: State, beneath: Step, rows: Rows = rows, weights: Callable[[State, Step], NDArray] = weights
            ) -> NDArray:
                return np.where(rows(state), weights(state, beneath), beneath(state))

            yield around("weights", f"empty-row{where}-{slug}", change, f"{row} {words}.", EMPTY_FIX)


def _outputs_of_rows() -> Iterator[Bug]:
    for where, row, rows in _conditions():
        for slug, words, change in (
            ("output-0", "gives 0, without the output bias", lambda state, out: np.zeros_like(out)),
            ("output-nan", "gives NaN", lambda state, out: np.full_like(out, np.nan)),
        ):

            def of_rows(
                state: State, output: NDArray, rows: Rows = rows, change: Callable[[State, NDArray], NDArray] = change
            ) -> NDArray:
                every_head = rows(state).all(axis=1) & (state["allowed"].shape[1] > 0)
                return np.where(every_head, change(state, output), output)

            yield on_step("output", f"empty-row{where}-{slug}", of_rows, f"{row} {words}.", EMPTY_FIX, stage="output")

        def of_all(state: State, output: NDArray, rows: Rows = rows) -> NDArray:
            return np.full_like(output, np.nan) if rows(state).any() else output

        yield on_step(
            "output",
            f"empty-row{where}-spoils-all",
            of_all,
            f"{row} makes the whole output NaN.",
            EMPTY_FIX,
            stage="output",
        )


# Padding ------------------------------------------------------------------------------------------

INPUTS = {"key_inputs": "keys", "value_inputs": "values"}


def _padding_by(source: str) -> Callable[[State], NDArray]:
    """Bool (B, Lk - Lp, 1): what one source alone makes padding."""

    def padding(state: State) -> NDArray:
        mask = state.inputs.mask
        alone = AttentionMask(**{source: getattr(mask, source)})
        return padding_keys(alone, state.sizes)[:, state.sizes.past_len :, None]

    return padding


def _every_padding(state: State) -> NDArray:
    return np.asarray(state["padding"][:, state.sizes.past_len :, None])


PADDINGS = (
    ("", "padding", _every_padding),
    ("-by-valid-lens", "padding by valid_lens", _padding_by("valid_lens")),
    ("-by-allowed", "padding by allowed", _padding_by("allowed")),
)

LEFT: tuple[tuple[str, str, Callable[[NDArray], NDArray]], ...] = (
    ("left", "is left as it is", lambda x: x),
    ("nan-to-0", "is left as it is but for NaN", lambda x: np.where(np.isnan(x), 0.0, x)),
    ("finite", "is made finite, and left", np.nan_to_num),
    ("clipped", "is cut to -1e4..1e4, and left", lambda x: np.clip(x, -1e4, 1e4)),
)


@cache
def padding_bugs() -> tuple[Bug, ...]:
    """Padding that is not replaced by 0: of keys, values or both, by any source or one."""
    found = []
    for where, words, padding in PADDINGS:
        for slug, left, change in LEFT:
            steps = [_kept(name, where, words, padding, slug, left, change) for name in INPUTS]
            both = replace(
                steps[0],
                id=f"measured:padding-of-inputs{where}-{slug}",
                sentence=f"In keys and values {words} {left}.",
                forward={**steps[0].forward, **steps[1].forward},
            )
            found += [both, *steps]
    return tuple(found)


def _kept(
    step: str,
    where: str,
    words: str,
    padding: Callable[[State], NDArray],
    slug: str,
    left: str,
    change: Callable[[NDArray], NDArray],
) -> Bug:
    name = INPUTS[step]

    def kept(state: State, array: NDArray) -> NDArray:
        return np.where(padding(state), change(getattr(state.inputs, name)), array)

    return on_step(step, f"padding-of-{name}{where}-{slug}", kept, f"In {name} {words} {left}.", PADDING_FIX)


# NaN ----------------------------------------------------------------------------------------------


@cache
def nan_bugs() -> tuple[Bug, ...]:
    """NaN hidden, or spread further than the equation sends it."""
    return tuple(_nan())


def _nan() -> Iterator[Bug]:
    for step, words in (
        ("query_inputs", "the query inputs"),
        ("key_inputs", "the key inputs"),
        ("value_inputs", "the value inputs"),
        ("queries", "queries"),
        ("keys", "keys"),
        ("values", "values"),
        ("similarity", "scores"),
        ("scores", "scores"),
        ("weights", "weights"),
        ("heads", "heads"),
        ("output", "outputs"),
    ):
        yield on_step(step, f"nan-to-0-{step}", _no_nan, f"NaN in {words} becomes 0.", NAN_FIX)
        yield on_step(step, f"finite-{step}", _finite, f"NaN and infinities in {words} become finite.", NAN_FIX)
    for low in (-np.inf, -1e9):
        slug = f"nan-to-{low:g}-scores"
        yield on_step("scores", slug, _nan_to(low), f"NaN in scores becomes {low:g}.", NAN_FIX)

    def leaks(state: State, weights: NDArray) -> NDArray:
        return np.where(np.isnan(state["scores"]).any(axis=-1, keepdims=True), np.nan, weights)

    yield on_step("weights", "nan-of-excluded", leaks, "NaN in an excluded score makes its row NaN.", NAN_FIX)

    def item(state: State, output: NDArray) -> NDArray:
        return np.where(np.isnan(output).any(axis=(1, 2), keepdims=True), np.nan, output)

    yield on_step("output", "nan-spoils-item", item, "One NaN makes the whole item NaN.", NAN_FIX)
    yield from added(-np.inf)
    yield from added(-1e9)


def _no_nan(state: State, array: Any) -> Any:
    return np.where(np.isnan(array), 0.0, array)


def _finite(state: State, array: Any) -> Any:
    return np.nan_to_num(array)


def _nan_to(number: float) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: np.where(np.isnan(array), number, array)
