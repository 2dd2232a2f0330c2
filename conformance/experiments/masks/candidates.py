"""Candidates: measured bugs of masks, the likeliest first, and rarer ones only where none of those fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.masks.combined import combined_bugs
from conformance.experiments.masks.exclusion import added, exclusion_bugs, filled
from conformance.experiments.masks.lengths import length_bugs, plus
from conformance.experiments.masks.patterns import pattern_bugs
from conformance.experiments.masks.places import places_on
from conformance.experiments.masks.positions import causal_bugs, diagonal, offset_bugs, sides, window_bugs
from conformance.experiments.masks.sources import SOURCES, only_where, with_zeroed_padding
from conformance.experiments.readings.masks import distances, log_ratios, prefix, read_allowed
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
    if not any(fits(view.lab, view.variants, wrong, (*view.model, bug)) for bug in likely):
        yield from _rarer(likely)


def _likely(view: View, wrong: Problem, sources: Sequence[str]) -> Iterator[Bug]:
    for source in sources:
        yield from _read_off(view, wrong, source)
        if source in OWN:
            yield from _of_items(OWN[source](), wrong)
    yield from read_exclusion(view, wrong)
    real = [source for source in sources if source in SOURCES]
    one_by_one = [list(_of_items(pattern_bugs(source), wrong)) for source in (*real, "all")]
    for same in zip(*one_by_one, strict=True):
        yield from same
    yield from exclusion_bugs()


def _of_items(bugs: Sequence[Bug], problem: Problem) -> Iterator[Bug]:
    """The bugs without those that tell items apart, if the problem has one alone."""
    return (bug for bug in bugs if problem.sizes.batch > 1 or "item" not in bug.id)


def _rarer(likely: Sequence[Bug]) -> Iterator[Bug]:
    simple = [bug for bug in likely if set(bug.forward) == {"allowed"}]
    for bug in simple:
        yield with_zeroed_padding(bug)
    for axis in ("head", "query"):
        for name, (words, where) in places_on(axis).items():
            for bug in likely:
                if len(bug.forward) == 1:
                    yield only_where(bug, name, words, where)


# Read off -----------------------------------------------------------------------------------------


def _read_off(view: View, wrong: Problem, source: str) -> Iterator[Bug]:
    """Numbers larger than those that are tried anyway."""
    measured = read_allowed(view.got, wrong)
    if measured is None or not measured.any():
        return
    mask = wrong.inputs.mask
    if source == "valid_lens" and mask.valid_lens is not None:
        counts = prefix(measured)
        if counts is not None:
            lens = np.asarray(mask.valid_lens)
            off = np.unique(counts - (lens[:, None, None] if lens.ndim == 1 else lens[:, None, :]))
            if len(off) == 1 and off[0]:
                yield plus(int(off[0]))
    if isinstance(mask.query_offset, int) and source in ("causal", "window"):
        inside, outside = distances(measured, mask.query_offset)
        if not inside or inside & outside:
            return
        if source == "causal" and max(inside):
            yield diagonal(max(inside))
        if source == "window" and mask.window is not None and None not in mask.window:
            left, right = (side or 0 for side in mask.window)
            yield sides(-min(inside) - left, max(inside) - right)


def read_exclusion(view: View, problem: Problem) -> Iterator[Bug]:
    """The constant that excluded scores have, or that is added to them, from the weights that they still have."""
    weights, model = read_weights(view.got, problem), view.made_all(problem)
    if weights is None or model is None:
        return
    allowed = problem.allowed()
    found = log_ratios(weights, allowed)
    scores = np.asarray(model["scores"])
    open_mean = np.where(allowed, scores, 0.0).sum(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        open_mean = open_mean / allowed.sum(axis=-1, keepdims=True)
    for number in (_constant(found + open_mean), _constant(found + open_mean - scores)):
        if number is not None:
            yield from filled(number)
            yield from added(number)


def _constant(array: np.ndarray) -> float | None:
    """The number that all finite entries are, to 6 digits; None if they differ or there is none."""
    known = array[np.isfinite(array)]
    if not known.size:
        return None
    middle = float(np.median(known))
    if np.ptp(known) > 1e-6 * max(1.0, abs(middle)):
        return None
    return float(f"{middle:.10g}") if abs(middle) > 1e-9 else 0.0
