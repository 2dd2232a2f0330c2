"""Wrong gradients: what was done to an array of the backward direction, read where it is known, else by its effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.evidence import Evidence
from conformance.measure.faults import bug_of, lower, on_result, only_at
from conformance.measure.grammar.expressions import Expression, expressions_of
from conformance.measure.grammar.formulas import OWN, Formula, along, formulas_of, roundings, where_open
from conformance.measure.grammar.numbers import snapped, solve
from conformance.measure.grammar.sample import Change, Sample, Setting
from conformance.measure.grammar.where import conditions_of
from conformance.measure.read.backward import Backward, Place, backwards
from conformance.measure.read.fit import factors, fit
from conformance.zoo.backward.attention import SOFTMAX_FIX
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.state import State

# The places -------------------------------------------------------------------------------------------

SCORES = ("item", "head", "query", "key")

STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "d_output": ("the output", ("item", "query", "output channel")),
    "d_merged": ("the merged heads", ("item", "query", "merged channel")),
    "d_heads": ("the heads", ("item", "head", "query", "channel")),
    "d_kept_weights": ("the weights after dropout", SCORES),
    "d_values": ("the values", ("item", "key head", "key", "channel")),
    "d_weights": ("the weights", SCORES),
    "d_scores": ("the scores", SCORES),
    "d_similarity": ("the scores before the softcap", SCORES),
    "d_additive_hidden": ("what is inside the additive score's tanh", (*SCORES, "hidden channel")),
    "d_queries": ("the queries", ("item", "head", "query", "channel")),
    "d_keys": ("the keys", ("item", "key head", "key", "channel")),
    "d_q_proj": ("the projected queries", ("item", "query", "merged channel")),
    "d_k_proj": ("the projected keys", ("item", "key", "merged channel")),
    "d_v_proj": ("the projected values", ("item", "key", "merged channel")),
    "d_query_inputs": ("the input queries", ("item", "query", "input channel")),
    "d_key_inputs": ("the input keys", ("item", "key", "input channel")),
    "d_value_inputs": ("the input values", ("item", "key", "input channel")),
}
"""Each backward step that gives one array -> the array whose gradient it is, in words, and its axes."""


class _RowSum(Place):
    """The sum over each row of P * dP, which the softmax's backward step subtracts."""

    slug = "d-scores-row-sum"

    def get(self, state: State, result: Any) -> NDArray:
        rows: NDArray = along(state).sum(axis=-1, keepdims=True)
        return rows

    def put(self, state: State, result: Any, array: NDArray) -> NDArray:
        surplus: NDArray = where_open(state, state["weights"] * (self.get(state, result) - array))
        return surplus + result


ROW_SUM = _RowSum(
    "d_scores", "In the softmax's backward step the sum over a row, rowsum(P * dP),", (*SCORES[:-1], "sum")
)


def places_of(state: State) -> Iterator[Place]:
    """The places of a run: the steps from the output backwards, and the gradients that they give by name."""
    for step, result in state.arrays.items():
        if step in STEPS and result is not None:
            words, axes = STEPS[step]
            yield Place(step, f"The gradient of {words}", axes)
        elif step == "d_bias" and result is not None:
            yield Place(step, "The gradient of bias", SCORES[-result.ndim :], "bias")
        elif isinstance(result, dict):
            for name, array in result.items():
                yield Place(step, f"The gradient of {name}", _axes(name, array), name)
    yield ROW_SUM


def _axes(name: str, array: NDArray) -> tuple[str, ...]:
    if array.ndim < 3:
        return ("output channel", "input channel") if array.ndim == 2 else ("channel",)
    row = "query" if name == "queries" else "key"
    return ("item", row, "channel") if array.ndim == 3 else ("item", "head", row, "channel")


def _fix(place: Place) -> str:
    if place.step == "d_scores":
        return SOFTMAX_FIX
    if place.gradient:
        return f"Give {place.gradient} the gradient of the step that reads it, summed over everything that reads it."
    return f"Compute {lower(place.words)} as the transpose of the step that it belongs to, and of nothing else."


def _bug(place: Place, slug: str, change: Callable[[State, NDArray], NDArray], words: str) -> Bug:
    """The bug of a changed array, `change(state with the step's result, array)`; nothing where a call lacks it."""

    def changed(state: State, result: Any) -> Any:
        array = None if result is None else place.get(state, result)
        if array is None:
            return result
        given = replace(state, arrays={**state.arrays, place.step: result})
        return place.put(state, result, change(given, array))

    slug = f"{place.slug.replace('_', '-')}-{slug}"
    return bug_of(slug, f"{place.words} is {words}.", _fix(place), place.step, on_result(changed))


