"""Search: rank every hypothesis by a sketch, a few numbers of its output.

A layer's output is a sum of products of two factors that are computed apart: the attention weights of a pair (q, k),
and the output that a pair (v, o) gives for each key alone. For a few query rows and output channels, one matrix
product of all the former with all the latter is therefore the output of every quadruple. Rows are compared by their
differences, which do not depend on the biases of values and output; no output depends on the key bias; the query
bias is searched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from mha.infer.families import Reading, families, readings
from mha.infer.hypotheses.biases import constants
from mha.infer.hypotheses.candidates import Candidates, Slice
from mha.infer.hypotheses.hypothesis import Hypothesis, kv_of
from mha.infer.observed import Observed
from mha.infer.ranking import Ranking
from mha.infer.sample import LITTLE_NOISE, NOISE, Sample, telling_rows

ROWS = 3
"""Query rows of the sketch."""

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


class Search:
    """All hypotheses about one file and one record, tier by tier.

    Args:
        candidates, observed: the readings of the arrays, and the record.
        num_heads: H, if it is known.
        deadline: the time.monotonic() after which the search gives up.
        rows: those of the sketch. Default: few that tell much.
        scaled: whether outputs may be multiplied by a number before they are compared; the rows must vary.
    """

    def __init__(
        self,
        candidates: Candidates,
        observed: Observed,
        num_heads: int | None = None,
        deadline: float = np.inf,
        *,
        rows: list[tuple[int, int]] | None = None,
        scaled: bool = False,
    ) -> None:
        self.candidates, self.observed, self.deadline, self.scaled = candidates, observed, deadline, scaled
        rows = telling_rows(observed, ROWS) if rows is None else rows
        self.sample = Sample.of(observed, rows, LITTLE_NOISE if scaled else NOISE)
        self.families = families(candidates, observed)
        self.num_heads = num_heads
        n = len(rows)
        # Differences to the last row; rows that are all alike are compared as they are, with every choice of biases.
        self.combine = np.eye(n)[:-1] - np.eye(n)[-1] if self.sample.varies else np.eye(n)[:1]
        differences = self.combine @ self.sample.y
        channels = max(1, NUMBERS // len(differences))
        self.channels = np.sort(np.argsort(-np.square(differences).sum(axis=0))[:channels])
        self.target = differences[:, self.channels].astype(np.float32)
        self.size = float(np.square(self.target).sum()) or 1.0
        self.timed_out = False

    def readings(self, tier: int) -> list[Reading]:
        """The readings that belong to a tier, those with heads of usual widths first."""
        found = readings(self.families, self.observed, self.num_heads, tier)
        return sorted(found, key=lambda reading: _unusual_width(reading.family.q[0].count // reading.heads))

    def cost(self, tier: int) -> float:
        """Roughly how many multiplications a tier costs, with PER_READING for each reading."""
        keys = len(self.sample.k)
        biases = 1 + len(self.candidates.vectors)
        total = 0.0
        for reading in self.readings(tier):
            quadruples = prod(
                len(slices) for slices in (reading.family.q, reading.family.k, reading.family.v, reading.family.o)
            )
            total += PER_READING + float(quadruples) * biases * reading.heads * keys * self.target.size
        return total * len(self.observed.masks)

    def run(self, tier: int, is_found: Callable[[list[Hypothesis]], bool]) -> Ranking:
        """Rank the hypotheses of one tier. Sets `timed_out` if there was no time for all of them.

        An expensive tier ends as soon as `is_found` returns True for hypotheses that are too close for chance.
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
                    ranking.add(self.sample.misfit(changed, self.candidates, scaled=self.scaled), changed)

    def _run_reading(self, reading: Reading, ranking: Ranking, *, biased: bool) -> None:
        family = reading.family
        pairs = [
            (v, o)
            for v in _readable(family.v, reading.kv_heads, reading.orders[2])
            for o in _readable(family.o, reading.heads, reading.orders[3])
            if _apart(v, o, tied=False)
        ]
        queries = _readable(family.q, reading.heads, reading.orders[0])
        keys = _readable(family.k, reading.kv_heads, reading.orders[1])
        if not pairs or not queries or not keys:
            return
        made = self._output_by_key(reading, pairs)  # (pairs * channels, H * L)
        added = self._added(reading, keys[0], pairs)
        asked = [
            (query, bias)
            for query in queries
            for bias in [None, *(self.candidates.biases(query) if biased else ())]
            if bias is None or bias.rows(reading.heads, reading.orders[0]) is not None
        ]
        projected = self._projected(reading, asked)
        for key in keys:
            places = [place for place, (query, _) in enumerate(asked) if _apart(query, key, reading.tied)]
            if not places:
                continue
            scores = self._scores(reading, key, projected, places)
            for mask in self.observed.masks:
                weights = self._weights(scores.copy(), mask)  # (places * differences, H * L)
                given = (weights @ made.T).reshape(len(places), len(self.target), len(pairs), len(self.channels))
                if self.scaled:
                    misfit = self._scaled_misfit(given)
                else:
                    given -= self.target[None, :, None, :]
                    misfit = np.sqrt(self._squares(given, added) / self.size)
                ranking.searched += misfit.size
                for a, p in ranking.promising(misfit):
                    if not ranking.takes(float(misfit[a, p])):
                        continue
                    (query, bias), (value, out) = asked[places[a]], pairs[p]
                    hypothesis = reading.hypothesis(query, key, value, out, mask=mask, bq=bias)
                    if reading.tied or hypothesis.is_plain():
                        ranking.add(float(misfit[a, p]), hypothesis)

    def _squares(self, given: NDArray, added: list[NDArray]) -> NDArray:
        """Sum of squared errors (found, pairs), from errors of shape (found, differences, pairs, channels)."""
        if self.sample.varies:
            return np.einsum("adpc,adpc->ap", given, given)
        squares = [
            np.square(given[:, 0, p][:, None] + vectors).sum(axis=-1).min(axis=1) for p, vectors in enumerate(added)
        ]
        return np.stack(squares, axis=1)

    def _scaled_misfit(self, given: NDArray) -> NDArray:
        """Misfits (found, pairs) of outputs (found, differences, pairs, channels), each times its best number."""
        along = np.einsum("adpc,dc->ap", given, self.target)
        own = np.einsum("adpc,adpc->ap", given, given)
        part = np.divide(along * along, own * self.size, out=np.zeros_like(own), where=own > 0.0)
        misfit: NDArray = np.sqrt(np.clip(1.0 - part, 0.0, 1.0))
        return misfit

    def _added(self, reading: Reading, key: Slice, pairs: list[tuple[Slice, Slice]]) -> list[NDArray]:
        """For each pair (v, o), the vectors that its choices of biases add to the channels.

        Empty where rows vary: differences of rows do not depend on these biases.
        """
        if self.sample.varies:
            return []
        found = []
        for value, out in pairs:
            bare = reading.hypothesis(out, key, value, out)
            vectors = [vector[self.channels] for _, vector in constants(bare, self.candidates)]
            found.append(np.array(vectors, dtype=np.float32))
        return found

    def _output_by_key(self, reading: Reading, pairs: list[tuple[Slice, Slice]]) -> NDArray:
        """Output of each pair (v, o) for each key alone, in each head: (pairs * channels, H * L)."""
        kv = kv_of(reading.heads, reading.kv_heads, reading.tiled)
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

    def _projected(self, reading: Reading, asked: list[tuple[Slice, Slice | None]]) -> _Projected:
        """The queries of each pair of a projection and a bias, each projection and each bias once."""
        sample, heads, order = self.sample, reading.heads, reading.orders[0]
        queries = list(dict.fromkeys(query for query, _ in asked))
        names = [None if bias is None else (bias.source, bias.kind, bias.part) for _, bias in asked]
        biases = {name: bias for name, (_, bias) in zip(names, asked, strict=True) if bias is not None}
        rows = [sample.project(query, query.read(heads, order), "q") for query in queries]  # (n, H, d) each
        rows.append(np.zeros((1, *rows[0].shape[1:])))  # no bias
        rows += [bias.source.flat[bias.read(heads, order)][None] for bias in biases.values()]
        place_of: dict[object, int] = {one: place for place, one in enumerate((*queries, None, *biases))}
        return _Projected(
            np.concatenate(rows).transpose(1, 0, 2),
            np.array([place_of[query] for query, _ in asked]),
            np.array([place_of[name] for name in names]) - len(queries),
            reading.hypothesis(queries[0], queries[0], queries[0], reading.family.o[0]).scale_value,
        )

    def _scores(self, reading: Reading, key: Slice, projected: _Projected, places: list[int]) -> NDArray:
        """The scores (places, H, n, L) of these queries, in float32."""
        kv = kv_of(reading.heads, reading.kv_heads, reading.tiled)
        keys = self.sample.project(key, key.read(reading.kv_heads, reading.orders[1]), "k")[:, kv]  # (L, H, d)
        made = (np.matmul(projected.rows, keys.transpose(1, 2, 0)) * projected.scale).astype(np.float32)
        count = (int(projected.query.max()) + 1) * len(self.sample.q)
        plain = made[:, :count].reshape(reading.heads, -1, len(self.sample.q), len(self.sample.k)).swapaxes(0, 1)
        scores: NDArray = plain[projected.query[places]]
        scores += made[:, count:].swapaxes(0, 1)[projected.bias[places]][:, :, None]
        return scores

    def _weights(self, scores: NDArray, mask: str) -> NDArray:
        """Differences between the rows' attention weights: (places * differences, H * L); `scores` are written to."""
        weights = self.sample.attend(scores, mask)
        combined = np.matmul(self.combine.astype(np.float32), weights)  # (places, H, differences, L)
        return combined.transpose(0, 2, 1, 3).reshape(len(scores) * len(self.combine), -1)


@dataclass(frozen=True)
class _Projected:
    """The queries of a reading.

    Attributes:
        rows: (H, n for each projection, then one for no bias and for each bias, d).
        query, bias: the places of the projection and of the bias of each pair that is asked about.
        scale: of the scores.
    """

    rows: NDArray
    query: NDArray[np.intp]
    bias: NDArray[np.intp]
    scale: float


def _unusual_width(width: int) -> tuple[int, int]:
    """Sort key of a head width: 64, 32 and 128 first, then multiples of 16, each by its distance from 64."""
    return (0 if width in (64, 32, 128) else 1 if width % 16 == 0 else 2, abs(width - 64))


def _readable(slices: tuple[Slice, ...], heads: int, order: str) -> list[Slice]:
    return [part for part in slices if part.rows(heads, order) is not None]


def _apart(a: Slice, b: Slice, tied: bool) -> bool:
    """Whether two projections use different rows or copies of them, or with `tied` may use the same rows."""
    if a.source.names != b.source.names:
        return True
    if a.home == b.home and a.kind != "whole":
        return a.part != b.part
    return len(a.source.names) > 1 or (tied and a.kind == b.kind == "whole")
