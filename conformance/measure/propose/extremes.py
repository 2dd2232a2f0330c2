"""Extremes: rows without an allowed key, padding and NaN."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from conformance.measure.faults import bug_of, on_result, with_arrays
from conformance.measure.propose.mask_places import SOURCES, array_of, given, positions
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

Weights = Callable[[State, Step], NDArray]


def _everywhere(value: Callable[[State], NDArray | float]) -> Weights:
    return lambda state, beneath: np.broadcast_to(value(state), state["allowed"].shape).astype(np.float64)


def _by_the_rest(source: str) -> Weights:
    """By the scores of the keys that the other sources let in."""

    def weights(state: State, beneath: Step) -> NDArray:
        others = [array_of(state, other) for other in given(state.inputs.mask) if other != source]
        allowed = np.all([np.ones_like(state["allowed"]), *others], axis=0)
        found: NDArray = beneath(with_arrays(state, allowed=allowed))
        return found

    return weights


def _keys(state: State) -> NDArray:
    return np.arange(state.sizes.key_len)


def _queries(state: State) -> NDArray:
    return np.arange(state.sizes.query_len)[:, None]


IN_EMPTY_ROWS: tuple[tuple[str, str, Weights], ...] = (
    ("nan", "is NaN", _everywhere(lambda s: np.nan)),
    ("uniform", "has the weight 1 / Lk on every key", _everywhere(lambda s: 1.0 / max(s.sizes.key_len, 1))),
    ("by-scores", "attends to all keys by their scores", over_all),
    ("ones", "has the weight 1 on every key", _everywhere(lambda s: 1.0)),
    ("more-uniform", "has the weight 1 / (Lk + 1) on every key", _everywhere(lambda s: 1.0 / (s.sizes.key_len + 1))),
    ("first", "attends to key 0", _everywhere(lambda s: _keys(s) == 0)),
    ("last", "attends to the last key", _everywhere(lambda s: _keys(s) == s.sizes.key_len - 1)),
    ("own", "attends to the key of the query's index", _everywhere(lambda s: _keys(s) == _queries(s))),
    ("own-position", "attends to the key at the query's position", _everywhere(lambda s: _keys(s) == positions(s))),
    ("zero", "has the weights 0", _everywhere(lambda s: 0.0)),
    *(
        (f"without-{source.replace('_', '-')}", f"attends as if {words} were not given", _by_the_rest(source))
        for source, (words, _) in SOURCES.items()
    ),
)
"""What a row without an allowed key may get."""


def _instead(rows: Rows, weights: Weights, state: State, beneath: Step) -> NDArray:
    return np.where(rows(state), weights(state, beneath), beneath(state))


def _output(rows: Rows, number: float, state: State, output: NDArray) -> NDArray:
    every_head = rows(state).all(axis=1) & (state["allowed"].shape[1] > 0)
    return np.where(every_head, number, output)


def _spoilt(rows: Rows, state: State, output: NDArray) -> NDArray:
    return np.full_like(output, np.nan) if rows(state).any() else output


@cache
def empty_row_bugs() -> tuple[Bug, ...]:
    """Everything that a row without an allowed key may get: weights first, then outputs."""
    found = []
    for where, row, rows in CONDITIONS:
        for slug, words, weights in IN_EMPTY_ROWS:
            change = partial(_instead, rows, weights)
            found.append(bug_of(f"empty-row{where}-{slug}", f"{row} {words}.", OF_EMPTY, "weights", change))
    for where, row, rows in CONDITIONS:
        for slug, words, of_output in (
            ("output-0", "gives 0, without the output bias", partial(_output, rows, 0.0)),
            ("output-nan", "gives NaN", partial(_output, rows, np.nan)),
            ("spoils-all", "makes the whole output NaN", partial(_spoilt, rows)),
        ):
            said = f"{row} {words}."
            found.append(bug_of(f"empty-row{where}-{slug}", said, OF_EMPTY, "output", on_result(of_output)))
    return tuple(found)


# Padding and NaN --------------------------------------------------------------------------------------------

OF_PADDING = "Replace padded rows of the key and value inputs by 0 before the projection."
OF_NAN = "Let NaN go where the equation sends it: to the rows that may attend to it."

LEFT: tuple[tuple[str, str, Callable[[NDArray], NDArray]], ...] = (
    ("left", "is left as it is", lambda x: x),
    ("nan-to-0", "is left as it is but for NaN", lambda x: np.where(np.isnan(x), 0.0, x)),
    ("finite", "is made finite, and left", np.nan_to_num),
    ("clipped", "is cut to -1e4..1e4, and left", lambda x: np.clip(x, -1e4, 1e4)),
)

PADDED = {"key_inputs": "keys", "value_inputs": "values"}


def _kept(name: str, source: str, change: Callable[[NDArray], NDArray], state: State, array: NDArray) -> NDArray:
    """The array with what the layer is given where there is padding: all of it, or what one source alone makes."""
    padding = state["padding"]
    if source:
        padding = padding_keys(AttentionMask(**{source: getattr(state.inputs.mask, source)}), state.sizes)
    return np.where(padding[:, state.sizes.past_len :, None], change(getattr(state.inputs, name)), array)


@cache
def padding_bugs() -> tuple[Bug, ...]:
    """Padding that is not replaced by 0: of keys, values or both, by any source or one; and what befalls NaN."""
    found = []
    for source in ("", "valid_lens", "allowed"):
        where, words = (f"-by-{source.replace('_', '-')}", f"padding by {source}") if source else ("", "padding")
        for slug, left, change in LEFT:
            changes = {name: on_result(partial(_kept, given, source, change)) for name, given in PADDED.items()}
            for names in (tuple(PADDED), *((name,) for name in PADDED)):
                what = " and ".join(PADDED[name] for name in names)
                slug_of = f"padding-of-{what}{where}-{slug}"
                of_names = {name: changes[name] for name in names}
                found.append(bug_of(slug_of, f"In {what} {words} {left}.", OF_PADDING, of_names))
    return (*found, *nan_bugs())


WITH_NAN = {
    **{f"{name}_inputs": f"the {name} inputs" for name in ("query", "key", "value")},
    **{name: name for name in ("queries", "keys", "values", "similarity", "scores", "weights", "heads", "output")},
}


def _leaking(state: State, weights: NDArray) -> NDArray:
    return np.where(np.isnan(state["scores"]).any(axis=-1, keepdims=True), np.nan, weights)


def _spoiling(state: State, output: NDArray) -> NDArray:
    return np.where(np.isnan(output).any(axis=(1, 2), keepdims=True), np.nan, output)


def _become(number: float, state: State, array: NDArray) -> NDArray:
    return np.where(np.isnan(array), number, array)


@cache
def nan_bugs() -> tuple[Bug, ...]:
    """NaN hidden, or spread further than the equation sends it."""
    rows: list[tuple[str, str, str, Callable[[State, NDArray], NDArray]]] = []
    for step, words in WITH_NAN.items():
        finite = f"NaN and infinities in {words} become finite."
        rows.append((step, f"nan-to-0-{step}", f"NaN in {words} becomes 0.", partial(_become, 0.0)))
        rows.append((step, f"finite-{step}", finite, lambda state, array: np.nan_to_num(array)))
    for low in (-np.inf, -1e9):
        rows.append(("scores", f"nan-to-{low:g}-scores", f"NaN in scores becomes {low:g}.", partial(_become, low)))
    rows.append(("weights", "nan-of-excluded", "NaN in an excluded score makes its row NaN.", _leaking))
    rows.append(("output", "nan-spoils-item", "One NaN makes the whole item NaN.", _spoiling))
    found = (bug_of(slug, words, OF_NAN, step, on_result(change)) for step, slug, words, change in rows)
    return (*found, *filled(-np.inf), *filled(-1e9))
