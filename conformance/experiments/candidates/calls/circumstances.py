r"""Circumstances: the same question asked in another kind of call, which changes nothing of its answer.

A mask that hides nothing, a past made of what the keys' projections give, other items beside: the definition's answer
is the same, so whatever differs befalls such calls alone. A subject seen through one of them is a subject of its own,
that answers plain questions, and every probe can be asked of it:

    o(x) = take(o(wrap(x)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.conditions import Condition, only_where
from conformance.experiments.measured import PREFIX
from conformance.zoo.bug import Bug, OnTop
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, Trace
from mha_core.backend import Run
from mha_core.heads import split_heads
from mha_core.reference.forward import FORWARD
from mha_core.weights import Weights

Wrap = Callable[[AttentionConfig, Weights, AttentionInputs], "AttentionInputs | None"]
"""The inputs of a plain call -> those of another kind of call; None if it can't be made of them."""


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

    def of(self, problem: Problem) -> Problem | None:
        """The question in this kind of call."""
        return _wrapped(self, problem)

    def made(self, problem: Problem) -> bool:
        """Whether a problem was made by `of`."""
        return _MADE.get(problem) is self


@lru_cache(maxsize=4096)
def _wrapped(circumstance: Circumstance, problem: Problem) -> Problem | None:
    inputs = circumstance.wrap(problem.config, problem.weights, replace(problem.inputs, cotangent=None))
    if inputs is None:
        return None
    found = replace(problem, inputs=inputs)
    _MADE[found] = circumstance
    return found


_MADE: WeakKeyDictionary[Problem, Circumstance] = WeakKeyDictionary()


@dataclass(eq=False)
class Within:
    """A subject seen through a circumstance: it answers plain calls of one item as it answers them there."""

    subject: Any
    circumstance: Circumstance

    def __getattr__(self, name: str) -> Any:
        return getattr(self.subject, name)

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        """None, or why it does not take a call."""
        return None if inputs.queries.shape[0] == 1 and is_plain(inputs) else "a call that is not plain"

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """As a subject is prepared."""
        run, item = self.subject.prepare(config, weights), self.circumstance.item

        def asked(inputs: AttentionInputs) -> Trace:
            wrapped = self.circumstance.wrap(config, weights, replace(inputs, cotangent=None))
            if wrapped is None:
                raise ValueError("no such call can be made of this one")
            answer = run(wrapped)
            output = answer["output"] if isinstance(answer, dict) else getattr(answer, "output", answer)
            return Trace(output=np.asarray(output)[item : item + 1])

        return asked


def is_plain(inputs: AttentionInputs) -> bool:
    """Whether a call has no mask, no past and no dropout."""
    none = inputs.past_keys is None and inputs.past_values is None and inputs.dropout_keep is None
    return none and features_of(inputs.mask) == ()


def features_of(mask: AttentionMask) -> tuple[str, ...]:
    """What a mask has."""
    given = {
        "lens": mask.valid_lens is not None,
        "allowed": mask.allowed is not None,
        "bias": mask.bias is not None,
        "causal": bool(mask.causal),
        "window": mask.window is not None,
    }
    return tuple(name for name, there in given.items() if there)


# Kinds of calls -----------------------------------------------------------------------------------


def _masked(mask: Callable[[int, int], AttentionMask]) -> Wrap:
    def wrap(config: AttentionConfig, weights: Weights, inputs: AttentionInputs) -> AttentionInputs:
        return replace(inputs, mask=mask(inputs.queries.shape[-2], inputs.keys.shape[-2]))

    return wrap


def _with_past(config: AttentionConfig, weights: Weights, inputs: AttentionInputs) -> AttentionInputs | None:
    """The first keys and values as a past, projected by the definition."""
    length = inputs.keys.shape[1]
    if length < 2 or not config.projections or inputs.is_split:
        return None
    at = length // 2

    def projected(name: str, x: NDArray) -> NDArray:
        made = np.asarray(x, np.float64) @ np.asarray(weights[f"{name}.weight"], np.float64).T
        bias = weights.get(f"{name}.bias")
        made = made if bias is None else made + np.asarray(bias, np.float64)
        return split_heads(made, config.num_kv_heads).astype(x.dtype)

    return replace(
        inputs,
        keys=inputs.keys[:, at:],
        values=inputs.values[:, at:],
        past_keys=projected("k_proj", inputs.keys[:, :at]),
        past_values=projected("v_proj", inputs.values[:, :at]),
    )


