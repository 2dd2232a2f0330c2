"""How weights follow from scores: weights read off the output, beside the scores that the model gives there.

a_ij = f(s_i1, ..., s_in)_j:  which f, with which number, gives the weights of every layer that was asked?
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.changes.axes import axis_changes
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.fit import one_change
from conformance.experiments.changes.parameter import snapped, solve
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.experiments.changes.softmaxes import Family, Form, Scored
from conformance.experiments.designs import NO_BIASES, changed, generic
from conformance.experiments.readings.weights import read_weights
from conformance.experiments.view import View
from conformance.zoo.bug import DoesNotApply
from mha_core import AttentionConfig

AXES = ("item", "head", "query", "key")

MOST_SAMPLES = 6

MOST_CHANGES = 12
"""Changes of weights that are proposed."""

BISECTIONS = 20


@dataclass(frozen=True, eq=False)
class Weighed:
    """Measured weights (B, H, Lq, Lk) and what they should have been made of.

    Args:
        sample: the weights as measured, and as the model gives them, in the places where they are in the model.
        scored: the scores of the model.
        inside: bool, that broadcasts: the part of the weights that counts. Default: all.
    """

    sample: Sample
    scored: Scored
    inside: NDArray | None = None

    @property
    def counts(self) -> NDArray[np.bool_]:
        """Where the weights count."""
        shape = self.sample.measured.shape
        return np.ones(shape, bool) if self.inside is None else np.broadcast_to(self.inside, shape)

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Where a key has the weight 0 that has another in the model."""
        return (self.sample.measured == 0.0) & self.scored.allowed & (self.scored.weights > 0.0) & self.counts

    def within(self, inside: NDArray) -> Weighed:
        """The same, of which a part alone counts."""
        return replace(self, inside=inside)

    def off(self, made: NDArray) -> NDArray:
        """What is missing from `made` to the measured weights; NaN in neither counts as 0, in one as infinite."""
        with any_numbers:
            distance = made - self.sample.measured
        alike = (np.isnan(made) & np.isnan(self.sample.measured)) | (made == self.sample.measured)
        if self.inside is not None:
            alike |= ~self.inside
        return np.where(alike, 0.0, np.where(np.isnan(distance), np.inf, distance)).ravel()

    @property
    def error(self) -> float:
        """The largest error that a measured weight may have."""
        measured = np.abs(self.sample.measured)
        return 1000.0 * self.sample.unit * float(measured[np.isfinite(measured)].max(initial=0.0))

    def is_given_by(self, made: NDArray) -> bool:
        return made.shape == self.sample.measured.shape and bool(np.all(np.abs(self.off(made)) <= self.error))


def weighed(view: View, problems: Iterable[Problem]) -> list[Weighed]:
    """The weights of each problem that can be read off."""
    found: list[Weighed] = []
    unit = min(max(1e-14, 10.0 * view.lab.unit), 2e-5)
    for problem in problems:
        made, measured = view.made_all(problem), read_weights(view.got, problem)
        expected = read_weights(view.made, problem)
        if made is None or measured is None or expected is None:
            continue
        if not np.allclose(expected, made["weights"], rtol=1e-6, atol=1e-9, equal_nan=True):
            continue
        setting = Setting(problem.config, problem.sizes)
        scored = Scored.right(made["scores"], problem.allowed(), setting)
        found.append(Weighed(Sample(measured, made["weights"], AXES, setting, unit), scored))
    return found


def readable(view: View) -> list[Problem]:
    """Some problems of the probe: those without dropout, of each layer in turn."""
    given = [one for one in view.problems if one.inputs.dropout_keep is None and one.sizes.key_len]
    places: dict[object, int] = {}
    ranked: list[tuple[int, int, Problem]] = []
    for problem in given:
        places[problem.config] = places.get(problem.config, -1) + 1
        ranked.append((places[problem.config], len(ranked), problem))
    return [problem for _, _, problem in sorted(ranked, key=lambda one: one[:2])][:MOST_SAMPLES]


# What gives them --------------------------------------------------------------------------------------


def matching(samples: Sequence[Weighed], forms: Iterable[Form]) -> Iterator[Form]:
    """Each form that gives all samples."""
    for form in forms:
        with np.errstate(all="ignore"):
            if all(one.is_given_by(one.scored.kept(form.make(one.scored))) for one in samples):
                yield form


def matching_forms(samples: Sequence[Weighed], forms: Sequence[Form]) -> Iterator[tuple[Form, Expression]]:
    """Each form that gives all samples times a number, and that number."""
    for form in forms:
        numbers = []
        for one in samples:
            with any_numbers:
                made = one.scored.kept(form.make(one.scored))
            number = _ratio(one, made)
            if number is None:
                break
            numbers.append((number, one.sample.setting))
        else:
            for expression in named(numbers, samples):
                yield form, expression


def _ratio(one: Weighed, made: NDArray) -> float | None:
    """The number times which `made` is what was measured, or None."""
    measured = one.sample.measured
    if one.is_given_by(made):
        return 1.0
    good = np.isfinite(made) & np.isfinite(measured)
    if one.inside is not None:
        good &= one.inside
    with any_numbers:
        square = float(made[good] @ made[good])
        if not square or not np.isfinite(square):
            return None
        number = float(made[good] @ measured[good]) / square
    return number if number and one.is_given_by(number * made) else None


