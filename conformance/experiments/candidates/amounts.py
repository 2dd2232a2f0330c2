"""Amounts: how much of a source is added: the number with which the model gives the subject's output."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.parameter import solve
from conformance.experiments.changes.sample import Setting
from conformance.experiments.view import View
from conformance.zoo.bug import Bug

Making = Callable[[Expression | None], Bug]
"""The amount -> the bug; None: the source once."""


def amounts_of(view: View, bug: Making) -> Iterator[Bug]:
    """The bugs of a source of which so much is added that they explain what differs."""
    for expression in expressions_of(_numbers(view, bug), unit=100 * view.lab.unit):
        yield bug(expression)


def _numbers(view: View, bug: Making) -> list[tuple[float, Setting]]:
    """The amount at each problem where the source has an effect; none if some problem has no such amount."""
    found = []
    for problem in view.problems:
        got, base = view.got(problem), view.made(problem)
        with_it = view.variants.run(view.lab.rounded(problem), (*view.model, bug(None)))
        if got is None or base is None or not with_it or not (with_it["output"] - base).any():
            continue

        def off(number: float, problem: Problem = problem, got: NDArray = got) -> NDArray:
            amount = Expression("so much", lambda setting: number)
            made = view.variants.run(view.lab.rounded(problem), (*view.model, bug(amount)))
            return np.ravel(made["output"] - got) if made else np.full(1, np.nan)

        enough = 1e4 * view.lab.unit * max(1.0, float(np.abs(got).max(initial=0.0)))
        number = solve(off, (0.5,), enough)
        if number is None:
            return []
        found.append((number, Setting(problem.config, problem.sizes)))
    return found