# The candidates ---------------------------------------------------------------------------------------

MOST_EACH = 4
"""Most changes of one array that are proposed."""

MOST = 60
"""Most candidates that are proposed together."""

ROUNDING = 1000.0
"""Numbers that are read count as 0 below so many roundoffs of the largest."""

Ranked = tuple[int, Bug]
"""How many gradients of the first problem a candidate may explain, and the candidate."""


def wrong_gradients(evidence: Evidence) -> Iterator[Bug]:
    """Candidates for the gradients that differ, those from which most differences follow first."""
    found = backwards(evidence)
    if not found:
        return
    places, unit = _suspects(found[0]), 100.0 * evidence.asker.unit
    chosen: list[Ranked] = []
    for candidates in (_by_factor, _by_formula, _by_array, _by_clipping):
        for most, place in places:
            # What explains fewer gradients than another is looked for when that is in the model.
            if most >= max((rank for rank, _ in chosen), default=0):
                chosen += candidates(found, place, unit)
        if max((rank for rank, _ in chosen), default=0) == len(found[0].wrong):
            break
    ranked = [bug for _, bug in sorted(chosen, key=lambda one: -one[0])[:MOST]]
    yield from ranked
    if not evidence.explained:
        wrong = [one.problem for one in found]
        right = [Setting.of(one) for one in evidence.problems if one not in wrong]
        for where in conditions_of([Setting.of(one) for one in wrong], right):
            yield from (bug for one in ranked if (bug := only_at(one, where)) is not None)


def _suspects(one: Backward) -> list[tuple[int, Place]]:
    """The places at which the fault may be, and how many of the wrong gradients they may explain; the most first."""
    suspects = []
    for place in places_of(one.state):
        array, possible = one.read(place)
        if array is not None:
            suspects.append((one.explained(one.with_array(place, array)), place))
        elif possible:
            suspects.append((len(one.wrong & {*one.reached(place)}), place))
    return sorted(suspects, key=lambda one: -one[0])


# A change of an array that is read --------------------------------------------------------------------


def _by_factor(found: Sequence[Backward], place: Place, unit: float) -> Iterator[Ranked]:
    """The array times a number."""
    yield from _fitted(found, place, lambda one: one.mapped(place), unit, factors)


def _by_array(found: Sequence[Backward], place: Place, unit: float) -> Iterator[Ranked]:
    """Changes of the array, or along one of its axes if the gradients don't tell all of it."""
    if found[0].read(place)[0] is not None:
        yield from _fitted(found, place, lambda one: one.read(place)[0], unit, fit)
        return
    for axis in range(len(place.axes)):
        yield from _fitted(found, place, partial(Backward.mapped, place=place, axis=axis), unit, fit)


def _fitted(
    found: Sequence[Backward],
    place: Place,
    read: Callable[[Backward], NDArray | None],
    unit: float,
    fitted: Callable[[Sequence[Sample]], Iterable[Change]],
) -> Iterator[Ranked]:
    """The changes that turn the model's arrays of some problems into those that are read."""
    samples = []
    for one in found:
        expected = one.array(place)
        if expected is None or expected.ndim != len(place.axes):
            continue
        array = read(one)
        if array is not None:
            array = np.where(np.abs(array) <= ROUNDING * unit * np.abs(array).max(initial=0.0), 0.0, array)
            samples.append(Sample(array, expected, place.axes, Setting.of(one.problem), unit=unit))
        elif one is found[0]:
            return
    with any_numbers:
        changes = list(islice(fitted(samples), MOST_EACH))
    rank = found[0].explained(found[0].with_array(place, samples[0].measured)) if changes else 0
    yield from ((rank, _changed(place, change)) for change in changes)


def _changed(place: Place, change: Change) -> Bug:
    def changed(state: State, array: NDArray) -> NDArray:
        return change.apply(array, place.axes[-array.ndim :], Setting.of(state))

    return _bug(place, change.slug, changed, f"the definition's, {change.words}")


# A formula in place of an array -----------------------------------------------------------------------


def _by_formula(found: Sequence[Backward], place: Place, unit: float) -> Iterator[Ranked]:
    """Each formula of which a part, beside a part of the array itself, gives the gradients."""
    if place is not ROW_SUM:
        unread = found[0].read(place)[0] is None
        for formula in (*formulas_of(place.step, found[0].state), *(roundings(place.step) if unread else ())):
            yield from _mixes(found, place, formula, unit)


