"""Softmaxes that give the measured weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.steps import change_on
from conformance.experiments.candidates.weights.bugs import softmax_bug
from conformance.experiments.candidates.weights.grids import on_grids
from conformance.experiments.candidates.weights.left_out import left_out
from conformance.experiments.candidates.weights.parts import in_parts
from conformance.experiments.changes.expressions import Expression
from conformance.experiments.changes.sample import Change
from conformance.experiments.changes.softmax_families import AXES, FAMILIES, SHIFTS, SUMS
from conformance.experiments.changes.softmaxes import OTHERS, Family, Form, Scored
from conformance.experiments.readings import softmax as reading
from conformance.experiments.readings.terms import Terms, terms_at
from conformance.experiments.view import View
from conformance.zoo.bug import Bug


def likeliest(view: View, longer: Sequence[Problem]) -> Iterator[Bug]:
    """Every softmax that gives the measured weights: of longer rows too, or else of the probe's problems alone.

    Only if there is none, those in places alone; and changes of the weights.
    """
    own = reading.weighed(view, reading.readable(view))
    rows = reading.weighed(view, longer)
    for samples in ((*own, *rows), own):
        if not any(one.sample.differs for one in samples):
            continue
        found, lost = _found(samples), list(left_out(view, samples))  # the latter are not verified
        parts = [] if found else list(in_parts(samples, lambda inside: [*_found(inside), *left_out(view, inside)]))
        yield from (*found, *lost, *parts)
        changes = list(reading.matching_changes(samples))
        for change in changes:
            yield _changed(change)
            yield change_on("weights", change)
            yield change_on("kept_weights", change)
        if found or changes or (parts and not lost) or not any(one.sample.differs for one in rows):
            return


def _found(samples: Sequence[reading.Weighed]) -> list[Bug]:
    found: list[Bug] = []
    for form in reading.matching(samples, (*AXES, *SHIFTS)):
        found.append(softmax_bug(form.name, form.make, form.words))
    for form, expression in reading.matching_forms(samples, (*OTHERS, *SUMS)):
        found += _form(form, expression)
    for family, expression in reading.matching_families(samples, FAMILIES):
        found += _member(family, expression)
    found += [_other_sums(change, stable=stable) for change, stable in reading.matching_sums(samples)]
    found += on_grids(samples)
    found += map(_of_terms, terms_at(samples))
    return found


def _form(form: Form, expression: Expression) -> Iterator[Bug]:
    if expression.words == "1":
        yield softmax_bug(form.name, form.make, form.words)
    else:
        slug = f"{form.name}-times-{expression.words.replace(' ', '')}"
        yield softmax_bug(
            slug,
            lambda s: form.make(s) * expression.at(s.setting),
            f"{form.words} All of it is times {expression.words}.",
        )


def _member(family: Family, expression: Expression) -> Iterator[Bug]:
    slug = f"{family.name}-{expression.words.replace(' ', '')}"
    sentence = family.words.format(expression.words)

    def make(s: Scored) -> NDArray:
        return family.make(s, expression.at(s.setting))

    yield softmax_bug(slug, make, sentence)
    if family.name.startswith(("plus", "smoothed", "mixed")):
        yield softmax_bug(slug, make, f"{sentence} Excluded keys get it too.", excluded=True)


def _of_terms(terms: Terms) -> Bug:
    def make(s: Scored) -> NDArray:
        query_len, key_len = s.scores.shape[-2:]
        return s.normalised(s.stable * terms.factors(query_len, key_len, s.setting))

    return softmax_bug(terms.slug, make, terms.words)


def _changed(change: Change) -> Bug:
    return softmax_bug(
        f"weights-{change.slug}",
        lambda s: change.apply(s.weights, reading.AXES, s.setting),
        f"Weights are the definition's {change.words}.",
        excluded=True,
    )


def _other_sums(change: Change, *, stable: bool) -> Bug:
    return softmax_bug(
        f"sums-{change.slug}{'-stable' if stable else ''}",
        lambda s: reading.over_other_sums(s, change, stable=stable),
        f"Exponentials are divided by the sums of other rows: those of the definition {change.words}.",
    )
