r"""Equivalent calls: the same question asked in another kind of call, which changes nothing of its answer.

A mask that hides nothing, other items beside: the definition's answer is the same, so whatever differs befalls such
calls alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.faults import only_at
from conformance.measure.grammar.sample import Setting
from conformance.measure.grammar.where import FEATURED, ITEMS
from conformance.zoo.bug import Bug
from mha_core import AttentionInputs, AttentionMask


@dataclass(frozen=True, eq=False)
class Circumstance:
    """A kind of call.

    Args:
        wrap: the inputs of a plain call of one item -> those of another kind of call.
        item: the item of it whose output answers the plain question.
    """

    wrap: Callable[[AttentionInputs], AttentionInputs]
    item: int = 0

    def of(self, problem: Problem) -> Problem:
        """The question in this kind of call: the same object for the same problem."""
        return _wrapped(self, problem)


@lru_cache(maxsize=4096)
def _wrapped(circumstance: Circumstance, problem: Problem) -> Problem:
    return replace(problem, inputs=circumstance.wrap(replace(problem.inputs, cotangent=None)))


def _masked(mask: Callable[[int, int], AttentionMask]) -> Circumstance:
    return Circumstance(lambda x: replace(x, mask=mask(x.queries.shape[-2], x.keys.shape[-2])))


def _among(batch: int, item: int) -> Circumstance:
    """Other items beside, made of the same numbers in other places."""

    def filled(x: NDArray) -> NDArray:
        others = [np.roll((-1.0) ** k * x[0], k + 1, axis=-1) for k in range(batch)]
        others[item] = x[0]
        return np.stack(others).astype(x.dtype)

    def wrap(inputs: AttentionInputs) -> AttentionInputs:
        return replace(inputs, queries=filled(inputs.queries), keys=filled(inputs.keys), values=filled(inputs.values))

    return Circumstance(wrap, item)


AMONG_MASKS: tuple[Circumstance, ...] = (
    _masked(lambda queries, keys: AttentionMask(valid_lens=np.array([keys]))),
    _masked(lambda queries, keys: AttentionMask(allowed=np.ones((1, 1, queries, keys), bool))),
    _masked(lambda queries, keys: AttentionMask(bias=np.zeros((1, 1, queries, keys)))),
    _masked(lambda queries, keys: AttentionMask(causal=True, query_offset=keys)),
    _masked(lambda queries, keys: AttentionMask(window=(queries + keys, queries + keys))),
)
AMONG_ITEMS = tuple(_among(*one) for one in ((2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 2), (4, 3)))
"""Circumstances in which items can be told apart: by their number, from the end, and one alone from several."""


def asked_in(circumstances: Sequence[Circumstance], problems: Sequence[Problem]) -> list[Problem]:
    """Each problem in each circumstance."""
    return [one.of(problem) for one in circumstances for problem in problems]


def revisions(model: tuple[Bug, ...], wrong: Problem) -> Iterator[tuple[Bug, ...]]:
    """The model with one of its bugs limited to some calls or items, of those that change what a problem gives."""
    setting, batch = Setting.of(wrong), wrong.sizes.batch
    there = ((where, where.flags((batch,), ("item",), setting)) for where in (*FEATURED, *ITEMS))
    conditions = [where for where, flags in there if not np.broadcast_to(flags, batch).all()]
    for place, bug in enumerate(model):
        for where in conditions:
            limited = only_at(bug, where)
            if limited is not None:
                yield (*model[:place], limited, *model[place + 1 :])
