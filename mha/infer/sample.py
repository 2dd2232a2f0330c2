"""A sample: some query rows of a record with their keys, and the output of a hypothesis for them.

It is small enough to rank many hypotheses by.
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from mha.infer.arrays import Slice, Source
from mha.infer.hypothesis import Hypothesis
from mha.infer.observed import Observed
from mha_core import Rotary
from mha_core.call.masks import additive_bias, padding_keys
from mha_core.parts.rotary import rotate, tables

NOISE = 1e3
"""Rows that differ by fewer unit roundoffs than this count as equal."""


@dataclass(eq=False)
class Sample:
    """A sample of n queries (rows) from some batch items, and all L keys of these batch items.

    Attributes:
        q, y: (n, Dq) and (n, Do): inputs and outputs of the queries.
        k, v: (L, Dk) and (L, Dv); padding is 0.
        allowed: name of a mask -> bool (1 or H, n, L).
        bias: name of a mask -> its bias (1 or H, n, L); None for a mask without bias.
        key: (L,) the position of each key in its item.
        positions: name of a mask -> (n,) the position of each query.
    """

    q: NDArray
    y: NDArray
    k: NDArray
    v: NDArray
    allowed: dict[str, NDArray]
    bias: dict[str, NDArray | None]
    key: NDArray
    positions: dict[str, NDArray]
    _projected: dict[tuple[Source, str], NDArray] = field(default_factory=dict)

    @classmethod
    def of(cls, observed: Observed, rows: list[tuple[int, int]]) -> Self:
        """Return the sample of `rows`, each (batch item, query)."""
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
            key=at_j,
            positions={
                name: row_i + np.broadcast_to(mask.query_offset, len(padding))[row_b]
                for name, mask in observed.masks.items()
            },
        )

    def project(self, part: Slice, rows: NDArray, role: str) -> NDArray:
        """Return (n or L, heads, width): the inputs `role` ("q", "k", "v") times these rows of the array of `part`."""
        key = part.source, role
        if key not in self._projected:
            self._projected[key] = getattr(self, role) @ part.source.flat.T
        return self._projected[key][:, rows]

    def attend(self, scores: NDArray, mask: str) -> NDArray:
        """Return attention weights (..., H, n, L): the masked softmax of scores plus bias. Overwrites `scores`."""
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

    def output(self, h: Hypothesis) -> NDArray:
        """Return the output (n, Do) of a hypothesis, without the biases of values and output."""
        kv = h.kv_of()
        queries = self.project(h.q, h.rows("q"), "q")
        if h.bq is not None:
            queries = queries + h.bq.source.flat[h.rows("bq")]
        keys = self.project(h.k, h.rows("k"), "k")
        if h.bk is not None:
            keys = keys + h.bk.source.flat[h.rows("bk")]
        queries, keys = queries.transpose(1, 0, 2), keys[:, kv].transpose(1, 0, 2)
        if h.rotary is not None:
            queries, keys = _turned(queries, self.positions[h.mask], h.rotary), _turned(keys, self.key, h.rotary)
        weights = self.attend(np.matmul(queries, keys.swapaxes(1, 2)) * h.scale_value, h.mask)
        values = self.project(h.v, h.rows("v"), "v")[:, kv].transpose(1, 0, 2)
        heads = np.matmul(weights, values)  # (H, n, dv)
        return heads.transpose(1, 0, 2).reshape(len(self.q), -1) @ h.o.source.flat[h.rows("o").reshape(-1)]

    def misfit(self, h: Hypothesis) -> float:
        """Return the error of a hypothesis relative to how much the outputs vary.

        Biases of values and output add the same vector to every row, so the mean over all rows is subtracted first.
        """
        wanted, got = self.y - self.y.mean(axis=0), self.output(h)
        return float(np.linalg.norm(got - got.mean(axis=0) - wanted) / np.linalg.norm(wanted))


def _turned(x: NDArray, positions: NDArray, rotary: Rotary) -> NDArray:
    return rotate(x[None], tables(rotary, positions, len(positions)), rotary)[0]


def vary(observed: Observed, rows: list[tuple[int, int]]) -> bool:
    """Return whether the outputs at these rows, pairs (batch item, query), differ by more than rounding."""
    outputs = np.array([observed.output[b, i] for b, i in rows], dtype=np.float64)
    size = np.linalg.norm(outputs, axis=1).max(initial=0.0)
    noise = NOISE * UNIT_ROUNDOFF[observed.dtype] * size
    return bool(np.linalg.norm(outputs - outputs[:1], axis=1).max(initial=0.0) > noise)


def cheap_rows(observed: Observed, count: int, keys: int) -> list[tuple[int, int]]:
    """Return `count` rows (batch item, query) of different outputs, from the batch items with the fewest keys.

    Batch items are added until they have `count` rows. Further batch items are added only while the total number of
    keys of the chosen batch items stays at most `keys`.
    """
    rows = [row for row in observed.usable_rows if row[2] > 1] or observed.usable_rows
    of_item = {item: max(row[2] for row in rows if row[0] == item) for item in {row[0] for row in rows}}
    chosen: list[int] = []
    for item in sorted(of_item, key=of_item.__getitem__):
        pool = [(b, i) for b, i, _ in rows if b in chosen]
        enough = len(pool) >= count and vary(observed, pool)
        if enough and sum(of_item[one] for one in (*chosen, item)) > keys:
            break
        chosen.append(item)
    return _furthest(observed, [(b, i) for b, i, _ in rows if b in chosen], count)


def early_rows(observed: Observed, count: int) -> list[tuple[int, int]]:
    """Return up to `count` rows (batch item, query) with the fewest keys. Rows with fewer than 2 keys are left out.

    In rows with few keys, a wrong base of rotary positions changes the output least.
    """
    rows = sorted((keys, i, b) for b, i, keys in observed.usable_rows if keys > 1)
    return [(b, i) for _, i, b in rows[:count]]


def _furthest(observed: Observed, pool: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """`count` rows of `pool` whose outputs lie far from each other's; greedily."""
    outputs = np.array([observed.output[b, i] for b, i in pool], dtype=np.float64)
    distance = np.linalg.norm(outputs - outputs.mean(axis=0), axis=1)
    picked: list[int] = []
    while len(picked) < min(count, len(pool)):
        picked.append(int(np.argmax(distance)))
        own = np.linalg.norm(outputs - outputs[picked[-1]], axis=1)
        distance = own if len(picked) == 1 else np.minimum(distance, own)
        distance[picked] = -1.0
    return [pool[i] for i in picked]
