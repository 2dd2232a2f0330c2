"""Search: rank every hypothesis by a sketch, a few numbers of its output.

A layer's output is a sum of products of two factors that are computed apart: the attention weights of a pair (q, k),
and the output that a pair (v, o) gives for each key alone. For a few query rows and output channels, one matrix
product of all the former with all the latter is therefore the output of every quadruple. Rows are compared by their
differences, which do not depend on the biases of values and output; no output depends on the key bias; the query
bias is searched.
"""

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod

import numpy as np
from numpy.typing import NDArray

from mha.infer.arrays import Candidates, Slice
from mha.infer.hypothesis import Hypothesis, kv_of
from mha.infer.observed import Observed
from mha.infer.readings import Reading, families, readings
from mha.infer.sample import Sample

NUMBERS = 8
"""How many output numbers each hypothesis is ranked by."""

CHEAP = 1.5e9
"""Multiplications up to which a tier is searched to its end, even if a hypothesis was found that fits."""

PER_READING = 2e7
"""Overhead of one reading, counted in multiplications."""

DEAR = 1.5e11
"""Multiplications of one tier above which query biases are searched only for the best without one."""

GROWN = 60
"""How many of the best without a query bias are then tried with each."""

KEPT = 400
"""How many of the best hypotheses are ranked again on the larger sample."""

PROMISING = 0.7
"""A sketch's misfit, relative to the outputs' differences, from which on a hypothesis is as good as chance."""

SIGNIFICANT = 1e-2
"""A sketch's misfit that chance does not reach, in any number of hypotheses that there is time for."""


@dataclass
class Ranking:
    """A ranking of hypotheses by misfit, the error relative to how much the outputs vary.

    Attributes:
        best: a heap of the best (-misfit, a unique number, hypothesis) so far, worst first.
        searched: how many hypotheses were ranked.
        significant: hypotheses with a misfit below SIGNIFICANT that were not judged yet.
        nearest: (the least misfit so far, its hypothesis).
    """

    best: list[tuple[float, int, Hypothesis]] = field(default_factory=list)
    searched: int = 0
    significant: list[Hypothesis] = field(default_factory=list)
    nearest: tuple[float, Hypothesis | None] = (np.inf, None)
    _ticket: Iterator[int] = field(default_factory=count)

    @property
    def cutoff(self) -> float:
        """Return the misfit at and above which a hypothesis is dropped."""
        return PROMISING if len(self.best) < KEPT else -self.best[0][0]

    def promising(self, misfit: NDArray) -> NDArray[np.intp]:
        """Return the indices, as np.argwhere does, of the misfits below the cutoff: at most KEPT, the smallest.

        If no misfit is below the cutoff, return the indices of the smallest misfit.
        """
        good = np.argwhere(misfit < self.cutoff)
        if len(good) > KEPT:
            flat = np.argpartition(misfit, KEPT, axis=None)[:KEPT]
            good = np.stack(np.unravel_index(flat, misfit.shape), axis=1)
        return good if len(good) else np.argwhere(misfit == misfit.min())[:1]

    def add(self, misfit: float, hypothesis: Hypothesis) -> None:
        """Keep a hypothesis if its misfit is below the cutoff."""
        self.nearest = min(self.nearest, (misfit, hypothesis), key=lambda near: near[0])
        if misfit >= self.cutoff:
            return
        if misfit < SIGNIFICANT:
            self.significant.append(hypothesis)
        entry = (-misfit, next(self._ticket), hypothesis)
        (heapq.heappush if len(self.best) < KEPT else heapq.heappushpop)(self.best, entry)

    def ranked(self) -> list[Hypothesis]:
        """Return the hypotheses, best first; if none is better than chance, only the one with the least misfit."""
        if not self.best and self.nearest[1] is not None:
            return [self.nearest[1]]
        return [hypothesis for _, _, hypothesis in sorted(self.best, key=lambda entry: -entry[0])]


