"""Mixtures: how much of other items each item gets, read off as a matrix and named by a rule for every batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.items import MATRICES, Matrix, mixed
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.sample import Setting
from conformance.experiments.readings.responses import own_and_other, read_mixture
from conformance.experiments.readings.weights import read_scores
from conformance.experiments.view import View
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.state import State

AFTER_SOFTMAX = ("values", "weights", "heads", "output")
"""Parts of which the output is a sum over them; of the others the scores are."""

MOST_PROBLEMS = 4


def mixtures(view: View, parts: tuple[str, ...]) -> Iterator[Bug]:
    """Bugs by which items get a of their own part and c of another combination of items, with a and c as read."""
    problems = [problem for problem in view.problems if problem.sizes.batch > 1][:MOST_PROBLEMS]
    for part in parts:
        read = [(problem, read_matrix(view, problem, part)) for problem in problems]
        found = [(matrix, Setting(problem.config, problem.sizes)) for problem, matrix in read if matrix is not None]
        if found and len(found) == len(problems):
            yield from _named(part, found, view.lab.unit)


def read_matrix(view: View, problem: Problem, part: str) -> NDArray | None:
    """(B, B): row b says how much of each item's part item b has; None if the answers are no such mixture."""
    batch = problem.sizes.batch
    measured = _read(view.got, problem, part)
    nothing = _read(_with(view, part, np.zeros((batch, batch))), problem, part)
    if measured is None or nothing is None:
        return None
    parts = []
    for item in range(batch):
        only = np.zeros((batch, batch))
        only[:, item] = 1.0
        array = _read(_with(view, part, only), problem, part)
        if array is None:
            return None
        parts.append(array - nothing)
    return read_mixture(measured - nothing, parts, 100 * view.lab.unit)


def _read(answer: Callable[[Problem], NDArray | None], problem: Problem, part: str) -> NDArray | None:
    return answer(problem) if part in AFTER_SOFTMAX else read_scores(answer, problem)


def _with(view: View, part: str, matrix: NDArray) -> Callable[[Problem], NDArray | None]:
    """The model with a mixture of the items of one part."""
    bug = mixed(part, "tried", "", lambda state: matrix)

    def answer(problem: Problem) -> NDArray | None:
        arrays = view.variants.run(view.lab.rounded(problem), (*view.model, bug))
        return arrays["output"] if arrays else None

    return answer


def _named(part: str, found: list[tuple[NDArray, Setting]], unit: float) -> Iterator[Bug]:
    for name, (words, other) in MATRICES.items():
        try:
            numbers = [own_and_other(matrix, other(len(matrix)), unit) for matrix, _ in found]
        except DoesNotApply:
            continue
        known = [one for one in numbers if one is not None]
        if len(known) < len(numbers):
            continue
        owns = _expressions([own for own, _ in known], [setting for _, setting in found], unit)
        rests = _expressions([rest for _, rest in known], [setting for _, setting in found], unit)
        for own, rest in product(owns[:2], rests[:2]):
            if rest.words == "0" and name != "sum":
                continue  # a factor on their own, whatever the other matrix
            if not (own.words == "0" and rest.words == "1"):
                yield mixed(
                    part,
                    f"{own.words.replace(' ', '')}-own-{rest.words.replace(' ', '')}-{name}",
                    f"{own.words} times their own plus {rest.words} times {words}",
                    _sum_of(own, rest, other),
                )


def _expressions(numbers: list[float], settings: list[Setting], unit: float) -> list[Expression]:
    if all(abs(number) < 1e-7 for number in numbers):
        return [Expression("0", lambda setting: 0.0)]
    return expressions_of(list(zip(numbers, settings, strict=True)), unit=max(1e4 * unit, 1e-10))


def _sum_of(own: Expression, rest: Expression, other: Matrix) -> Callable[[State], NDArray]:
    def matrix(state: State) -> NDArray:
        setting, batch = Setting(state.config, state.sizes), state.sizes.batch
        return own.at(setting) * np.eye(batch) + rest.at(setting) * other(batch)

    return matrix
