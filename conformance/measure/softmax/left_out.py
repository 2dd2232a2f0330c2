"""Left out: weights that are 0 below a limit, or but for the largest of a row, and the limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.designs import NO_BIASES, changed, generic
from conformance.measure.evidence import Evidence
from conformance.measure.grammar.expressions import Expression, expressions_of
from conformance.measure.grammar.numbers import roundest
from conformance.measure.read.weights import read_weights
from conformance.measure.softmax.scored import Scored
from conformance.measure.softmax.weighed import Weighed, softmax_bug
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core import AttentionConfig
from mha_core.reference import forward

BISECTIONS = 20
"""Halvings of a limit."""


def left_out(evidence: Evidence, samples: Sequence[Weighed]) -> Iterator[Bug]:
    """Weights that are 0 below a limit, or but for the largest of a row."""
    lost = [float(weight) for one in samples for weight in one.scored.weights[one.lost & one.sample.known]]
    if not lost:
        return
    kept = [one.scored.weights[one.scored.allowed & one.sample.known & ~one.lost].min(initial=1.0) for one in samples]
    least = roundest(*_narrowed(evidence, max(lost), float(min(kept))))
    yield from _kept(f"at-least-{least:.6g}", f"Weights below {least:.6g} are 0", lambda s: s.weights >= least)
    below = -float(np.log(max(float(one.scored.stable[one.lost].max(initial=0.0)) for one in samples) or 1.0))
    if np.isfinite(below) and below > 0.0:
        edge = roundest(0.8 * below, below)
        words = f"Scores more than {edge:.6g} below the maximum get no weight"
        yield from _kept(f"within-{edge:.6g}", words, lambda s: s.scores >= s.highest - edge)
    counts = [
        (float((one.sample.measured != 0.0).sum(axis=-1)[rows].max()), one.sample.setting)
        for one in samples
        if (rows := one.lost.any(axis=-1)).any()
    ]
    for number in expressions_of(counts):
        words = f"Only the {number.words} largest weights of a row are kept"
        yield from _kept(f"top-{number.slug}", words, _top_of(number))
        yield from _kept(f"top-{number.slug}-or-equal", f"{words}, and those equal to them", _top_of(number, ties=True))
    yield from _kept("at-least-mean", "Weights below the row's mean are 0", lambda s: s.weights >= 1.0 / s.count)


Kept = Callable[[Scored], "NDArray[np.bool_]"]


def _kept(slug: str, words: str, kept: Kept) -> Iterator[Bug]:
    yield softmax_bug(slug, lambda s: np.where(kept(s), s.weights, 0.0), f"{words}; the rest is left as it is.")
    said = f"{words}, and the rest is divided by its sum again."
    yield softmax_bug(f"{slug}-normalised", lambda s: forward.softmax(s.scores, s.allowed & kept(s)), said)


def _top_of(expression: Expression, *, ties: bool = False) -> Kept:
    """The largest of each row, NaN before all others; with `ties` all that are as large as the last of them."""

    def top(s: Scored) -> NDArray[np.bool_]:
        number = expression.at(s.setting)
        if not np.isfinite(number):
            raise DoesNotApply("one over a size of 0 is no number of keys")
        count, ordered = round(number), np.sort(s.open, axis=-1)[..., ::-1]
        if ties:
            return s.open >= ordered[..., [min(max(count, 1), ordered.shape[-1]) - 1]]
        with_nan = np.where(np.isnan(s.open), np.inf, s.open)
        return np.argsort(np.argsort(-with_nan, axis=-1, kind="stable"), axis=-1, kind="stable") < count

    return top


def _narrowed(evidence: Evidence, low: float, high: float) -> tuple[float, float]:
    """The limits between which a weight is left out, nearer together: two keys, their weights chosen between them."""
    if high >= 0.5:
        return low, high
    problem = _two_keys(evidence.asker.configs[0])
    made = evidence.made_all(problem)
    difference = None if made is None else np.ptp(made["scores"][0, 0, 0])
    for _ in range(BISECTIONS):
        middle = float(np.sqrt(low * high)) if low > 0.0 else high / 16.0
        if not difference or high - low <= 1e-6 * high:
            break
        factor = float(np.log((1.0 - middle) / middle) / difference)
        weights = read_weights(evidence.got, changed(problem, queries=problem.inputs.queries * factor))
        if weights is None:
            break
        low, high = (middle, high) if weights[0, 0, 0].min() == 0.0 else (low, middle)
    return low, high


@lru_cache(maxsize=64)
def _two_keys(config: AttentionConfig) -> Problem:
    """One query and two keys, without biases: the difference of the two scores is linear in the query."""
    return generic(config, seed=3, query_len=1, key_len=2, weights=NO_BIASES)
