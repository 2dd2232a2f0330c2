"""Wrong gradients: what was done to the array of a backward step, read off where it is known, else by its effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.candidates.backward.clipped import clipped_inside
from conformance.experiments.candidates.backward.every import formulas_of
from conformance.experiments.candidates.backward.features import features_of, only_with
from conformance.experiments.candidates.backward.formula import Formula
from conformance.experiments.candidates.backward.inner import of_row_sums
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.fit import fit
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.experiments.linear import least_squares
from conformance.experiments.measured import on_step
from conformance.experiments.readings.backward import DICTS, Backward, Refuted, backwards
from conformance.experiments.view import View
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.state import State

AXES: dict[str, tuple[str, ...]] = {
    "d_output": ("item", "query", "output channel"),
    "d_merged": ("item", "query", "merged channel"),
    "d_heads": ("item", "head", "query", "channel"),
    "d_kept_weights": ("item", "head", "query", "key"),
    "d_values": ("item", "key head", "key", "channel"),
    "d_weights": ("item", "head", "query", "key"),
    "d_scores": ("item", "head", "query", "key"),
    "d_similarity": ("item", "head", "query", "key"),
    "d_additive_hidden": ("item", "head", "query", "key", "hidden channel"),
    "d_queries": ("item", "head", "query", "channel"),
    "d_keys": ("item", "key head", "key", "channel"),
    "d_q_proj": ("item", "query", "merged channel"),
    "d_k_proj": ("item", "key", "merged channel"),
    "d_v_proj": ("item", "key", "merged channel"),
    "d_query_inputs": ("item", "query", "input channel"),
    "d_key_inputs": ("item", "key", "input channel"),
    "d_value_inputs": ("item", "key", "input channel"),
}
"""The axes of each backward step that gives one array."""

WORDS: dict[str, str] = {
    "d_output": "The output's gradient",
    "d_merged": "The gradient of the merged heads",
    "d_heads": "The gradient of the heads",
    "d_kept_weights": "The gradient of the weights after dropout",
    "d_values": "The gradient of the values",
    "d_weights": "The gradient of the weights",
    "d_scores": "The gradient of the scores",
    "d_bias": "The gradient of the mask's bias",
    "d_similarity": "The gradient of the scores before the softcap",
    "d_additive_hidden": "The gradient inside the additive score's tanh",
    "d_queries": "The gradient of the queries",
    "d_keys": "The gradient of the keys",
    "d_q_proj": "The gradient of the projected queries",
    "d_k_proj": "The gradient of the projected keys",
    "d_v_proj": "The gradient of the projected values",
    "d_query_inputs": "The gradient of the input queries",
    "d_key_inputs": "The gradient of the input keys",
    "d_value_inputs": "The gradient of the input values",
}
"""Step -> its array in words."""

MOST_EACH = 4
"""Most changes of one step that are proposed."""

MOST = 60
"""Most candidates that are proposed together."""


def wrong_gradients(view: View) -> Iterator[Bug]:
    """Candidates for the gradients that differ, those from which most differences follow first."""
    found = backwards(view)
    if not found:
        return
    chosen = list(_by_formula(view, found))
    if max((rank for rank, _ in chosen), default=0) < len(found[0].wrong):
        chosen += [*_of_steps(view, found), *_of_named(view, found), *of_row_sums(found, unit_of(view))]
    if max((rank for rank, _ in chosen), default=0) < len(found[0].wrong):
        chosen += clipped_inside(found, WORDS, unit_of(view))
    ranked = [bug for _, bug in sorted(chosen, key=lambda one: -one[0])[:MOST]]
    yield from ranked
    if view.explained:
        return
    wrong = [one.problem for one in found]
    yield from only_with(ranked, features_of(wrong, [one for one in view.problems if one not in wrong]))


Ranked = tuple[int, Bug]
"""How many gradients of the first problem a candidate may explain, and the candidate."""


def unit_of(view: View) -> float:
    return 100.0 * view.lab.unit


# Arrays that are read off -----------------------------------------------------------------------------


def _of_steps(view: View, found: Sequence[Backward]) -> Iterator[Ranked]:
    for step in AXES:
        if not any(
            isinstance(one.state.arrays[step], np.ndarray) and one.wrong & {*one.reached(step)} for one in found
        ):
            continue
        try:
            samples = [sample for one in found if (sample := _sample(view, one, step)) is not None]
        except Refuted:
            continue
        rank = len(found[0].wrong & {*found[0].reached(step)})
        for change in _fitted(samples):
            yield rank, _changed(step, change)


def _sample(view: View, one: Backward, step: str) -> Sample | None:
    if not isinstance(one.state.arrays[step], np.ndarray) or (array := one.read(step)) is None:
        return None
    setting = Setting(one.problem.config, one.problem.sizes)
    return Sample(array, one.state[step], AXES[step], setting, unit=unit_of(view))


def _fitted(samples: Sequence[Sample]) -> list[Change]:
    with any_numbers:
        return fit(samples)[:MOST_EACH] if samples else []


def _changed(step: str, change: Change) -> Bug:
    axes = AXES[step]
    return on_step(
        step,
        f"{step.replace('_', '-')}-{change.slug}",
        lambda state, array: change.apply(array, axes, setting_of(state)),
        f"{WORDS[step]} is the definition's, {change.words}.",
        f"Compute {lower(WORDS[step])} as the transpose of the step that it belongs to, and of nothing else.",
    )


def lower(words: str) -> str:
    return words[0].lower() + words[1:]


def setting_of(state: State) -> Setting:
    return Setting(state.config, state.sizes)


# Gradients that are given by their names --------------------------------------------------------------


def axes_of(name: str, array: NDArray) -> tuple[str, ...]:
    """The axes of a gradient that the subject shows."""
    if name.endswith(".weight"):
        return ("output channel", "input channel")
    if array.ndim == 1:
        return ("channel",)
    row = "query" if name == "queries" else "key"
    return ("item", row, "channel") if array.ndim == 3 else ("item", "head", row, "channel")


def _of_named(view: View, found: Sequence[Backward]) -> Iterator[Ranked]:
    for step in (*DICTS, "d_bias"):
        names = {name: None for one in found for name in _named(one, step)}
        for name in names:
            pairs = [(one, _named(one, step)[name]) for one in found if name in _named(one, step)]
            if not any(name in one.wrong for one, _ in pairs):
                continue
            samples = [
                Sample(
                    one.measured[name],
                    array,
                    axes_of(name, array) if step != "d_bias" else ("item", "head", "query", "key")[-array.ndim :],
                    Setting(one.problem.config, one.problem.sizes),
                    unit=unit_of(view),
                )
                for one, array in pairs
                if name in one.measured
            ]
            if len({sample.axes for sample in samples}) > 1:
                continue
            for change in _fitted(samples):
                yield 1, _changed_name(step, name, change, samples[0].axes)


def _named(one: Backward, step: str) -> dict[str, NDArray]:
    value = one.state.arrays[step]
    if step == "d_bias":
        return {} if value is None else {"bias": value}
    return dict(value)


def _changed_name(step: str, name: str, change: Change, axes: tuple[str, ...]) -> Bug:
    def changed(state: State, result: Any) -> Any:
        if step == "d_bias":
            return None if result is None else change.apply(result, axes, setting_of(state))
        if name not in result:
            return result
        return {**result, name: change.apply(result[name], axes, setting_of(state))}

    return on_step(
        step,
        f"gradient-of-{name}-{change.slug}",
        changed,
        f"The gradient of {name} is the definition's, {change.words}.",
        f"Give {name} the gradient of the step that reads it, summed over everything that reads it.",
    )


# By effect --------------------------------------------------------------------------------------------


def _by_formula(view: View, found: Sequence[Backward]) -> Iterator[Ranked]:
    first = found[0]
    for formula in formulas_of(first.state):
        fits = _shares(first, formula)
        if fits is None:
            continue
        rank, a, b = fits
        numbers = [(a, b, first)]
        for one in found[1:]:
            more = _shares(one, formula)
            if more is not None:
                numbers.append((more[1], more[2], one))
        rank -= len(numbers) < len(found)  # a mean of two heads may be an exchange
        settings = [Setting(one.problem.config, one.problem.sizes) for _, _, one in numbers]
        for first_words in _expressions([a for a, _, _ in numbers], settings, view)[:2]:
            for second_words in _expressions([b for _, b, _ in numbers], settings, view)[:2]:
                yield rank, _mixed(formula, first_words, second_words)


def _expressions(numbers: Sequence[float], settings: Sequence[Setting], view: View) -> list[Expression]:
    return expressions_of(list(zip(numbers, settings, strict=True)), unit=unit_of(view))


def _shares(one: Backward, formula: Formula) -> tuple[int, float, float] | None:
    """(gradients that it explains, a, b): a times the step's array plus b times the formula's instead of it."""
    step = formula.step
    value = one.state.arrays.get(step)
    if value is None or (isinstance(value, dict) and formula.name not in value):
        return None
    try:
        with any_numbers:
            other = formula.array(one.state)
    except (DoesNotApply, KeyError, ValueError):
        return None
    if formula.name:
        if other.shape != value[formula.name].shape or formula.name not in one.wrong:
            return None
        parts = {formula.name: (value[formula.name], other, one.measured[formula.name])}
    else:
        if other.shape != value.shape or not one.wrong & {*one.reached(step)}:
            return None
        zeroed, made = one.zeroed(step), one.with_array(step, other)
        names = [name for name in one.measured if one.differs(name, made[name])]
        parts = {
            name: (one.expected[name] - zeroed[name], made[name] - zeroed[name], one.measured[name] - zeroed[name])
            for name in names
        }
    votes: dict[tuple[float, float], int] = {}
    for name, (x, t, measured) in parts.items():
        if name not in one.wrong:
            return None
        shares = _solved(x.ravel(), t.ravel(), measured.ravel())
        if shares is not None and one.is_measured(name, one.measured[name] - measured + shares[0] * x + shares[1] * t):
            near = next((old for old in votes if np.allclose(old, shares, rtol=1e-4, atol=1e-6)), shares)
            votes[near] = votes.get(near, 0) + 1
    if not votes:
        return None
    best = max(votes, key=lambda shares: votes[shares])
    if best[1] == 0.0 and not formula.is_zero:
        return None  # a factor, which another formula is
    return votes[best], *best


def _solved(x: NDArray, t: NDArray, measured: NDArray) -> tuple[float, float] | None:
    """a, b with measured = a x + b t, by least squares; a = 0 if x and t are parallel, None if they are equal."""
    if not np.isfinite(t).all() or measured.size < 3:
        return None
    if not t.any():
        square = float(x @ x)
        return (float(x @ measured) / square, 0.0) if square else None
    basis = np.stack([x, t], axis=1)
    scale = np.abs(basis).max(axis=0)
    scale[scale == 0.0] = 1.0
    found, rank = least_squares(basis / scale, measured, rcond=1e-9)
    if rank < 2:
        square = float(t @ t)
        # What is the same here says no more than a factor does.
        return None if np.allclose(t, x, rtol=1e-9, atol=0.0) else (0.0, float(t @ measured) / square)
    a, b = found / scale
    return (_whole(float(a)), _whole(float(b)))


def _whole(number: float) -> float:
    """The number, as an integer if it is one but for rounding."""
    return float(round(number)) if abs(number - round(number)) < 1e-7 else number


def _mixed(formula: Formula, a: Expression, b: Expression) -> Bug:
    step, name = formula.step, formula.name

    def mixed(state: State, result: Any) -> Any:
        if result is None or (name and name not in result):
            return result
        setting = setting_of(state)
        array = result[name] if name else result
        try:
            other = formula.array(replace(state, arrays={**state.arrays, step: result}))
        except DoesNotApply:
            return result  # a layer without a softcap, say, has nothing that could be wrong
        if other.shape != array.shape:
            raise DoesNotApply(f"{formula.words}: another shape")
        total = a.at(setting) * array + b.at(setting) * other if a.words != "0" else b.at(setting) * other
        return {**result, name: total} if name else total

    if not formula.is_zero and b.words == "0":
        words = f"the definition's, times {a.words}"
    elif formula.is_zero:
        words = "0" if a.words == "0" else f"the definition's, times {a.words}"
    else:
        other = formula.words if b.words == "1" else f"{b.words} times {formula.words}"
        own = (
            ""
            if a.words == "0"
            else "the definition's plus "
            if a.words == "1"
            else f"{a.words} times the definition's plus "
        )
        words = f"{own}{other}"
    what = f"The gradient of {name}" if name else WORDS[step]
    slug = f"times-{a.slug}" if formula.is_zero else f"{formula.slug}-{a.slug}-{b.slug}"
    return on_step(
        step,
        f"{step.replace('_', '-')}-{name + '-' if name else ''}{slug}",
        mixed,
        f"{what} is {words}.",
        formula.fix or f"Compute {lower(what)} as the transpose of the step that it belongs to.",
    )