def matching_families(samples: Sequence[Weighed], families: Sequence[Family]) -> Iterator[tuple[Family, Expression]]:
    """Each family of which a member gives every sample, and its number as an expression of the sizes."""
    telling = [one for one in samples if one.sample.differs]
    for family in families:
        numbers: list[tuple[float, Setting]] = []
        for one in telling:
            starts = (*family.starts, *(number for number, _ in numbers))

            def off(number: float, one: Weighed = one, family: Family = family) -> NDArray:
                return one.off(_member(family, one, number))

            number = solve(off, starts, one.error)
            if number is None:
                break
            numbers.append((number, one.sample.setting))
        else:
            for expression in named(numbers, samples):
                if all(one.is_given_by(_member(family, one, expression.at(one.sample.setting))) for one in samples):
                    yield family, expression


def _member(family: Family, one: Weighed, number: float) -> NDArray:
    with any_numbers:
        return one.scored.kept(family.make(one.scored, number))


def named(numbers: Sequence[tuple[float, Setting]], samples: Sequence[Weighed]) -> list[Expression]:
    """Expressions for a number, of few digits if it may be."""
    unit = samples[0].sample.unit
    found = expressions_of(numbers, unit=10.0 * unit)
    first = numbers[0][0]
    short = snapped(first, max(1e-9, 1e4 * unit))
    if all(abs(one - first) <= max(1e-9, 1e4 * unit) * abs(first) for one, _ in numbers):
        # Equal at all sizes: so it depends on none that differ between the samples.
        return [Expression(f"{short:.9g}", lambda setting: short)] if abs(short) > 1e-9 else []
    return found


def matching_changes(samples: Sequence[Weighed]) -> Iterator[Change]:
    """Other orders of an axis of the weights; if there is none, other changes of all or of a part."""
    found = list(_matching_orders(samples))
    if not found:
        ordered = sorted((one.sample for one in samples), key=lambda sample: not sample.differs)
        with any_numbers:
            found = one_change(ordered)
    yield from found[:MOST_CHANGES]


def _matching_orders(samples: Sequence[Weighed]) -> Iterator[Change]:
    for change in axis_changes(AXES):
        try:
            made = [change.apply(one.sample.expected, AXES, one.sample.setting) for one in samples]
        except DoesNotApply:
            continue
        if all(one.is_given_by(array) for one, array in zip(samples, made, strict=True)):
            yield change


def matching_sums(samples: Sequence[Weighed]) -> Iterator[tuple[Change, bool]]:
    """The sums of which rows stand in place of a row's own; whether of exponentials less their own maximum."""
    for change in axis_changes((*AXES[:3], "sum")):
        if change.slug.startswith("sum-"):
            continue
        for stable in (False, True):
            if all(one.is_given_by(made) for one, made in _with_sums(samples, change, stable=stable)):
                yield change, stable


def _with_sums(samples: Sequence[Weighed], change: Change, *, stable: bool) -> Iterator[tuple[Weighed, NDArray]]:
    for one in samples:
        try:
            yield one, over_other_sums(one.scored, change, stable=stable)
        except DoesNotApply:
            yield one, np.full(one.scored.scores.shape, np.nan)


def over_other_sums(scored: Scored, change: Change, *, stable: bool) -> NDArray:
    """The exponentials over the sums of other rows."""
    exponentials = scored.stable if stable else scored.raw
    total = scored.stable_sum if stable else scored.raw_sum
    with any_numbers:
        return scored.kept(exponentials / change.apply(total, (*AXES[:3], "sum"), scored.setting))


# Weights that are left out, or stand on a grid --------------------------------------------------------


def left_out(samples: Sequence[Weighed]) -> tuple[float, float] | None:
    """(Largest right weight that was measured as 0, smallest that was not), or None if none is 0."""
    lost, kept = [0.0], [1.0]
    for one in samples:
        right = one.scored.weights
        zero = one.lost
        lost += list(right[zero])
        kept += list(right[one.scored.allowed & one.counts & ~zero])
    return (max(lost), min(kept)) if len(lost) > 1 else None


def narrowed(view: View, limits: tuple[float, float] | None) -> tuple[float, float] | None:
    """The limits between which a weight is left out, nearer together: two keys, their weights chosen between them."""
    if limits is None or limits[1] >= 0.5:
        return limits
    low, high = limits
    problem = two_keys(view.lab.configs[0])
    made = view.made_all(problem)
    difference = None if made is None else np.ptp(made["scores"][0, 0, 0])
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(low * high)) if low > 0.0 else high / 16.0
        if not difference or high - low <= 1e-6 * high:
            break
        factor = float(np.log((1.0 - middle) / middle) / difference)
        weights = read_weights(view.got, changed(problem, queries=problem.inputs.queries * factor))
        if weights is None:
            break
        low, high = (middle, high) if weights[0, 0, 0].min() == 0.0 else (low, middle)
    return low, high


@lru_cache(maxsize=64)
def two_keys(config: AttentionConfig) -> Problem:
    """One query and two keys, without biases: the difference of the two scores is linear in the query."""
    return generic(config, seed=3, query_len=1, key_len=2, weights=NO_BIASES)


def most_kept(samples: Sequence[Weighed]) -> list[tuple[float, Setting]]:
    """(Most keys whose weight is not 0 of a row in which keys are left out, sizes) of each sample with such rows."""
    found = []
    for one in samples:
        rows = one.lost.any(axis=-1)
        if rows.any():
            found.append((float((one.sample.measured != 0.0).sum(axis=-1)[rows].max()), one.sample.setting))
    return found


def roundest(low: float, high: float) -> float:
    """The number of fewest digits that is above `low` and at most `high`; of several the largest.

    >>> roundest(0.0087, 0.0123), roundest(0.24, 0.26)
    (0.01, 0.26)
    """
    if not 0.0 <= low < high:
        return high
    for digits in range(1, 17):
        unit = 10.0 ** (np.floor(np.log10(high)) - digits + 1)
        number = float(f"{np.floor(high / unit) * unit:.{digits}g}")
        if low < number <= high:
            return number
    return high
