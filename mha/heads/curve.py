"""What is left of a model when its least important heads are gone, on texts that no measure saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.heads.gates import embed
from mha.heads.importance import order_of
from mha.heads.prune import Place, removed_first
from mha.heads.subject import Subject
from mha_core import SpecError

NEIGHBOURS = 5
"""How many nearest texts of each text are compared."""

SHARES = (1 / 6, 1 / 3, 1 / 2, 2 / 3)
"""Shares of the heads that are removed at the points of a curve, besides none and all."""


@dataclass(frozen=True)
class Point:
    """The model without some heads.

    Attributes:
        removed: how many heads are gone.
        fidelity: the mean cosine of a text's embedding with the whole model's.
        neighbours: the share of the nearest texts of each text that are still among its nearest; None of few texts.
    """

    removed: int
    fidelity: float
    neighbours: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Curves:
    """Curves of several measures, from all heads to none.

    Attributes:
        texts: how many texts they are made on.
        none: the model without any head, which is the end of every curve.
        of: measure -> its points.
    """

    texts: int
    none: Point
    of: dict[str, tuple[Point, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "texts": self.texts,
            "neighbours": NEIGHBOURS,
            "none": self.none.to_dict(),
            "measures": {name: [point.to_dict() for point in points] for name, points in self.of.items()},
        }


class Judge:
    """Compares a model without some heads with the whole one, on texts of its own.

    Args:
        subject: a live model.
        texts: the texts, none of which a measure has seen.
    """

    def __init__(self, subject: Subject, texts: Sequence[str]) -> None:
        if subject.live is None:
            raise SpecError(
                f"{subject.name} is a recording: without the model around it there is no embedding to judge"
            )
        self.subject, self.live = subject, subject.live
        batches = self.live.batches(texts)
        self.batches = [batch for _, batch in batches]
        self._place = np.argsort([index for group, _ in batches for index in group])
        self.whole = self._embed(None)
        self._nearest = nearest(self.whole)

    @property
    def texts(self) -> int:
        return len(self.whole)

    def without(self, removed: NDArray[np.bool_]) -> Point:
        """The Point of a model without these heads, bool (layers, heads)."""
        found = self._embed(removed)
        kept = None
        if self._nearest is not None and (now := nearest(found)) is not None:
            pairs = zip(self._nearest, now, strict=True)
            kept = float(np.mean([len(set(before) & set(after)) / NEIGHBOURS for before, after in pairs]))
        fidelity = float((found * self.whole).sum(axis=-1).mean())
        return Point(int(removed.sum()), fidelity, kept)

    def along(self, order: Sequence[Place], counts: Sequence[int]) -> tuple[Point, ...]:
        """The points of an order of heads."""
        return tuple(self.without(removed_first(self.subject, order, count)) for count in counts)

    def _embed(self, removed: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        return embed(self.live, self.batches, removed)[self._place]


def curves(
    judge: Judge, measures: dict[str, NDArray[np.float64]], progress: Callable[[str], None] = lambda text: None
) -> Curves:
    """The curve of each measure; the last point of all is the model without heads."""
    subject = judge.subject
    progress("without any head")
    none = judge.without(subject.there.copy())
    start = judge.without(np.zeros(subject.shape, np.bool_))
    found = {}
    for name, scores in measures.items():
        progress(f"curve of {name}")
        found[name] = (start, *judge.along(order_of(scores), counts(subject, SHARES)), none)
    return Curves(judge.texts, none, found)


def counts(subject: Subject, shares: Sequence[float]) -> list[int]:
    """Numbers of heads, about these shares of all; whole groups, and one head of each layer is left."""
    group = max(layer.config.num_heads // layer.config.num_kv_heads for layer in subject.layers)
    most = subject.total - sum(layer.config.num_heads // layer.config.num_kv_heads for layer in subject.layers)
    found = {min(round(share * subject.total / group) * group, most) for share in shares}
    return sorted(found - {0})


def nearest(embeddings: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """(N, NEIGHBOURS): of each text the nearest other ones; None if there are no more than that."""
    if len(embeddings) <= NEIGHBOURS + 1:
        return None
    cosines = embeddings @ embeddings.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=-1, kind="stable")[:, :NEIGHBOURS]
