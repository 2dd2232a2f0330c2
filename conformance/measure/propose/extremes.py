"""Extremes: what excluded keys have in place of -inf; rows without an allowed key, padding and NaN.

With a row's scores s, and excluded keys e beside allowed keys a,

    filled with c:  log w_e - log w_a = c - s_a          c added:  log w_e - log w_a = s_e + c - s_a
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.evidence import Evidence
from conformance.measure.faults import bug_of, on_result, with_arrays
from conformance.measure.propose.mask_places import SOURCES, array_of, given
from conformance.measure.read.weights import read_weights
from conformance.zoo.bug import Bug
from mha_core import AttentionMask
from mha_core.call.masks import additive_bias, padding_keys
from mha_core.reference.state import State, Step

# Excluded keys ----------------------------------------------------------------------------------------------

OF_EXCLUSION = "Exclude keys exactly: -inf before the softmax, or 0 after the exponential and before the sum."

FILLS = (
    *(0.0, -1.0, -10.0, -50.0, -100.0, -1e3, -1e4, -1e5, -1e6, -1e7, -1e8, -1e9, -1e10, -1e12, -1e15, -1e20, -1e30),
    *(-65504.0, -32768.0, -65536.0, -(2.0**31), -3e4, -(2.0**32) + 1, -99999.0, -999999.0, -9e15, -1e-9, 1e-9),
    float(np.finfo(np.float32).min),
    float(np.finfo(np.float32).min) / 2,
    float(np.finfo(np.float64).min),
    float(np.finfo(np.float16).min),
)
"""Constants in use; others are read off."""


def _softmax_of(slug: str, sentence: str, scores: Callable[[State], NDArray], *, repaired: bool = False) -> Bug:
    """A bug by which the softmax runs over all keys, of other scores; `repaired`: rows without a key are 0 all the same."""

    def changed(state: State, beneath: Step) -> NDArray:
        allowed = state["allowed"]
        found: NDArray = beneath(with_arrays(state, scores=scores(state), allowed=np.ones_like(allowed)))
        return np.where(allowed.any(axis=-1, keepdims=True), found, 0.0) if repaired else found

    end = " Rows without an allowed key are 0." if repaired else ""
    slug = f"{slug}-empty-rows-0" if repaired else slug
    return bug_of(slug, f"{sentence}{end}", OF_EXCLUSION, "weights", changed)


def filled(number: float) -> Iterator[Bug]:
    """Excluded scores that are a number, before or after the bias; and excluded scores to which it is added."""

    def before_bias(state: State) -> NDArray:
        bias = state.inputs.mask.bias
        extra = 0.0 if bias is None else additive_bias(state.inputs.mask)
        return np.where(state["allowed"], state["scores"], number + extra)

    words = f"{number:.9g}"
    sentence = f"Excluded scores become {words}, and not -inf"
    for repaired in (False, True):
        yield _softmax_of(
            f"excluded-filled-{words}",
            f"{sentence}.",
            lambda s: np.where(s["allowed"], s["scores"], number),
            repaired=repaired,
        )
    yield _softmax_of(f"excluded-filled-{words}-before-bias", f"{sentence}, before the bias is added.", before_bias)
    for repaired in (False, True) if number else ():
        yield _softmax_of(
            f"excluded-plus-{words}",
            f"{words} is added to excluded scores, which leaves them a weight.",
            lambda s: np.where(s["allowed"], s["scores"], s["scores"] + number),
            repaired=repaired,
        )


@cache
def exclusion_bugs() -> tuple[Bug, ...]:
    """Every way of excluding keys wrongly whose numbers are known beforehand."""
    return (*_after_the_softmax(), *(bug for number in FILLS for bug in filled(number)), *_multiplied())


def _multiplied() -> Iterator[Bug]:
    for number in (-1.0, 0.5, 2.0, 1e9):
        yield _softmax_of(
            f"excluded-times-{number:.9g}",
            f"Excluded scores are multiplied by {number:.9g}, and not excluded.",
            lambda s, number=number: np.where(s["allowed"], s["scores"], number * s["scores"]),  # type: ignore[misc]
        )


def _over_all(state: State, beneath: Step) -> NDArray:
    """The weights over all keys, excluded or not."""
    found: NDArray = beneath(with_arrays(state, allowed=np.ones_like(state["allowed"])))
    return found


def _after_the_softmax() -> Iterator[Bug]:
    """Weights over all keys, and the mask on them afterwards."""

    def masked(state: State, beneath: Step) -> NDArray:
        return np.where(state["allowed"], _over_all(state, beneath), 0.0)

    words = "Excluded keys count in the sum of the softmax, and get the weight 0 afterwards: rows sum to less than 1."
    yield bug_of("mask-after-softmax", words, OF_EXCLUSION, "weights", masked)
    for epsilon in (0.0, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3):

        def renormalised(state: State, beneath: Step, epsilon: float = epsilon) -> NDArray:
            kept = masked(state, beneath)
            return kept / (kept.sum(axis=-1, keepdims=True) + epsilon)

        words = f"The mask is applied after the softmax, and the rest divided by its sum plus {epsilon:g}."
        yield bug_of(f"mask-after-softmax-renormalised-{epsilon:g}", words, OF_EXCLUSION, "weights", renormalised)

    def by_share(state: State, beneath: Step) -> NDArray:
        allowed = state["allowed"]
        return beneath(state) * allowed.sum(axis=-1, keepdims=True) / np.maximum(allowed.shape[-1], 1)

    words = "Weights are multiplied by the share of keys that is allowed: excluded keys count in a mean."
    yield bug_of("weights-times-share-allowed", words, OF_EXCLUSION, "weights", by_share)


MISSING, ROUNDOFFS = 1e-9, 2000.0
"""What a row may lack of 1 by rounding; unit roundoffs by which what is read off may be wrong."""


def excluded(evidence: Evidence) -> Iterator[Bug]:
    """Constants that are read off where excluded keys have a weight; and those in use."""
    for problem in evidence.differing():
        for number in read_constants(evidence, problem):
            yield from filled(number)
    yield from exclusion_bugs()


def read_constants(evidence: Evidence, problem: Problem) -> list[float]:
    """What would have to stand in place of every excluded score, and what would have to be added: those that are one.

    Rows of several allowed keys count with the logarithm of their mean weights and scores.
    """
    weights, model = read_weights(evidence.got, problem), evidence.made_all(problem)
    if weights is None or model is None:
        return []
    allowed, scores = problem.allowed(), np.asarray(model["scores"])
    # Padded keys' values are 0 and show nothing: they share what rows lack of 1.
    hidden = np.broadcast_to(problem.padding()[:, None, None, :], weights.shape) & (weights == 0.0)
    missing = 1.0 - weights.sum(axis=-1, keepdims=True)
    share = np.where(missing > MISSING, missing, 0.0) / np.maximum(hidden.sum(axis=-1, keepdims=True), 1)
    weights = np.where(hidden, share, weights)
    with any_numbers:
        logs = np.log(np.where(weights > 0.0, weights, np.nan))
        counts = allowed.sum(axis=-1, keepdims=True)
        of_allowed = np.where(allowed, logs - scores, 0.0).sum(axis=-1, keepdims=True) / counts
    found = np.where(allowed, np.nan, logs - of_allowed)
    unit = evidence.asker.unit * max(1.0, float(np.abs(scores).max(initial=0.0)))
    return [number for array in (found, found - scores) if (number := _one_number(array, unit)) is not None]


def _one_number(array: NDArray, unit: float) -> float | None:
    """The number that all finite entries are, in as few digits as their error allows; None if they differ."""
    known = array[np.isfinite(array)]
    if not known.size:
        return None
    middle = float(np.median(known))
    error = ROUNDOFFS * max(unit, unit * abs(middle))
    if np.ptp(known) > error:
        return None
    if abs(middle) <= error:
        return 0.0
    shorter = (float(f"{middle:.{digits}g}") for digits in range(1, 17))
    return next((number for number in shorter if abs(number - middle) <= error), middle)


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
    ("by-scores", "attends to all keys by their scores", _over_all),
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
