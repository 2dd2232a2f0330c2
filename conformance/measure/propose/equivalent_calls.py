r"""Equivalent calls: the same question asked in another kind of call, which changes nothing of its answer.

A mask that hides nothing, other items beside: the definition's answer is the same, so whatever differs befalls such
calls alone. A subject seen through one of them is a subject of its own, that answers plain questions; every probe can
be asked of it:

    o(x) = take(o(wrap(x)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.faults import only_at
from conformance.measure.grammar.sample import Setting, features_of
from conformance.measure.grammar.where import CALLED, FEATURED, ITEMS, Where
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, Trace
from mha_core.backend import Run
from mha_core.weights import Weights

Wrap = Callable[[AttentionInputs], AttentionInputs]
"""The inputs of a plain call -> those of another kind of call."""


@dataclass(frozen=True, eq=False)
class Circumstance:
    """A kind of call.

    Args:
        name: in kebab-case.
        wrap: makes it of a plain call of one item.
        item: the item of it whose output answers the plain question.
    """

    name: str
    wrap: Wrap
    item: int = 0

    def of(self, problem: Problem) -> Problem:
        """The question in this kind of call: the same object for the same problem."""
        return _wrapped(self, problem)

    def made(self, problem: Problem) -> bool:
        """Whether a problem was made by `of`."""
        return _MADE.get(problem) is self


@lru_cache(maxsize=4096)
def _wrapped(circumstance: Circumstance, problem: Problem) -> Problem:
    found = replace(problem, inputs=circumstance.wrap(replace(problem.inputs, cotangent=None)))
    _MADE[found] = circumstance
    return found


_MADE: WeakKeyDictionary[Problem, Circumstance] = WeakKeyDictionary()


@dataclass(eq=False)
class ThroughCall:
    """A subject seen through a circumstance: it answers plain calls of one item as it answers them there."""

    subject: Any
    circumstance: Circumstance

    def __getattr__(self, name: str) -> Any:
        return getattr(self.subject, name)

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        """None, or why it does not take a call."""
        return None if len(inputs.queries) == 1 and is_plain(config, inputs) else "a call that is not plain"

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """As a subject is prepared."""
        run, item = self.subject.prepare(config, weights), self.circumstance.item

        def asked(inputs: AttentionInputs) -> Trace:
            answer = run(self.circumstance.wrap(replace(inputs, cotangent=None)))
            output = answer["output"] if isinstance(answer, dict) else getattr(answer, "output", answer)
            return Trace(output=np.asarray(output)[item : item + 1])

        return asked


def is_plain(config: AttentionConfig, inputs: AttentionInputs) -> bool:
    """Whether a call has no mask, no past and no dropout."""
    return not features_of(config, inputs) & CALLED


# Kinds of calls -----------------------------------------------------------------------------------------------


def _masked(mask: Callable[[int, int], AttentionMask]) -> Wrap:
    return lambda inputs: replace(inputs, mask=mask(inputs.queries.shape[-2], inputs.keys.shape[-2]))


def _among(batch: int, item: int) -> Wrap:
    """Other items beside, made of the same numbers in other places."""

    def filled(x: NDArray) -> NDArray:
        others = [np.roll((-1.0) ** k * x[0], k + 1, axis=-1) for k in range(batch)]
        others[item] = x[0]
        return np.stack(others).astype(x.dtype)

    def wrap(inputs: AttentionInputs) -> AttentionInputs:
        return replace(inputs, queries=filled(inputs.queries), keys=filled(inputs.keys), values=filled(inputs.values))

    return wrap


AMONG_MASKS: tuple[Circumstance, ...] = (
    Circumstance("lens", _masked(lambda queries, keys: AttentionMask(valid_lens=np.array([keys])))),
    Circumstance("allowed", _masked(lambda queries, keys: AttentionMask(allowed=np.ones((1, 1, queries, keys), bool)))),
    Circumstance("bias", _masked(lambda queries, keys: AttentionMask(bias=np.zeros((1, 1, queries, keys))))),
    Circumstance("causal", _masked(lambda queries, keys: AttentionMask(causal=True, query_offset=keys))),
    Circumstance("window", _masked(lambda queries, keys: AttentionMask(window=(queries + keys, queries + keys)))),
)
AMONG_ITEMS = tuple(
    Circumstance(f"item-{item}-of-{batch}", _among(batch, item), item)
    for batch, item in ((2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 2), (4, 3))
)
"""Circumstances in which items can be told apart: by their number, from the end, and one alone from several."""


def asked_in(circumstances: Sequence[Circumstance], problems: Sequence[Problem]) -> list[Problem]:
    """Each problem in each circumstance."""
    return [one.of(problem) for one in circumstances for problem in problems]


# Conditions ---------------------------------------------------------------------------------------------------


def holding(where: Where, problem: Problem) -> NDArray[np.bool_]:
    """(B,): in which items of a problem a condition holds."""
    setting = Setting(problem.config, problem.sizes, problem.inputs)
    return np.broadcast_to(where.flags((problem.sizes.batch,), ("item",), setting), problem.sizes.batch)


def telling(asked: Sequence[tuple[Circumstance, Problem, bool]]) -> list[Where]:
    """The conditions that hold where a circumstance changes the answer, and nowhere else.

    Args:
        asked: circumstance, the problem in it, whether its answer differs. It does if it does in any layer.
    """
    wrong = {circumstance.name for circumstance, _, differs in asked if differs}
    return [
        where
        for where in (*FEATURED, *ITEMS)
        if all(holding(where, problem)[one.item] == (one.name in wrong) for one, problem, _ in asked)
    ]


def revisions(model: tuple[Bug, ...], wrong: Problem) -> Iterator[tuple[Bug, ...]]:
    """The model with one of its bugs limited to some calls or items, of those that change what a problem gives."""
    conditions = [where for where in (*FEATURED, *ITEMS) if not holding(where, wrong).all()]
    for place, bug in enumerate(model):
        for where in conditions:
            limited = only_at(bug, where)
            if limited is not None:
                yield (*model[:place], limited, *model[place + 1 :])
