r"""Curves: each number of one step is a function of the right one; which, with which number, is told by running models.

Nothing is read off but the output, so any step in any call can be looked at: with f_c at one step,

    min_c |o - m(f_c)|        o measured, m the output of the model with that step's numbers replaced by f_c of them

is 0 for the function and the number that are meant. Of a grid of numbers the best is where Gauss and Newton begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.elementwise.bench import INSIDE, NAMES, PROMISING, Bench, Fitted, size_of
from conformance.experiments.candidates.elementwise.cuts import CUTS, cut
from conformance.experiments.candidates.elementwise.shown import parts_shown
from conformance.experiments.changes.elements.values import FUNCTIONS, Elementwise
from conformance.experiments.changes.numbers import neat
from conformance.experiments.changes.parameter import solve
from conformance.experiments.lab import Lab
from conformance.experiments.view import View, fits
from conformance.zoo.bug import Bug, DoesNotApply


@dataclass(frozen=True)
class Curve:
    """Functions with one number.

    Args:
        slug, words: with {} for the number; the words follow "NAME are ".
        of: (x, c) -> the changed x.
        grid: numbers to begin from; if the output is not `linear` in the number, one of them must explain something.
    """

    slug: str
    words: str
    of: Callable[[NDArray, float], NDArray]
    grid: tuple[float, ...]
    linear: bool = False

    def at(self, number: float) -> Elementwise:
        return lambda x: self.of(x, number)


LIMITS = tuple(0.04 * 1.7**k for k in range(13))
"""From 0.04 to 23."""

SLOPES = (-1.0, 0.0, 0.5, 2.0)

POWERS = (0.33, 0.5, 0.7, 1.3, 1.5, 2.0, 3.0)

CURVES: tuple[Curve, ...] = (
    Curve("cap-tanh-{}", "replaced by c * tanh(x / c) with c = {}", lambda x, c: c * np.tanh(x / c), LIMITS),
    Curve("clipped-at-{}", "clipped at +-{}", lambda x, c: x.clip(-abs(c), abs(c)), LIMITS),
    Curve("cap-softsign-{}", "replaced by x / (1 + |x| / c) with c = {}", lambda x, c: x / (1 + np.abs(x) / c), LIMITS),
    Curve("cap-arctan-{}", "replaced by c * arctan(x / c) with c = {}", lambda x, c: c * np.arctan(x / c), LIMITS),
    Curve("cap-sin-{}", "replaced by c * sin(x / c) with c = {}", lambda x, c: c * np.sin(x / c), LIMITS),
    Curve("at-most-{}", "at most {}", np.minimum, (*LIMITS, 0.0)),
    Curve("at-least-{}", "at least {}", np.maximum, (0.0, *(-one for one in LIMITS))),
    Curve("shrunk-by-{}", "moved towards 0 by {}", lambda x, c: np.sign(x) * np.maximum(np.abs(x) - c, 0.0), LIMITS),
    Curve("negative-times-{}", "multiplied by {} where negative", lambda x, c: np.where(x < 0.0, c * x, x), SLOPES),
    Curve("positive-times-{}", "multiplied by {} where positive", lambda x, c: np.where(x > 0.0, c * x, x), SLOPES),
    Curve("power-{}", "to the power of {}, with the sign", lambda x, c: np.sign(x) * np.abs(x) ** c, POWERS),
    Curve("power-{}-of-size", "to the power of {}, without the sign", lambda x, c: np.abs(x) ** c, POWERS),
    Curve("tanh-of-{}", "replaced by tanh({} * x)", lambda x, c: np.tanh(c * x), (0.25, 0.5, 2.0, 4.0)),
)

OF_INSIDE: tuple[Curve, ...] = (
    Curve("times-{}", "multiplied by {}", lambda x, c: c * x, (0.5, 1.0, 2.0), linear=True),
    Curve("plus-{}", "increased by {}", lambda x, c: c + x, (0.0,), linear=True),
)
"""At places that no reading shows alone."""

MOST_TURNS, MOST_TURNS_HERE = 10, 2
"""Models whose curves are looked for, in all and at one probe."""


_turns: WeakKeyDictionary[Lab, dict[tuple[int, int], int]] = WeakKeyDictionary()


def _has_turn(view: View) -> bool:
    turns = _turns.setdefault(view.lab, {})
    key = id(view.problems[0]), len(view.model)
    if sum(turns.values()) >= MOST_TURNS or turns.get(key, 0) >= MOST_TURNS_HERE:
        return False
    turns[key] = turns.get(key, 0) + 1
    return True


def curves(view: View) -> Iterator[Bug]:
    """Each function at each step that gives the subject's output in one problem, if nothing else explains it."""
    if view.explained or view.gradients or not view.problems or not _has_turn(view):
        return
    differing = [bench for bench in map(_bench, [view] * 4, view.differing()) if bench is not None]
    if not differing:
        return
    # One key has one weight, 1: of a function of the weights that tells a single number.
    differing.sort(key=lambda one: one.problem.sizes.key_len < 2)
    whole = False
    for bug in (fitted.bug() for fitted in fitted_curves(differing)):
        model = (*view.model, bug)
        whole = whole or all(fits(view.lab, view.variants, problem, model) for problem in view.problems)
        yield bug
    if not whole:
        yield from parts_shown(view)


def _bench(view: View, problem: Problem) -> Bench | None:
    try:
        bench = Bench(view, problem)
    except DoesNotApply:
        return None
    return bench if np.isfinite(bench.got).all() and np.isfinite(bench.base) else None


def fitted_curves(benches: Sequence[Bench]) -> Iterator[Fitted]:
    """The functions that give the first bench's output, with numbers that the others bound too."""
    first = benches[0]
    done: dict[str, list[Fitted]] = {}
    for step in NAMES:
        array = first.array(step)
        if array is None:
            continue
        same = next((other for other in done if _same(first.array(other), array) and INSIDE not in (step, other)), None)
        if step == "capped" and same is not None:
            continue  # only a softcap can tell
        found = list(_at(benches, step)) if same is None else [one._replace(step=step) for one in done[same]]
        done[step] = found
        yield from found


def _same(one: NDArray | None, other: NDArray) -> bool:
    """Whether the same numbers stand in two places, in whichever order: functions of each do the same there."""
    return one is not None and one.shape == other.shape and np.array_equal(np.sort(one), np.sort(other), equal_nan=True)


def _at(benches: Sequence[Bench], step: str) -> Iterator[Fitted]:
    first = benches[0]
    with np.errstate(all="ignore"):
        for name, (words, function) in FUNCTIONS.items():
            if first.is_given_by(step, function):
                yield Fitted(step, name, words, function)
        for curve in (*CURVES, *(OF_INSIDE if step in (INSIDE, "additive_hidden") else ())):
            yield from _of_curve(first, step, curve)
        for name in CUTS:
            yield from cut(benches, step, name)


def _of_curve(bench: Bench, step: str, curve: Curve) -> Iterator[Fitted]:
    def off(number: float) -> NDArray:
        return bench.off(step, curve.at(number))

    sizes = sorted((size_of(off(number)), number) for number in curve.grid)
    if not curve.linear and sizes[0][0] > PROMISING * bench.base:
        return
    number = solve(off, [start for _, start in sizes[:2]], bench.enough)
    if number is None:
        return
    unit = bench.view.lab.unit
    for tolerance in (max(1e-9, 10.0 * unit), max(1e-6, 1e4 * unit)):
        told, value = neat(number, tolerance) if abs(number) > 1e-9 else ("0", 0.0)
        yield Fitted(step, curve.slug.format(told), curve.words.format(told), curve.at(value))
