"""Amounts: how much of a source is added, from what adding it once would do.

What comes after the values is linear, so c times a source adds c times what the source itself adds to the output:

    c = <o - m, m' - m> / <m' - m, m' - m>        o measured, m the model's, m' with the source added once
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.sample import Setting
from conformance.experiments.view import View
from conformance.zoo.bug import Bug


def amounts_of(view: View, bug: Callable[[Expression | None], Bug]) -> Iterator[Bug]:
    """The bugs of a source, of which `bug` adds so much (None: once), that explain what differs."""
    for expression in expressions_of(_numbers(view, bug(None)), unit=100 * view.lab.unit):
        yield bug(expression)


def _numbers(view: View, once: Bug) -> list[tuple[float, Setting]]:
    """The amount at each problem where adding has an effect; none if it does not explain what differs."""
    found = []
    for problem in view.problems:
        got, base = view.got(problem), view.made(problem)
        with_it = view.variants.run(view.lab.rounded(problem), (*view.model, once))
        if got is None or base is None or not with_it:
            continue
        effect = with_it["output"] - base
        amount = _amount(got - base, effect)
        if not effect.any():
            continue
        if amount is None or not _is_small(got - base - amount * effect, got, view.lab.unit):
            return []
        found.append((amount, Setting(problem.config, problem.sizes)))
    return found


def _amount(surplus: NDArray, effect: NDArray) -> float | None:
    with any_numbers:
        amount = float((surplus * effect).sum()) / float((effect * effect).sum() or np.nan)
    return amount if np.isfinite(amount) and amount else None


def _is_small(rest: NDArray, like: NDArray, unit: float) -> bool:
    return bool(np.abs(rest).max(initial=0.0) <= 1e4 * unit * max(1.0, np.abs(like).max(initial=0.0)))
