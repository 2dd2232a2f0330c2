"""Places: what befalls some items, queries or keys of an axis: another one's numbers, zeros, a factor that was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.conditions import AXIS, Condition, Seen, only_where
from conformance.experiments.changes.axes import RULES, Rule, taken
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.sample import Setting
from conformance.experiments.measured import on_step
from conformance.experiments.readings.weights import Answer, read_scores
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from conformance.zoo.registry import all_bugs
from mha_core.reference.state import State

ROWS: dict[str, tuple[str, ...]] = {
    "item": ("queries", "keys", "values", "weights", "heads", "output"),
    "query": ("queries", "weights", "heads", "output"),
    "key": ("keys", "values", "weights", "kept_weights"),
}
"""Axis -> the steps whose places are changed along it."""

FIX = "Treat all items, queries and keys by one rule, whatever their place and the sizes of the call."


_NUMBERED: tuple[tuple[str, str, Callable[[NDArray, int, int], NDArray]], ...] = (
    ("repeated-each-{}", "i has those of i mod {}", lambda i, size, n: i % n),
    ("clamped-at-{}", "from {0} on they have those of {0}", lambda i, size, n: np.minimum(i, n)),
    ("first-of-{}", "each has those of the first of its block of {}", lambda i, size, n: i // n * n),
    ("reversed-in-{}", "each block of {} stands in reverse order", lambda i, size, n: _reversed_in(i, size, n)),
    ("zero-from-{}", "from {} on they are 0", lambda i, size, n: np.where(i < n, i, -1)),
    ("rolled-{}", "each has those of the place {} before, in a circle", lambda i, size, n: (i - n) % max(size, 1)),
    ("behind-{}", "each has those of the place {} before, or zeros", lambda i, size, n: np.maximum(i - n, -1)),
    (
        "before-{}",
        "each has those of the place {} behind, or zeros",
        lambda i, size, n: np.where(i + n < size, i + n, -1),
    ),
)
"""(slug, words, (places, length, number) -> which place each reads, -1 for zeros)."""


def numbered_rules(numbers: Iterable[int]) -> Iterator[tuple[str, str, Rule]]:
    """Orders of an axis that depend on a number: (slug, words, rule)."""
    for n in numbers:
        for slug, words, rule in _NUMBERED:
            yield slug.format(n), words.format(n), _with_number(rule, n)


def _with_number(rule: Callable[[NDArray, int, int], NDArray], n: int) -> Rule:
    return lambda size: rule(np.arange(size), size, n)


def _reversed_in(place: NDArray, size: int, n: int) -> NDArray:
    last = np.minimum(place // n * n + n, size) - 1
    return last - place % n


def reordered(axis: str, numbers: Sequence[int]) -> Iterator[Bug]:
    """Another order of the places of an axis in each step that has it, with these numbers."""
    named = [(name, words, rule) for name, (words, rule) in RULES.items()] if axis != "item" else []
    for step in ROWS[axis]:
        for slug, words, rule in (*named, *numbered_rules(numbers)):
            place = AXIS[axis][step]
            yield on_step(
                step,
                f"{axis}-places-of-{step}-{slug}",
                _in_order(rule, place),
                f"The {axis} axis of the {step.replace('_', ' ')}: {words}.",
                FIX,
            )


def _in_order(rule: Rule, axis: int) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: taken(array, rule(array.shape[axis]), axis)


# What differs where -------------------------------------------------------------------------------


def differing_places(view: View, problem: Problem, axis: str) -> NDArray[np.bool_] | None:
    """Bool over the items or queries: where the model does not give the subject's output."""
    got, made = view.got(problem), view.made(problem)
    if got is None or made is None:
        return None
    others = (1, 2) if axis == "item" else (0, 2)
    with any_numbers:
        most = np.abs(got[np.isfinite(got)]).max(initial=0.0)
        near = (np.abs(got - made) <= 1e5 * view.lab.unit * most) | (got == made) | (np.isnan(got) & np.isnan(made))
    found: NDArray[np.bool_] = ~near.all(axis=others)
    return found


def seen_places(view: View, problems: Sequence[Problem], axis: str) -> list[Seen]:
    """(sizes, which places of the axis differ) of each problem."""
    read = ((problem.sizes, differing_places(view, problem, axis)) for problem in problems)
    return [(sizes, places) for sizes, places in read if places is not None]


def seen_calls(view: View, problems: Sequence[Problem]) -> list[Seen]:
    """(sizes, whether anything differs) of each problem."""
    return [(sizes, np.asarray(places.any())) for sizes, places in seen_places(view, problems, "item")]


# Faults under a condition -------------------------------------------------------------------------


def filed_where(conditions: Sequence[Condition]) -> Iterator[Bug]:
    """Each bug on file, where a condition holds."""
    for condition in conditions:
        for bug in all_bugs():
            limited = None if bug.equivalent else only_where(bug, condition)
            if limited is not None:
                yield limited