def _mixes(found: Sequence[Backward], place: Place, formula: Formula, unit: float) -> Iterator[Ranked]:
    parts = _parts(found[0], place, formula)
    if parts is None:
        return
    others = [(one, _parts(one, place, formula)) for one in found[1:]]
    numbers = [(parts, found[0]), *((more, one) for one, more in others if more is not None)]
    array = parts[0] * found[0].array(place) + parts[1] * _array(place, formula, found[0].state)
    rank = found[0].explained(found[0].with_array(place, array))
    rank -= len(numbers) < len(found)  # a mean of two heads may be an exchange
    settings = [Setting.of(one.problem) for _, one in numbers]
    for a in _expressions([float(own) for (own, _), _ in numbers], settings, unit):
        for b in _expressions([float(other) for (_, other), _ in numbers], settings, unit):
            yield rank, _mixed(place, formula, a, b)


def _expressions(numbers: Sequence[float], settings: Sequence[Setting], unit: float) -> list[Expression]:
    whole = [float(round(number)) if abs(number - round(number)) < 1e-7 else number for number in numbers]
    return expressions_of(list(zip(whole, settings, strict=True)), unit=unit)[:2]


def _array(place: Place, formula: Formula, state: State) -> NDArray:
    """A formula's array. Raises DoesNotApply, KeyError or ValueError."""
    with any_numbers:
        result = formula.array(state)
    array: NDArray = result[place.gradient] if isinstance(result, dict) else result
    return array


def _parts(one: Backward, place: Place, formula: Formula) -> tuple[float, float] | None:
    """A, b such that a times the array and b times the formula's give the gradients; None if none do."""
    own = one.array(place)
    if own is None or own.size < 3:
        return None
    try:
        other = _array(place, formula, one.state)
    except (DoesNotApply, KeyError, ValueError):
        return None
    if other.shape != own.shape or not np.isfinite(other).all() or not other.any():
        return None
    if np.allclose(other, own, rtol=1e-9, atol=0.0):
        return None
    return one.parts(place, other)


def _mixed(place: Place, formula: Formula, a: Expression, b: Expression) -> Bug:
    def mixed(state: State, array: NDArray) -> NDArray:
        try:
            other = _array(place, formula, state)
        except DoesNotApply:
            return array  # a layer without a softcap, say, has nothing that could be wrong
        if other.shape != array.shape:
            raise DoesNotApply(f"{formula.words}: another shape")
        setting = Setting.of(state)
        return b.at(setting) * other if a.words == "0" else a.at(setting) * array + b.at(setting) * other

    other = formula.words if b.words == "1" else f"{b.words} times {formula.words}"
    own = {"0": "", "1": "the definition's plus "}.get(a.words, f"{a.words} times the definition's plus ")
    slug = formula.words.removeprefix(OWN).replace(" ", "-")
    return _bug(place, f"{slug}-{a.slug}-{b.slug}", mixed, f"{own}{other}")


# Clipping ---------------------------------------------------------------------------------------------

STARTS = (0.9, 0.6, 0.3)
"""Shares of an array's numbers that a bound leaves as they are, from which it is looked for."""


def _by_clipping(found: Sequence[Backward], place: Place, unit: float) -> Iterator[Ranked]:
    """An array that the gradients don't tell, with the bound that gives them."""
    one = found[0]
    if one.read(place)[0] is not None:
        return
    array = one.array(place)
    names = sorted(one.wrong & {*one.reached(place)})

    def distance(bound: float) -> NDArray:
        made = one.with_array(place, array.clip(-abs(bound), abs(bound)))
        return np.concatenate([(made[name] - one.measured[name]).ravel() for name in names])

    starts = [float(np.quantile(np.abs(array), share)) for share in STARTS]
    largest = max(float(np.abs(one.measured[name]).max(initial=0.0)) for name in names)
    bound = solve(distance, starts, 10.0 * unit * largest)
    if bound is not None and 0.0 < abs(bound) < np.abs(array).max():
        yield len(names), _clipped(place, snapped(abs(bound), 1e-9))


def _clipped(place: Place, bound: float) -> Bug:
    return _bug(
        place,
        f"clipped-at-{bound:g}",
        lambda state, array: array.clip(-bound, bound),
        f"the definition's, clipped at +-{bound:g}",
    )
