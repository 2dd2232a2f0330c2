"""Extremes: rows without an allowed key, padding and NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformance.measure.faults import bug_of, on_result, with_arrays
from conformance.measure.propose.mask_places import SOURCES, array_of, given
from conformance.measure.softmax.exclusion import filled, over_all
from conformance.zoo.bug import Bug
from mha_core import AttentionMask
from mha_core.call.masks import padding_keys
from mha_core.reference.state import State, Step

# Rows without a key -----------------------------------------------------------------------------------------

OF_EMPTY = "Give a row without an allowed key the weights 0; its output is the output bias."

Rows = Callable[[State], NDArray]
"""(state) -> bool (B, H, Lq, 1)."""


def _empty(state: State) -> NDArray:
    return np.asarray(~state["allowed"].any(axis=-1, keepdims=True))


def _emptied_by(source: str) -> Rows:
    def rows(state: State) -> NDArray:
        if source not in given(state.inputs.mask):
            return np.zeros_like(_empty(state))
        return ~array_of(state, source).any(axis=-1, keepdims=True) & _empty(state)

    return rows


def _by_several(state: State) -> NDArray:
    alone = [_emptied_by(source)(state) for source in given(state.inputs.mask)]
    return _empty(state) & ~np.any([np.zeros_like(_empty(state)), *alone], axis=0)


def _whole(state: State) -> NDArray:
    empty = _empty(state)
    return np.broadcast_to(empty.all(axis=(1, 2), keepdims=True), empty.shape)


CONDITIONS: tuple[tuple[str, str, Rows], ...] = (
    ("", "A row without an allowed key", _empty),
    *(
        (f"-by-{source.replace('_', '-')}", f"A row that {words} leaves no key", _emptied_by(source))
        for source, (words, _) in SOURCES.items()
    ),
    ("-by-several", "A row that only several sources together leave no key", _by_several),
    ("-of-item", "A row of an item without any allowed key", _whole),
    ("-of-some", "A row without an allowed key in an item that has others", lambda s: _empty(s) & ~_whole(s)),
)


def _everywhere(value: Callable[[State], NDArray | float]) -> Callable[[State, Step], NDArray]:
    return lambda state, beneath: np.broadcast_to(value(state), state["allowed"].shape).astype(np.float64)


def _by_the_rest(source: str) -> Callable[[State, Step], NDArray]:
    """By the scores of the keys that the other sources let in."""

    def weights(state: State, beneath: Step) -> NDArray:
        others = [array_of(state, other) for other in given(state.inputs.mask) if other != source]
        allowed = np.all([np.ones_like(state["allowed"]), *others], axis=0)
        found: NDArray = beneath(with_arrays(state, allowed=allowed))
        return found

    return weights


def _keys(state: State) -> NDArray:
    return np.arange(state.sizes.key_len)


def _position(state: State) -> NDArray:
    offset = np.asarray(state.inputs.mask.query_offset, np.int64).reshape(-1, 1, 1, 1)
    return offset + np.arange(state.sizes.query_len)[:, None]


IN_EMPTY_ROWS: tuple[tuple[str, str, Callable[[State, Step], NDArray]], ...] = (
    ("nan", "is NaN", _everywhere(lambda s: np.nan)),
    ("uniform", "has the weight 1 / Lk on every key", _everywhere(lambda s: 1.0 / max(s.sizes.key_len, 1))),
    ("by-scores", "attends to all keys by their scores", over_all),
    ("ones", "has the weight 1 on every key", _everywhere(lambda s: 1.0)),
    (
        "more-uniform",
        "has the weight 1 / (Lk + 1) on every key",
        _everywhere(lambda s: 1.0 / (s.sizes.key_len + 1)),
    ),
    ("first", "attends to key 0", _everywhere(lambda s: _keys(s) == 0)),
    ("last", "attends to the last key", _everywhere(lambda s: _keys(s) == s.sizes.key_len - 1)),
    (
        "own",
        "attends to the key of the query's index",
        _everywhere(lambda s: _keys(s) == np.arange(s.sizes.query_len)[:, None]),
    ),
    ("own-position", "attends to the key at the query's position", _everywhere(lambda s: _keys(s) == _position(s))),
    ("zero", "has the weights 0", _everywhere(lambda s: 0.0)),
    *(
        (f"without-{source.replace('_', '-')}", f"attends as if {words} were not given", _by_the_rest(source))
        for source, (words, _) in SOURCES.items()
    ),
)


@cache
def empty_row_bugs() -> tuple[Bug, ...]:
    """Everything that a row without an allowed key may get: weights first, then outputs."""
    return (*_weights_of_rows(), *_outputs_of_rows())


def _weights_of_rows() -> Iterator[Bug]:
    for where, row, rows in CONDITIONS:
        for slug, words, weights in IN_EMPTY_ROWS:

            def change(
                state: State, beneath: Step, rows: Rows = rows, weights: Callable[[State, Step], NDArray] = weights
            ) -> NDArray:
                return np.where(rows(state), weights(state, beneath), beneath(state))

            yield bug_of(f"empty-row{where}-{slug}", f"{row} {words}.", OF_EMPTY, "weights", change)


def _outputs_of_rows() -> Iterator[Bug]:
    for where, row, rows in CONDITIONS:
        for slug, words, number in (
            ("output-0", "gives 0, without the output bias", 0.0),
            ("output-nan", "gives NaN", np.nan),
        ):

            def of_rows(state: State, output: NDArray, rows: Rows = rows, number: float = number) -> NDArray:
                every_head = rows(state).all(axis=1) & (state["allowed"].shape[1] > 0)
                return np.where(every_head, number, output)

            yield bug_of(f"empty-row{where}-{slug}", f"{row} {words}.", OF_EMPTY, "output", on_result(of_rows))

        def of_all(state: State, output: NDArray, rows: Rows = rows) -> NDArray:
            return np.full_like(output, np.nan) if rows(state).any() else output

        said = f"{row} makes the whole output NaN."
        yield bug_of(f"empty-row{where}-spoils-all", said, OF_EMPTY, "output", on_result(of_all))


# Padding and NaN --------------------------------------------------------------------------------------------

OF_PADDING = "Replace padded rows of the key and value inputs by 0 before the projection."
OF_NAN = "Let NaN go where the equation sends it: to the rows that may attend to it."


def _padding_by(*sources: str) -> Callable[[State], NDArray]:
    """Bool (B, Lk - Lp, 1): the padding; or what one source alone makes padding."""

    def padding(state: State) -> NDArray:
        found = state["padding"]
        if sources:
            alone = AttentionMask(**{source: getattr(state.inputs.mask, source) for source in sources})
            found = padding_keys(alone, state.sizes)
        return np.asarray(found[:, state.sizes.past_len :, None])

    return padding


LEFT: tuple[tuple[str, str, Callable[[NDArray], NDArray]], ...] = (
    ("left", "is left as it is", lambda x: x),
    ("nan-to-0", "is left as it is but for NaN", lambda x: np.where(np.isnan(x), 0.0, x)),
    ("finite", "is made finite, and left", np.nan_to_num),
    ("clipped", "is cut to -1e4..1e4, and left", lambda x: np.clip(x, -1e4, 1e4)),
)


@cache
def padding_bugs() -> tuple[Bug, ...]:
    """Padding that is not replaced by 0: of keys, values or both, by any source or one; and what befalls NaN."""
    found = []
    for where, words, padding in (
        ("", "padding", _padding_by()),
        ("-by-valid-lens", "padding by valid_lens", _padding_by("valid_lens")),
        ("-by-allowed", "padding by allowed", _padding_by("allowed")),
    ):
        for slug, left, change in LEFT:
            changes = {name: on_result(_kept(given, padding, change)) for name, given in PADDED.items()}
            for names in (tuple(PADDED), *((name,) for name in PADDED)):
                what = " and ".join(PADDED[name] for name in names)
                said = f"In {what} {words} {left}."
                slug_of = f"padding-of-{what.replace(' ', '-')}{where}-{slug}"
                found.append(bug_of(slug_of, said, OF_PADDING, {name: changes[name] for name in names}))
    return (*found, *nan_bugs())


PADDED = {"key_inputs": "keys", "value_inputs": "values"}


def _kept(
    name: str, padding: Callable[[State], NDArray], change: Callable[[NDArray], NDArray]
) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: np.where(padding(state), change(getattr(state.inputs, name)), array)


WITH_NAN = {
    **{f"{name}_inputs": f"the {name} inputs" for name in ("query", "key", "value")},
    **{name: name for name in ("queries", "keys", "values", "similarity", "scores", "weights", "heads", "output")},
}


@cache
def nan_bugs() -> tuple[Bug, ...]:
    """NaN hidden, or spread further than the equation sends it."""
    return tuple(_nan())


def _nan() -> Iterator[Bug]:
    def leaks(state: State, weights: NDArray) -> NDArray:
        return np.where(np.isnan(state["scores"]).any(axis=-1, keepdims=True), np.nan, weights)

    def item(state: State, output: NDArray) -> NDArray:
        return np.where(np.isnan(output).any(axis=(1, 2), keepdims=True), np.nan, output)

    def become(number: float) -> Callable[[State, NDArray], NDArray]:
        return lambda state, array: np.where(np.isnan(array), number, array)

    def bug(step: str, slug: str, words: str, change: Callable[[State, NDArray], NDArray]) -> Bug:
        return bug_of(slug, words, OF_NAN, step, on_result(change))

    for step, words in WITH_NAN.items():
        yield bug(step, f"nan-to-0-{step}", f"NaN in {words} becomes 0.", become(0.0))
        said = f"NaN and infinities in {words} become finite."
        yield bug(step, f"finite-{step}", said, lambda state, array: np.nan_to_num(array))
    for low in (-np.inf, -1e9):
        yield bug("scores", f"nan-to-{low:g}-scores", f"NaN in scores becomes {low:g}.", become(low))
    yield bug("weights", "nan-of-excluded", "NaN in an excluded score makes its row NaN.", leaks)
    yield bug("output", "nan-spoils-item", "One NaN makes the whole item NaN.", item)
    for low in (-np.inf, -1e9):
        yield from filled(low)