def _among(batch: int, item: int) -> Wrap:
    """Other items beside, made of the same numbers in other places."""

    def wrap(config: AttentionConfig, weights: Weights, inputs: AttentionInputs) -> AttentionInputs:
        def filled(x: NDArray) -> NDArray:
            others = [np.roll((-1.0) ** k * x[0], k + 1, axis=-1) for k in range(batch)]
            others[item] = x[0]
            return np.stack(others).astype(x.dtype)

        return replace(inputs, queries=filled(inputs.queries), keys=filled(inputs.keys), values=filled(inputs.values))

    return wrap


MASKS: tuple[Circumstance, ...] = (
    Circumstance("lens", _masked(lambda queries, keys: AttentionMask(valid_lens=np.array([keys])))),
    Circumstance("allowed", _masked(lambda queries, keys: AttentionMask(allowed=np.ones((1, 1, queries, keys), bool)))),
    Circumstance("bias", _masked(lambda queries, keys: AttentionMask(bias=np.zeros((1, 1, queries, keys))))),
    Circumstance("causal", _masked(lambda queries, keys: AttentionMask(causal=True, query_offset=keys))),
    Circumstance("window", _masked(lambda queries, keys: AttentionMask(window=(queries + keys, queries + keys)))),
)
PAST = (Circumstance("past", _with_past),)
ITEMS = tuple(
    Circumstance(f"item-{item}-of-{batch}", _among(batch, item), item)
    for batch, item in ((2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 2), (4, 3))
)
"""Circumstances in which items can be told apart: by their number, from the end, and one alone from several."""


def asked_in(circumstances: Sequence[Circumstance], problems: Sequence[Problem]) -> list[Problem]:
    """Each problem in each circumstance that it can be in."""
    wrapped = (one.of(problem) for one in circumstances for problem in problems)
    return [problem for problem in wrapped if problem is not None]


# Conditions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OfCall(Condition):
    """A condition on what a call has, not on its sizes alone: `given(config, inputs)` is bool."""

    given: Callable[[AttentionConfig, AttentionInputs], bool] = lambda config, inputs: False

    def at(self, config: AttentionConfig, inputs: AttentionInputs, sizes: Any) -> Any:
        return self.given(config, inputs)


def _has(name: str) -> Callable[[AttentionConfig, AttentionInputs], bool]:
    if name == "past":
        return lambda config, inputs: inputs.past_keys is not None
    return lambda config, inputs: name in features_of(inputs.mask)


def _present() -> Iterator[OfCall]:
    words = {
        "lens": "lengths",
        "allowed": "a keep-mask",
        "bias": "a bias in the mask",
        "causal": "a causal mask",
        "window": "a window",
        "past": "a past",
    }
    for name, said in words.items():
        has = _has(name)
        yield OfCall(f"with-{name}", f"in calls with {said}", None, _never, has)
        yield OfCall(f"without-{name}", f"in calls without {said}", None, _never, _not(has))


def _never(sizes: Any) -> bool:
    return False


def _not(has: Callable[[AttentionConfig, AttentionInputs], bool]) -> Callable[[AttentionConfig, AttentionInputs], bool]:
    return lambda config, inputs: not has(config, inputs)


def _is_item(k: int, sizes: Any) -> NDArray[np.bool_]:
    return np.arange(sizes.batch) == k


