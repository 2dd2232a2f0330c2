"""What is left of a model when its least important heads are gone, on texts that no measure saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.heads.gates import embed
from mha.heads.importance import order_of
from mha.heads.prune import removed_first
from mha.heads.subject import Subject
from mha_core import SpecError

NEIGHBOURS = 5
"""How many nearest texts of each text are compared."""

SHARES = (1 / 6, 1 / 3, 1 / 2, 2 / 3)
"""Shares of the heads that are removed at the points of a curve, besides none and all."""

Point = dict[str, Any]
"""The model without some heads: `removed`, how many are gone; `fidelity`, the mean cosine of a text's embedding with
the whole model's; `neighbours`, the share of the nearest texts of each text that are still among its nearest, or None
of few texts.
"""


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

    def without(self, removed: NDArray[np.bool_]) -> Point:
        """The Point of a model without these heads, bool (layers, heads)."""
        found = self._embed(removed)
        kept = None
        if self._nearest is not None and (now := nearest(found)) is not None:
            pairs = zip(self._nearest, now, strict=True)
            kept = float(np.mean([len(set(before) & set(after)) / NEIGHBOURS for before, after in pairs]))
        fidelity = float((found * self.whole).sum(axis=-1).mean())
        return {"removed": int(removed.sum()), "fidelity": fidelity, "neighbours": kept}

    def _embed(self, removed: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        return embed(self.live, self.batches, removed)[self._place]


def curves(
    judge: Judge, measures: Mapping[str, NDArray[np.float64]], progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """The points of each measure, from all heads to none.

    Returns:
        `texts`, how many there are; `neighbours`, how many of each are compared; `none`, the model without any head;
        `measures`, name -> points, of which `none` is the last.
    """
    subject = judge.subject
    progress("without any head")
    none = judge.without(subject.there)
    found = {}
    for name, scores in measures.items():
        progress(f"curve of {name}")
        order = order_of(scores)
        points = [judge.without(removed_first(subject, order, count)) for count in (0, *counts(subject))]
        found[name] = [*points, none]
    return {"texts": len(judge.whole), "neighbours": NEIGHBOURS, "none": none, "measures": found}


def counts(subject: Subject) -> list[int]:
    """Numbers of heads, about SHARES of all; whole groups, and one head of each layer is left."""
    group = max(layer.group for layer in subject.layers)
    most = subject.total - sum(layer.group for layer in subject.layers)
    return sorted({min(round(share * subject.total / group) * group, most) for share in SHARES} - {0})


def nearest(embeddings: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """(N, NEIGHBOURS): of each text the nearest other ones; None if there are no more than that."""
    if len(embeddings) <= NEIGHBOURS + 1:
        return None
    cosines = embeddings @ embeddings.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=-1, kind="stable")[:, :NEIGHBOURS]
