"""Ranking: the best hypotheses of a search so far, by how far a few numbers of their outputs are off."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from mha.infer.hypotheses.hypothesis import Hypothesis

KEPT = 400
"""How many of the best hypotheses are ranked again on the larger sample."""

PROMISING = 0.7
"""A sketch's misfit, relative to the outputs' differences, from which on a hypothesis is as good as chance."""

SIGNIFICANT = 1e-2
"""A sketch's misfit that chance does not reach, in any number of hypotheses that there is time for."""


@dataclass
class Ranking:
    """The best hypotheses so far; and those too close for chance, until the search judges them.

    Attributes:
        best: a heap of (-misfit, number, hypothesis), worst first.
        searched: how many hypotheses were ranked.
        significant: those with a misfit below SIGNIFICANT that were not judged yet.
        nearest: the least misfit that was seen, with its hypothesis.
    """

    best: list[tuple[float, int, Hypothesis]] = field(default_factory=list)
    searched: int = 0
    significant: list[Hypothesis] = field(default_factory=list)
    nearest: tuple[float, Hypothesis | None] = (np.inf, None)
    _ticket: Iterator[int] = field(default_factory=count)

    @property
    def cutoff(self) -> float:
        return PROMISING if len(self.best) < KEPT else -self.best[0][0]

    def promising(self, misfit: NDArray) -> NDArray[np.intp]:
        """The places of the least numbers of an array, at most KEPT; the least one if all are as good as chance."""
        good = np.argwhere(misfit < self.cutoff)
        if len(good) > KEPT:
            flat = np.argpartition(misfit, KEPT, axis=None)[:KEPT]
            good = np.stack(np.unravel_index(flat, misfit.shape), axis=1)
        return good if len(good) else np.argwhere(misfit == misfit.min())[:1]

    def takes(self, misfit: float) -> bool:
        """Whether `add` keeps a hypothesis with this misfit."""
        return misfit < self.cutoff or misfit < self.nearest[0]

    def add(self, misfit: float, hypothesis: Hypothesis) -> None:
        if misfit >= self.cutoff:
            if misfit < self.nearest[0]:
                self.nearest = misfit, hypothesis
            return
        entry = (-misfit, next(self._ticket), hypothesis)
        if misfit < SIGNIFICANT:
            self.significant.append(hypothesis)
        if len(self.best) < KEPT:
            heapq.heappush(self.best, entry)
        else:
            heapq.heappushpop(self.best, entry)

    def ranked(self) -> list[Hypothesis]:
        """The hypotheses, best first; if all are as good as chance, the nearest one."""
        if not self.best and self.nearest[1] is not None:
            return [self.nearest[1]]
        return [hypothesis for _, _, hypothesis in sorted(self.best, key=lambda entry: -entry[0])]
