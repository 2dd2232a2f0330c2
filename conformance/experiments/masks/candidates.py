"""Candidates: measured bugs of masks, the likeliest first, and rarer ones only where none of those fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.masks.combined import combined_bugs
from conformance.experiments.masks.exclusion import exclusion_bugs
from conformance.experiments.masks.lengths import length_bugs
from conformance.experiments.masks.offsets import offset_bugs
from conformance.experiments.masks.patterns import always_bugs, pattern_bugs
from conformance.experiments.masks.places import INDICES, Place, on_axis
from conformance.experiments.masks.positions import causal_bugs, window_bugs
from conformance.experiments.masks.reading import read_exclusion, read_off
from conformance.experiments.masks.sources import SIDES, SOURCES, given, on_source, only_where, with_zeroed_padding
from conformance.experiments.readings.weights import read_weights
from conformance.experiments.view import View, fits
from conformance.zoo.bug import Bug

OWN = {
    "valid_lens": length_bugs,
    "causal": causal_bugs,
    "window": window_bugs,
    "offset": offset_bugs,
    "several": combined_bugs,
}
"""Source -> the bugs of its numbers; "offset" and "several" are not sources, but may be wrong."""

PADDED = ("valid_lens", "allowed")
"""The sources that make padding."""


def proposals(view: View, sources: Sequence[str]) -> Iterator[Bug]:
    """Measured bugs of these sources. Those in some heads or queries alone only if nothing simpler gives a problem."""
    wrong = next(view.differing(), None)
    if wrong is None:
        return
    likely = list(_likely(view, wrong, sources))
    yield from likely
    yield with_zeroed_padding(on_source("all", "ignored", lambda state, array: np.ones_like(array), "is ignored"))
    if not any(fits(view.lab, view.variants, wrong, (*view.model, bug)) for bug in likely):
        yield from rarer(view, wrong, likely)


def _likely(view: View, wrong: Problem, sources: Sequence[str]) -> Iterator[Bug]:
    for source in sources:
        yield from read_off(view, wrong, source)
        if source in OWN:
            yield from _of_items(OWN[source](), wrong)
    yield from read_exclusion(view, wrong)
    real = [source for source in sources if source in SOURCES]
    real += SIDES if "window" in real else ()
    one_by_one = [list(_of_items(pattern_bugs(source), wrong)) for source in (*real, "all")]
    for same in zip(*one_by_one, strict=True):
        yield from same
    yield from exclusion_bugs()
    yield from always_bugs()


def _of_items(bugs: Sequence[Bug], problem: Problem) -> Iterator[Bug]:
    """The bugs without those that tell items apart, if the problem has one alone."""
    return (bug for bug in bugs if problem.sizes.batch > 1 or "item" not in bug.id)


def rarer(view: View, wrong: Problem, likely: Sequence[Bug]) -> Iterator[Bug]:
    """The bugs in a layer that zeroes padding all the same; and in those heads or queries whose weights are wrong."""
    mask = wrong.inputs.mask
    if any(source in PADDED for source in given(mask)):
        yield from (with_zeroed_padding(bug) for bug in likely if set(bug.forward) == {"allowed"})
    single = [bug for bug in likely if len(bug.forward) == 1]
    for name, (words, where) in wrong_places(view, wrong):
        yield from (only_where(bug, name, words, where) for bug in single)


def wrong_places(view: View, problem: Problem) -> list[tuple[str, Place]]:
    """The sets of heads, and of queries, that are those whose weights differ from the model's, if not all do."""
    got, made = read_weights(view.got, problem), read_weights(view.made, problem)
    if got is None or made is None:
        return []
    differ = ~np.isclose(got, made, rtol=1e-6, atol=1e-9, equal_nan=True)
    found = []
    for axis, place in (("head", 1), ("query", 2)):
        wrong = differ.any(axis=tuple(one for one in range(4) if one != place))
        if wrong.any() and not wrong.all():
            for name, (indices_words, indices) in INDICES.items():
                if np.array_equal(indices(np.arange(len(wrong)), len(wrong)), wrong):
                    found.append((f"{name}-{axis}", (indices_words.format(axis), on_axis(axis, indices))))
    return found
