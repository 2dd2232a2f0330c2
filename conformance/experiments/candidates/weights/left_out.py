"""Weights that are left out: below a limit, or all but the largest of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.weights.bugs import softmax_bug
from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.softmaxes import Scored
from conformance.experiments.readings import softmax as reading
from conformance.experiments.view import View
from conformance.zoo.bug import Bug, DoesNotApply


def _top(s: Scored, count: int, *, ties: bool = False) -> NDArray[np.bool_]:
    """The `count` largest of each row; with `ties` all that are as large as the last of them."""
    if ties:
        ordered = np.sort(s.open, axis=-1)[..., ::-1]
        return s.open >= ordered[..., [min(max(count, 1), ordered.shape[-1]) - 1]]
    ranks = np.argsort(np.argsort(-s.open, axis=-1, kind="stable"), axis=-1, kind="stable")
    return ranks < count


def left_out(view: View, samples: Sequence[reading.Weighed]) -> Iterator[Bug]:
    limits = reading.narrowed(view, reading.left_out(samples))
    if limits is None:
        return
    least = reading.roundest(*limits)
    yield from _kept(f"at-least-{least:.6g}", f"Weights below {least:.6g} are 0", lambda s: s.weights >= least)
    below = -float(np.log(_relative(samples)))
    if np.isfinite(below):
        edge = reading.roundest(*sorted((below * 0.8, below)))
        yield from _kept(
            f"within-{edge:.6g}",
            f"Scores more than {edge:.6g} below the maximum get no weight",
            lambda s: s.scores >= s.highest - edge,
        )
    counts = reading.most_kept(samples)
    for expression in expressions_of(counts):
        slug = f"top-{expression.words.replace(' ', '')}"
        words = f"Only the {expression.words} largest weights of a row are kept"
        yield from _kept(slug, words, _top_of(expression))
        yield from _kept(f"{slug}-or-equal", f"{words}, and those equal to them", _top_of(expression, ties=True))
    for share, words in ((0.5, "half"), (0.25, "a quarter"), (0.75, "three quarters")):
        yield from _kept(
            f"top-share-{share:g}", f"Only {words} of a row's weights, the largest, are kept", _share(share)
        )
    yield from _kept("at-least-mean", "Weights below the row's mean are 0", lambda s: s.weights >= 1.0 / s.count)


def _top_of(count: Expression, *, ties: bool = False) -> Callable[[Scored], NDArray[np.bool_]]:
    def top(s: Scored) -> NDArray[np.bool_]:
        number = count.at(s.setting)
        if not np.isfinite(number):
            raise DoesNotApply("one over a size of 0 is no number of keys")
        return _top(s, round(number), ties=ties)

    return top


def _share(share: float) -> Callable[[Scored], NDArray[np.bool_]]:
    return lambda s: _top(s, max(1, int(share * s.scores.shape[-1])))


def _relative(samples: Sequence[reading.Weighed]) -> float:
    """The largest exponential less the maximum that got no weight."""
    lost = [float(one.scored.stable[one.lost].max(initial=0.0)) for one in samples]
    return max(lost) or 1.0


def _kept(slug: str, words: str, kept: Callable[[Scored], NDArray[np.bool_]]) -> Iterator[Bug]:
    yield softmax_bug(slug, lambda s: np.where(kept(s), s.weights, 0.0), f"{words}; the rest is left as it is.")
    yield softmax_bug(
        f"{slug}-normalised",
        lambda s: s.normalised(np.where(kept(s), s.weights, 0.0)),
        f"{words}, and the rest is divided by its sum again.",
    )