def simple() -> Iterator[Bug]:
    """Simple faults, to be limited by a condition."""
    for step in ("queries", "keys", "values", "heads", "merged", "output"):
        yield on_step(step, f"{step}-zero", lambda state, array: np.zeros_like(array), f"The {step} are 0.", FIX)
    yield on_step(
        "weights",
        "weights-uniform",
        lambda state, array: state["allowed"] / np.maximum(state["allowed"].sum(axis=-1, keepdims=True), 1),
        "Weights are uniform over the allowed keys.",
        FIX,
    )
    yield on_step("weights", "weights-zero-unshared", lambda state, array: np.zeros_like(array), "Weights are 0.", FIX)
    yield on_step("similarity", "scores-zero", lambda state, array: np.zeros_like(array), "Scores are 0.", FIX)
    yield on_step("similarity", "scores-unscaled", _unscaled, "Scores are not scaled.", FIX)
    yield on_step("allowed", "nothing-allowed", lambda state, array: np.zeros_like(array), "No key is allowed.", FIX)
    yield on_step("allowed", "all-allowed", lambda state, array: np.ones_like(array), "Every key is allowed.", FIX)
    for slug, words, rule in _POSITIONS:
        yield on_step("allowed", f"allowed-{slug}", _also(rule), words, FIX)


def _unscaled(state: State, array: NDArray) -> NDArray:
    scale = state.config.softmax_scale
    return array / scale if scale else array


_POSITIONS: tuple[tuple[str, str, Callable[[NDArray, NDArray, int, int], NDArray]], ...] = (
    ("causal", "Query i attends to keys up to i without being asked to.", lambda i, j, q, k: j <= i),
    ("causal-from-end", "Queries attend causally, aligned at the end, unasked.", lambda i, j, q, k: j <= i + k - q),
    ("strictly-causal", "Query i attends to keys before i without being asked to.", lambda i, j, q, k: j < i),
    ("anticausal", "Query i attends to keys from i on without being asked to.", lambda i, j, q, k: j >= i),
    ("not-itself", "Query i does not attend to key i.", lambda i, j, q, k: j != i),
    ("only-itself", "Query i attends to key i alone.", lambda i, j, q, k: j == i),
    ("not-first-key", "Nobody attends to key 0.", lambda i, j, q, k: j + 0 * i > 0),
    ("not-last-key", "Nobody attends to the last key.", lambda i, j, q, k: j + 0 * i < k - 1),
)


def _also(rule: Callable[[NDArray, NDArray, int, int], NDArray]) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: array & _positions(state, rule)


def _positions(state: State, rule: Callable[[NDArray, NDArray, int, int], NDArray]) -> NDArray:
    query, key = state.sizes.query_len, state.sizes.key_len
    return rule(np.arange(query)[:, None], np.arange(key), query, key)


def simple_where(conditions: Sequence[Condition]) -> Iterator[Bug]:
    """Each simple fault, where a condition holds."""
    for condition in conditions:
        for bug in simple():
            limited = only_where(bug, condition)
            if limited is not None:
                yield limited


def factors_where(view: View, problems: Sequence[Problem], conditions: Sequence[Condition]) -> Iterator[Bug]:
    """The factor on scores, heads or outputs that was read where something differs, where a condition holds."""
    for step, read in (("similarity", _scores), ("heads", _outputs), ("output", _outputs)):
        numbers = []
        for problem in problems:
            number = _ratio(view, problem, step, read)
            if number is not None:
                numbers.append((number, Setting(problem.config, problem.sizes)))
        for expression in expressions_of(numbers, unit=100 * view.lab.unit)[:3] if numbers else ():
            bug = on_step(
                step,
                f"{step}-times-{expression.words.replace(' ', '')}",
                _times(expression),
                f"The {step} is {expression.words} times what it should be.",
                FIX,
            )
            yield bug
            for condition in conditions:
                limited = only_where(bug, condition)
                if limited is not None:
                    yield limited


def _times(expression: Expression) -> Callable[[State, NDArray], NDArray]:
    return lambda state, array: array * expression.at(Setting(state.config, state.sizes))


def _scores(answer: Answer, problem: Problem) -> NDArray | None:
    return read_scores(answer, problem)


def _outputs(answer: Answer, problem: Problem) -> NDArray | None:
    return answer(problem)


def _ratio(view: View, problem: Problem, step: str, read: Callable[[Answer, Problem], NDArray | None]) -> float | None:
    """Measured over expected, at the queries that differ; None if nothing does."""
    measured, expected = read(view.got, problem), read(view.made, problem)
    if measured is None or expected is None:
        return None
    if step == "heads":
        nothing = _without_heads(view, problem)
        if nothing is None:
            return None
        measured, expected = measured - nothing, expected - nothing
    known = np.isfinite(measured) & np.isfinite(expected)
    off = np.where(known, np.abs(measured - expected), 0.0)
    differs = off > 1e5 * view.lab.unit * np.abs(np.where(known, expected, 0.0)).max(initial=0.0)
    rows = known & differs.any(axis=-1, keepdims=True)
    square = float((expected[rows] ** 2).sum())
    return float((expected[rows] * measured[rows]).sum()) / square if square else None


def _without_heads(view: View, problem: Problem) -> NDArray | None:
    zero = on_step("heads", "no-heads", lambda state, array: np.zeros_like(array), "", "")
    arrays = view.variants.run(view.lab.rounded(problem), (*view.model, zero))
    return arrays["output"] if arrays else None