CONDITIONS: tuple[Condition, ...] = (
    *_present(),
    OfCall("with-a-mask", "in calls with a mask", None, _never, lambda config, inputs: bool(features_of(inputs.mask))),
    OfCall("without-a-mask", "in calls without a mask", None, _never, lambda c, inputs: not features_of(inputs.mask)),
    OfCall("plain", "in calls with no mask, past or dropout", None, _never, lambda c, inputs: is_plain(inputs)),
    OfCall("grouped", "in layers with grouped heads", None, _never, lambda c, inputs: c.num_kv_heads < c.num_heads),
    OfCall("not-grouped", "in layers without grouped heads", None, _never, lambda c, i: c.num_kv_heads == c.num_heads),
    Condition("of-several-items", "in calls of more than one item", None, lambda sizes: sizes.batch > 1),
    Condition("of-one-item", "in calls of one item", None, lambda sizes: sizes.batch == 1),
    *(Condition(f"item-{k}", f"in item {k}", "item", partial(_is_item, k)) for k in range(4)),
    Condition("last-item", "in the last item", "item", lambda sizes: np.arange(sizes.batch) == sizes.batch - 1),
    Condition("not-item-0", "in all items but item 0", "item", lambda sizes: np.arange(sizes.batch) > 0),
    Condition("not-last-item", "in all items but the last", "item", lambda s: np.arange(s.batch) < s.batch - 1),
    Condition("odd-items", "in items of odd numbers", "item", lambda sizes: np.arange(sizes.batch) % 2 == 1),
    Condition("even-items", "in items of even numbers", "item", lambda sizes: np.arange(sizes.batch) % 2 == 0),
)
"""Kinds of calls, and items, to which a fault may be limited."""

REVISED: tuple[Condition, ...] = (
    *CONDITIONS,
    Condition("with-keys", "in calls with keys", None, lambda sizes: sizes.key_len > 0),
)
"""Those to which a bug is limited that was taken for one of all calls; a length of 0 is often a case of its own."""


def holding(condition: Condition, problem: Problem) -> NDArray[np.bool_]:
    """(B,): in which items of a problem a condition holds."""
    holds = np.asarray(condition.at(problem.config, problem.inputs, problem.sizes), bool)
    return np.broadcast_to(holds, problem.sizes.batch)


def explaining(asked: Sequence[tuple[Circumstance, Problem, bool]], plain: Sequence[Problem] = ()) -> list[Condition]:
    """The conditions that hold where a circumstance changes the answer, and nowhere else.

    Args:
        asked: circumstance, the problem in it, whether its answer differs. It does if it does in any layer.
        plain: problems whose answers do not differ.
    """
    wrong = {circumstance.name for circumstance, _, differs in asked if differs}
    return [
        condition
        for condition in CONDITIONS
        if all(holding(condition, problem)[one.item] == (one.name in wrong) for one, problem, _ in asked)
        and not any(holding(condition, problem).any() for problem in plain)
    ]


def revisions(model: tuple[Bug, ...], wrong: Problem) -> Iterator[tuple[Bug, ...]]:
    """The model with one of its bugs limited to some calls or items, of those that change what a problem gives.

    Or with one of the new keys or values as one of all of them, those of a past too, and the other way round.
    """
    for place, bug in enumerate(model):
        others = [*in_the_past_too(bug)]
        for condition in REVISED:
            if not holding(condition, wrong).all() and (limited := only_where(bug, condition)) is not None:
                others.append(limited)
        for other in others:
            yield (*model[:place], other, *model[place + 1 :])


JOINED = {"new_keys": "keys", "new_values": "values"}


def in_the_past_too(bug: Bug) -> Iterator[Bug]:
    """The bug of new keys or values in all of them, or that of all in the new ones alone."""
    for moved, words in (
        (JOINED, "in those of a past too"),
        ({joined: new for new, joined in JOINED.items()}, "in the new ones alone"),
    ):
        steps = {name: step for name, step in bug.forward.items() if name in moved and isinstance(step, OnTop)}
        if not steps:
            continue
        changed = {moved[name]: OnTop(FORWARD[moved[name]], step.change) for name, step in steps.items()}
        yield Bug(
            f"{PREFIX}{bug.id.removeprefix(PREFIX)}-{words.replace(' ', '-')}",
            f"{bug.sentence.removesuffix('.')}, {words}.",
            bug.stage,
            bug.fix,
            forward={**{name: step for name, step in bug.forward.items() if name not in steps}, **changed},
        )
