"""Weights: other softmaxes that give the weights that were read, with their numbers; and weights that are left out.

a_ij = f(s_i1, ..., s_in)_j:  which f, with which number, gives the weights of every layer that was asked?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.evidence import Evidence
from conformance.measure.faults import only_at
from conformance.measure.grammar.expressions import Expression, constant, expressions_of
from conformance.measure.grammar.numbers import snapped, solve
from conformance.measure.grammar.profiles import Profile, of_heads
from conformance.measure.grammar.sample import Setting, of_each
from conformance.measure.grammar.where import conditions_of_samples, inside_of, parts_of
from conformance.measure.propose.steps import at_places
from conformance.measure.softmax import forms
from conformance.measure.softmax.forms import FAMILIES, Family
from conformance.measure.softmax.left_out import left_out
from conformance.measure.softmax.scored import Form, Make
from conformance.measure.softmax.weighed import Weighed, softmax_bug, weighed
from conformance.zoo.bug import Bug

MOST_SAMPLES, MOST_IN_PARTS = 6, 8
"""Calls of a probe whose weights are read; softmaxes that are tried in each part."""


def _readable(evidence: Evidence) -> list[Problem]:
    """Some problems of the probe: those without dropout, of each layer in turn."""
    given = [one for one in evidence.problems if one.inputs.dropout_keep is None and one.sizes.key_len]
    before = [[one.config for one in given[:place]].count(problem.config) for place, problem in enumerate(given)]
    return [given[place] for place in sorted(range(len(given)), key=before.__getitem__)][:MOST_SAMPLES]


def other_weights(evidence: Evidence, longer: Sequence[Problem]) -> Iterator[Bug]:
    """Every softmax that gives the measured weights: of longer rows too, or else of the probe's problems alone.

    Only if there is none, those in places alone; and changes of the sums, of the weights and of the scores.
    """
    own, rows = weighed(evidence, _readable(evidence)), weighed(evidence, longer)
    for samples in ((*own, *rows), own):
        if not any(one.sample.differs for one in samples):
            continue
        problems = [*_readable(evidence), *(longer if len(samples) > len(own) else ())]
        found, lost = _found(samples), list(left_out(evidence, samples))  # the latter are not verified
        yield from (*found, *lost)
        fitted = list(at_places(evidence, problems, ("sums", "weights", "kept_weights", "scores")))
        yield from fitted
        parts = [] if found or fitted else list(_in_parts(evidence, samples))
        yield from parts
        if found or fitted or (parts and not lost) or not any(one.sample.differs for one in rows):
            return


def _found(samples: Sequence[Weighed]) -> list[Bug]:
    found: list[Bug] = []
    for form in forms.PLAIN:
        if all(one.is_given_by(one.made(form.make)) for one in samples):
            found.append(softmax_bug(form.name, form.make, form.words))
    for form in forms.TIMES_A_NUMBER:
        found += _times_a_number(form, samples)
    for family in FAMILIES:
        found += _of_family(family, samples)
    return found


def _times_a_number(form: Form, samples: Sequence[Weighed]) -> Iterator[Bug]:
    numbers = []
    for one in samples:
        ratio = _ratio(one, one.made(form.make))
        if ratio is None:
            return
        numbers.append((ratio, one.sample.setting))
    for number in _named(numbers, samples):
        said = f"{form.words} All of it is times {number.words}."
        yield (
            softmax_bug(form.name, form.make, form.words)
            if number.words == "1"
            else softmax_bug(f"{form.name}-times-{number.slug}", _times(form.make, number), said)
        )


def _times(make: Make, number: Expression) -> Make:
    return lambda s: make(s) * number.at(s.setting)


def _ratio(one: Weighed, made: NDArray) -> float | None:
    """The number times which `made` is what was measured, or None."""
    measured = one.sample.measured
    if one.is_given_by(made):
        return 1.0
    good = np.isfinite(made) & one.sample.known
    with any_numbers:
        square = float(made[good] @ made[good])
        if not square or not np.isfinite(square):
            return None
        number = float(made[good] @ measured[good]) / square
    return number if number and one.is_given_by(number * made) else None


def _of_family(family: Family, samples: Sequence[Weighed]) -> Iterator[Bug]:
    """The members of a family that give every sample, their number as an expression of the sizes."""
    numbers: list[tuple[float, Setting]] = []
    for one in samples:
        if not one.sample.differs:
            continue

        number = _number_of(family, one, [number for number, _ in numbers])
        if number is None:
            return
        numbers.append((number, one.sample.setting))
    for expression in _named(numbers, samples):
        make = _member(family, expression)
        if all(one.is_given_by(one.made(make)) for one in samples):
            sentence = family.words.format(expression.words)
            yield softmax_bug(f"{family.name}-{expression.slug}", make, sentence)
            if family.name.startswith(("plus", "smoothed", "mixed")):
                said = f"{sentence} Excluded keys get it too."
                yield softmax_bug(f"{family.name}-{expression.slug}", make, said, excluded=True)


def _number_of(family: Family, one: Weighed, starts: Sequence[float]) -> float | None:
    return solve(
        lambda number: one.off(one.made(lambda s: family.make(s, number))),
        (*family.starts, *starts),
        one.sample.tolerance,
    )


def _member(family: Family, number: Expression) -> Make:
    return lambda s: family.make(s, number.at(s.setting))


def of_each_head(evidence: Evidence, longer: Sequence[Problem]) -> Iterator[Bug]:
    """Softmaxes with a number of each head, and changes of the weights that hold for the heads that were seen."""
    samples = weighed(evidence, [*_readable(evidence), *longer])
    for family in FAMILIES:
        differing = [one for one in samples if one.sample.differs]
        read = of_each(_numbers_of_heads(family, one) for one in differing)
        if not read:
            continue
        for slug, words, profile in of_heads([one.sample for one in differing], read):
            make = _member_of_each_head(family, profile)
            if all(one.is_given_by(one.made(make)) for one in samples):
                yield softmax_bug(f"{family.name}-{slug}", make, family.words.format(words))
    yield from at_places(
        evidence, [*evidence.problems, *longer], ("weights", "kept_weights", "scores"), thoroughly=True
    )


def _numbers_of_heads(family: Family, one: Weighed) -> NDArray | None:
    starts: list[float] = []
    for head in range(one.scored.scores.shape[1]):
        number = _number_of(family, one.of_head(head), starts)
        if number is None:
            return None
        starts.append(number)
    return np.array(starts)


def _member_of_each_head(family: Family, profile: Profile) -> Make:
    return lambda s: family.make(s, profile(s.scores.shape[1], s.setting)[:, None, None])


def _named(numbers: Sequence[tuple[float, Setting]], samples: Sequence[Weighed]) -> list[Expression]:
    """Expressions for a number, of few digits if it may be."""
    if not numbers:
        return []
    unit = samples[0].sample.unit
    close = max(1e-9, 1e4 * unit)
    first = numbers[0][0]
    if all(abs(one - first) <= close * abs(first) for one, _ in numbers):
        # Equal at all sizes: so it depends on none that differ between the samples.
        return [constant(snapped(first, close))] if abs(first) > 1e-9 else []
    return expressions_of(numbers, unit=10.0 * unit)


def _in_parts(evidence: Evidence, samples: Sequence[Weighed]) -> Iterator[Bug]:
    """The softmaxes that give a part of the weights, or those of some calls, there alone."""
    arrays = [one.sample for one in samples]
    differing = [one for one in samples if one.sample.differs]
    conditions = list(islice(conditions_of_samples(arrays), MOST_IN_PARTS))
    for places in (*parts_of(arrays), conditions) if conditions else parts_of(arrays):
        inside = differing
        if places is not conditions:
            inside = [replace(one, sample=inside_of(one.sample, places[0])) for one in samples]
        bugs = [*_found(inside), *left_out(evidence, inside)][:MOST_IN_PARTS]
        yield from (found for bug in bugs for place in places if (found := only_at(bug, place)) is not None)
        if bugs:
            return
