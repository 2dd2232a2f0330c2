"""Sample: some query rows of a record with their keys, and the output of a hypothesis for them.

It is small enough to rank many hypotheses by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from mha.infer.hypotheses.biases import constants
from mha.infer.hypotheses.candidates import Candidates, Slice, Source
from mha.infer.hypotheses.hypothesis import Hypothesis
from mha.infer.observed import Observed
from mha_core.call.masks import additive_bias, padding_keys
from mha_core.parts.query_key_norm import norm
from mha_core.parts.rotary import rotate, tables

NOISE = 1e3
"""Rows that differ by fewer unit roundoffs than this count as equal."""

LITTLE_NOISE = 20.0
"""The same where nothing is known of rows that are equal: of a layer with settings that no array shows."""


@dataclass(eq=False)
class Sample:
    """Query rows (n of them), and all keys (L) of the batch items that they stand in.

    Attributes:
        q, y: (n, Dq) and (n, Do): inputs and outputs of the rows.
        k, v: (L, Dk) and (L, Dv); padding is 0.
        allowed: name of a mask -> bool (1 or H, n, L).
        bias: name of a mask -> (1 or H, n, L), or None.
        unit: unit roundoff of the record.
        noise: rows that differ by fewer unit roundoffs count as equal.
        row, key: (n,) and (L,): their places in their items.
        offset: name of a mask -> (n,): the position of the first query of the row's item.
    """

    q: NDArray
    y: NDArray
    k: NDArray
    v: NDArray
    allowed: dict[str, NDArray]
    bias: dict[str, NDArray | None]
    unit: float
    noise: float
    row: NDArray
    key: NDArray
    offset: dict[str, NDArray]
    _projected: dict[tuple[Source, str], NDArray] = field(default_factory=dict)

    @classmethod
    def of(cls, observed: Observed, rows: list[tuple[int, int]], noise: float = NOISE) -> Sample:
        """The sample of `rows`, each (batch item, query)."""
        items = sorted({b for b, _ in rows})
        padding = padding_keys(next(iter(observed.masks.values())), observed.sizes)
        anyone = np.any([keys.any(axis=(1, 2)) for keys in observed.allowed.values()], axis=0)  # (B, Lk)
        kept = [(b, j) for b in items for j in np.flatnonzero(anyone[b])]
        at_b, at_j = (np.array([pair[i] for pair in kept], dtype=int) for i in (0, 1))
        row_b, row_i = (np.array([pair[i] for pair in rows], dtype=int) for i in (0, 1))
        same_item = row_b[:, None] == at_b[None, :]
        zero = padding[at_b, at_j][:, None]

        def gathered(full: NDArray) -> NDArray:
            return full[at_b[None, :], :, row_i[:, None], at_j[None, :]].transpose(2, 0, 1)

        bias: dict[str, NDArray | None] = dict.fromkeys(observed.masks)
        for name, mask in observed.masks.items():
            if mask.bias is not None:
                full = np.broadcast_to(additive_bias(mask), observed.allowed[name].shape)
                bias[name] = gathered(full).astype(np.float64)
        return cls(
            q=observed.queries[row_b, row_i].astype(np.float64),
            y=observed.output[row_b, row_i].astype(np.float64),
            k=np.where(zero, 0.0, observed.keys[at_b, at_j].astype(np.float64)),
            v=np.where(zero, 0.0, observed.values[at_b, at_j].astype(np.float64)),
            allowed={name: gathered(keys) & same_item for name, keys in observed.allowed.items()},
            bias=bias,
            unit=UNIT_ROUNDOFF[observed.dtype],
            noise=noise,
            row=row_i,
            key=at_j,
            offset={
                name: np.broadcast_to(mask.query_offset, len(padding))[row_b] for name, mask in observed.masks.items()
            },
        )

    def positions(self, mask: str) -> NDArray[np.integer]:
        """(n,) where the rows' queries stand."""
        positions: NDArray[np.integer] = self.row + self.offset[mask]
        return positions

    def project(self, part: Slice, rows: NDArray, role: str) -> NDArray:
        """Inputs of `role` ("q", "k" or "v") projected by the given rows of a source: (n or L, heads, width)."""
        key = part.source, role
        if key not in self._projected:
            self._projected[key] = getattr(self, role) @ part.source.flat.T
        return self._projected[key][:, rows]

    def attend(self, scores: NDArray, mask: str) -> NDArray:
        """Attention weights (..., H, n, L) from scores without the additive bias, computed in place."""
        bias, allowed = self.bias[mask], self.allowed[mask]
        if bias is not None:
            scores += bias
        np.copyto(scores, -np.inf, where=~allowed)
        highest = scores.max(axis=-1, keepdims=True)
        scores -= np.where(np.isfinite(highest), highest, 0.0)
        np.exp(scores, out=scores)
        total = scores.sum(axis=-1, keepdims=True)
        scores /= np.where(total == 0.0, 1.0, total)
        return scores

    def projections(self, h: Hypothesis) -> tuple[NDArray, NDArray, NDArray]:
        """Queries (n, H, d), keys (L, H, d) and values (L, H, dv) as the arrays of a hypothesis project them."""
        kv = h.kv_of()
        queries = self.project(h.q, h.rows("q"), "q")
        if h.bq is not None:
            queries = queries + h.bq.source.flat[h.rows("bq")]
        keys = self.project(h.k, h.rows("k"), "k")
        if h.bk is not None:
            keys = keys + h.bk.source.flat[h.rows("bk")]
        return queries, keys[:, kv], self.project(h.v, h.rows("v"), "v")[:, kv]

    def output(self, h: Hypothesis) -> NDArray:
        """The output (n, Do) of a hypothesis, without the biases of values and output."""
        queries, keys, values = self.projections(h)
        queries, keys = (
            _normed_and_turned(x.transpose(1, 0, 2), positions, h, weight)
            for x, positions, weight in zip(
                (queries, keys), (self.positions(h.mask), self.key), h.norms or (None, None), strict=True
            )
        )
        scores = np.matmul(queries, keys.swapaxes(1, 2)) * h.scale_value
        weights = self.attend(scores, h.mask)
        heads = np.matmul(weights, values.transpose(1, 0, 2))  # (H, n, dv)
        return heads.transpose(1, 0, 2).reshape(len(self.q), -1) @ h.o.source.flat[h.rows("o").reshape(-1)]

    def misfit(self, h: Hypothesis, candidates: Candidates, *, scaled: bool = False) -> float:
        """Error of the hypothesis relative to how much the outputs vary, up to a constant vector.

        Biases of values and output add the same vector to every row, so rows are compared with their mean. Rows
        that are all alike are compared as they are, with the best choice of biases.

        Args:
            h, candidates: the hypothesis, and the arrays that its biases may be.
            scaled: whether its outputs may be multiplied by a number first, in a sample whose rows vary.
        """
        wanted, got = self.y, self.output(h)
        if self.varies:
            wanted, got = wanted - wanted.mean(axis=0), got - got.mean(axis=0)
            if scaled:
                got = got * ((got * wanted).sum() / ((got * got).sum() or 1.0))
            return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
        size = np.linalg.norm(wanted) or 1.0
        return min(float(np.linalg.norm(got + added - wanted) / size) for _, added in constants(h, candidates))

    @cached_property
    def varies(self) -> bool:
        """Whether rows differ by more than rounding."""
        return vary(self.y, self.unit, self.noise)