class Search:
    """A search for the hypotheses (which array is which weight) that explain a recorded call, usual ones first.

    Args:
        candidates, observed: the file's arrays, and the recorded call.
        rows: (batch item, query) of each output row that is used to rank hypotheses. No two of these rows are equal.
        num_heads: H, if it is known.
        deadline: the value of time.monotonic() at which the search ends.
    """

    def __init__(
        self,
        candidates: Candidates,
        observed: Observed,
        rows: list[tuple[int, int]],
        num_heads: int | None = None,
        deadline: float = np.inf,
    ) -> None:
        self.candidates, self.observed, self.deadline, self.num_heads = candidates, observed, deadline, num_heads
        self.sample = Sample.of(observed, rows)
        self.families = families(candidates, observed)
        self.combine = np.eye(len(rows))[:-1] - np.eye(len(rows))[-1]  # differences to the last row
        differences = self.combine @ self.sample.y
        channels = max(1, NUMBERS // len(differences))
        self.channels = np.sort(np.argsort(-np.square(differences).sum(axis=0))[:channels])
        self.target = differences[:, self.channels].astype(np.float32)
        self.size = float(np.square(self.target).sum()) or 1.0
        self.timed_out = False

    def readings(self, tier: int) -> list[Reading]:
        """Return the Readings (ways to use the arrays) of a tier (0: usual; higher: rarer), usual head widths first."""

        def unusual(reading: Reading) -> tuple[int, int]:
            width = reading.family.q[0].count // reading.heads
            return (0 if width in (64, 32, 128) else 1 if width % 16 == 0 else 2, abs(width - 64))

        return sorted(readings(self.families, self.observed, self.num_heads, tier), key=unusual)

    def cost(self, tier: int) -> float:
        """Return roughly how many multiplications the search of a tier of hypotheses costs, overhead included."""
        biases = 1 + len(self.candidates.vectors)
        total = 0.0
        for reading in self.readings(tier):
            family = reading.family
            quadruples = prod(len(slices) for slices in (family.q, family.k, family.v, family.o))
            total += PER_READING + float(quadruples) * biases * reading.heads * len(self.sample.k) * self.target.size
        return total * len(self.observed.masks)

    def run(self, tier: int, is_found: Callable[[list[Hypothesis]], bool]) -> Ranking:
        """Return the ranking of one tier's hypotheses. Sets the attribute `timed_out` if time ran out before the end.

        In an expensive tier, each group of hypotheses with very small misfits is passed to `is_found` as soon as it is
        there. The tier ends if `is_found` returns True.
        """
        ranking = Ranking()
        cost = self.cost(tier)
        for reading in self.readings(tier):
            if time.monotonic() > self.deadline:
                self.timed_out = True
                break
            if cost <= DEAR:
                self._run_reading(reading, ranking, biased=True)
            else:
                self._run_unbiased(reading, ranking)
            significant, ranking.significant = ranking.significant, []
            if significant and cost > CHEAP and is_found(significant):
                break
        return ranking

    def _run_unbiased(self, reading: Reading, ranking: Ranking) -> None:
        """Rank a reading without a query bias, and then the best of it with every query bias."""
        plain = Ranking()
        self._run_reading(reading, plain, biased=False)
        ranking.searched += plain.searched
        ranking.nearest = min(ranking.nearest, plain.nearest, key=lambda near: near[0])
        for hypothesis in plain.ranked()[:GROWN]:
            for bias in (None, *self.candidates.biases(hypothesis.q)):
                changed = replace(hypothesis, bq=bias)
                if changed.is_readable():
                    ranking.searched += bias is not None
                    ranking.add(self.sample.misfit(changed), changed)

    def _run_reading(self, reading: Reading, ranking: Ranking, *, biased: bool) -> None:
        family = reading.family
        pairs = [
            (v, o)
            for v in _readable(family.v, reading.kv_heads, reading.orders[2])
            for o in _readable(family.o, reading.heads, reading.orders[3])
            if _apart(v, o)
        ]
        queries = _readable(family.q, reading.heads, reading.orders[0])
        keys = _readable(family.k, reading.kv_heads, reading.orders[1])
        if not pairs or not queries or not keys:
            return
        made = self._output_by_key(reading, pairs)  # (pairs * channels, H * L)
        asked = [
            (query, bias)
            for query in queries
            for bias in [None, *(self.candidates.biases(query) if biased else ())]
            if bias is None or bias.rows(reading.heads, reading.orders[0]) is not None
        ]
        projected, kv = self._queries(reading, asked), kv_of(reading.heads, reading.kv_heads)
        for key in keys:
            places = [place for place, (query, _) in enumerate(asked) if _apart(query, key)]
            if not places:
                continue
            rows = self.sample.project(key, key.read(reading.kv_heads, reading.orders[1]), "k")[:, kv]  # (L, H, d)
            scores = np.matmul(projected[places], rows.transpose(1, 2, 0).astype(np.float32))
            for mask in self.observed.masks:
                weights = self._differences(scores.copy(), mask)  # (places * differences, H * L)
                given = (weights @ made.T).reshape(len(places), len(self.target), len(pairs), len(self.channels))
                given -= self.target[None, :, None, :]
                misfit = np.sqrt(np.einsum("adpc,adpc->ap", given, given) / self.size)
                ranking.searched += misfit.size
                for a, p in ranking.promising(misfit):
                    if misfit[a, p] >= max(ranking.cutoff, ranking.nearest[0]):
                        continue
                    (query, bias), (value, out) = asked[places[a]], pairs[p]
                    hypothesis = reading.hypothesis(query, key, value, out, mask=mask, bq=bias)
                    if hypothesis.is_plain():
                        ranking.add(float(misfit[a, p]), hypothesis)

    def _output_by_key(self, reading: Reading, pairs: list[tuple[Slice, Slice]]) -> NDArray:
        """Output of each pair (v, o) for each key alone, in each head: (pairs * channels, H * L)."""
        kv = kv_of(reading.heads, reading.kv_heads)
        values = {
            v: self.sample.project(v, v.read(reading.kv_heads, reading.orders[2]), "v")[:, kv].transpose(1, 2, 0)
            for v in dict.fromkeys(v for v, _ in pairs)
        }  # (H, dv, L)
        outs = {
            o: o.source.flat[o.read(reading.heads, reading.orders[3])][:, :, self.channels].transpose(0, 2, 1)
            for o in dict.fromkeys(o for _, o in pairs)
        }  # (H, channels, dv)
        made = [np.matmul(outs[o], values[v]).transpose(1, 0, 2) for v, o in pairs]
        return np.array(made, dtype=np.float32).reshape(len(pairs) * len(self.channels), -1)

    def _queries(self, reading: Reading, asked: list[tuple[Slice, Slice | None]]) -> NDArray:
        """The scaled queries of each pair of a projection and a bias: (asked, H, n, d), in float32."""
        heads, order = reading.heads, reading.orders[0]
        scale = reading.hypothesis(asked[0][0], asked[0][0], asked[0][0], reading.family.o[0]).scale_value
        rows = [
            self.sample.project(query, query.read(heads, order), "q")
            + (0.0 if bias is None else bias.source.flat[bias.read(heads, order)])
            for query, bias in asked
        ]
        found: NDArray = (np.array(rows) * scale).astype(np.float32).swapaxes(1, 2)
        return found

    def _differences(self, scores: NDArray, mask: str) -> NDArray:
        """Differences between the rows' attention weights: (places * differences, H * L); `scores` are written to."""
        weights = self.sample.attend(scores, mask)
        combined = np.matmul(self.combine.astype(np.float32), weights)  # (places, H, differences, L)
        return combined.transpose(0, 2, 1, 3).reshape(len(scores) * len(self.combine), -1)


def _readable(slices: tuple[Slice, ...], heads: int, order: str) -> list[Slice]:
    return [part for part in slices if part.rows(heads, order) is not None]


def _apart(a: Slice, b: Slice) -> bool:
    """Whether two projections use different rows, or copies of them."""
    if a.source.names != b.source.names:
        return True
    if a.home == b.home and a.kind != "whole":
        return a.part != b.part
    return len(a.source.names) > 1
