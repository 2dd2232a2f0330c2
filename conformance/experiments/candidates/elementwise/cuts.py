"""Cuts: numbers of a step that are 0 on one side of a limit, which lies between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, takewhile

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.elementwise.bench import PROMISING, Bench, Fitted, size_of
from conformance.experiments.changes.elements.limits import shortest
from conformance.experiments.changes.elements.values import Elementwise
from conformance.experiments.changes.numbers import neat

CUTS: dict[str, tuple[str, Elementwise]] = {
    "small": ("replaced by 0 where |x| < {}", np.abs),
    "low": ("replaced by 0 where x < {}", lambda x: x),
    "large": ("replaced by 0 where |x| > {}", lambda x: -np.abs(x)),
    "high": ("replaced by 0 where x > {}", lambda x: -x),
}
"""Name -> (words, function of x below whose limit it is 0)."""

COARSE, MOST_PLACES = 12, 120
"""Limits between two numbers that are tried: a few of all, then so many around the best of them."""

FEW, CLOSER = 8, 1.2
"""Of the low limits, so many are tried each, and then such that each is so many times the one before."""


def cut(benches: Sequence[Bench], step: str, name: str) -> Iterator[Fitted]:
    """Numbers that are 0 below a limit: it lies between two of the numbers; every bench brings them closer."""
    words, size = CUTS[name]
    low, high = -np.inf, np.inf
    for bench in benches:
        array = bench.array(step)
        if array is None:
            continue
        levels = np.unique(size(array[np.isfinite(array)]))
        levels = levels[(levels > low) & (levels < high)]
        place = _best_cut(bench, step, size, levels, high, first=not np.isfinite(low) and not np.isfinite(high))
        if place is None:
            return
        low = max(low, levels[place - 1] if place else -np.inf)
        high = min(high, levels[place] if place < len(levels) else np.inf)
    if not np.isfinite(low) or not np.isfinite(high):
        return
    limit = shortest(float(low), float(high))
    text = neat(abs(limit) if name in ("large", "high") else limit)[0]
    yield Fitted(
        step,
        f"zero-where-{name}-{text}",
        words.format(text),
        lambda x: np.where(size(x) < limit, 0.0, x),
    )


def _some(most: int) -> NDArray:
    """Some of 0..most: evenly, and among the low ones closer, where one more or less changes most of what is lost.

    >>> _some(40).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 18, 21, 25, 29, 32, 36, 40]
    >>> len(_some(10**6))
    76
    """
    low = takewhile(lambda place: place < most / 4, (FEW * CLOSER**k for k in count()))
    return np.unique([*np.linspace(0, most, COARSE).astype(int), *range(min(FEW, most)), *map(round, low)])


def _best_cut(bench: Bench, step: str, size: Elementwise, levels: NDArray, high: float, *, first: bool) -> int | None:
    """How many of the levels are below the limit that gives the output; None if no limit does."""

    def left(place: int) -> float:
        limit = levels[place] if place < len(levels) else high
        return size_of(bench.off(step, lambda x: np.where(size(x) < limit, 0.0, x)))

    coarse = _some(len(levels))
    sizes = np.array([left(int(place)) for place in coarse])
    if first and sizes.min() >= PROMISING * bench.base:
        return None
    # The difference falls in steps and not evenly: what lies around the best of the coarse places comes first.
    around = coarse[int(sizes.argmin())]
    for place in sorted(range(len(levels) + 1), key=lambda one: abs(one - around))[:MOST_PLACES]:
        if left(place) <= bench.enough:
            return place
    return None