def _normed_and_turned(x: NDArray, positions: NDArray, h: Hypothesis, weight: Slice | None) -> NDArray:
    """Queries or keys (H, L, d) behind the query-key norm and the rotary positions of a hypothesis, in its order."""
    settings, rotary, x = h.settings.get("query_key_norm"), h.settings.get("rotary"), x[None]
    steps = ["norm", "rotate"] if settings is None or settings.order == "before" else ["rotate", "norm"]
    for step in steps:
        if step == "norm" and settings is not None:
            x = norm(x, settings, None if weight is None else weight.source.flat, None).result
        elif step == "rotate" and rotary is not None:
            x = rotate(x, tables(rotary, positions, len(positions)), rotary)
    return x[0]


def vary(outputs: NDArray, unit: float, noise: float = NOISE) -> bool:
    """Whether rows (n, Do) differ by more than rounding."""
    size = np.linalg.norm(outputs, axis=1).max(initial=0.0)
    return bool(np.linalg.norm(outputs - outputs[:1], axis=1).max(initial=0.0) > noise * unit * size)


def telling_rows(observed: Observed, count: int) -> list[tuple[int, int]]:
    """Up to `count` rows of the item that is cheapest to search: different outputs, few keys, but several."""
    rows = observed.usable_rows
    if not rows:
        return []
    by_item: dict[int, list[tuple[int, int, int]]] = {}
    for row in rows:
        by_item.setdefault(row[0], []).append(row)

    def price(item: int) -> tuple[bool, bool, int]:
        keys = max(row[2] for row in by_item[item])
        return len([row for row in by_item[item] if row[2] > 1]) < count, keys < 4, keys

    best = min(by_item, key=price)
    pool = [row for row in by_item[best] if row[2] > 1] or by_item[best]
    outputs = np.array([observed.output[b, i] for b, i, _ in pool], dtype=np.float64)
    alike = not vary(outputs, UNIT_ROUNDOFF[observed.dtype])
    if len(pool) < min(count, len(rows)) or alike:  # as in decoding, or with uniform weights: rows of several items
        pool = sorted(rows, key=lambda row: (row[2] < 2, row[1]))[: 4 * count]
    return furthest(observed, [row[:2] for row in pool], count)


def early_rows(observed: Observed, count: int) -> list[tuple[int, int]]:
    """Up to `count` rows with the fewest keys, but several: what depends on positions changes later ones first."""
    rows = sorted((keys, i, b) for b, i, keys in observed.usable_rows if keys > 1)
    return [(b, i) for _, i, b in rows[:count]]


def furthest(observed: Observed, pool: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """`count` rows of `pool` whose outputs lie far from each other's; greedily."""
    outputs = np.array([observed.output[b, i] for b, i in pool], dtype=np.float64)
    picked = [int(np.argmax(np.linalg.norm(outputs - outputs.mean(axis=0), axis=1)))]
    distance = np.linalg.norm(outputs - outputs[picked[0]], axis=1)
    while len(picked) < min(count, len(pool)):
        picked.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.linalg.norm(outputs - outputs[picked[-1]], axis=1))
        distance[picked] = -1.0
    return [pool[i] for i in picked]
