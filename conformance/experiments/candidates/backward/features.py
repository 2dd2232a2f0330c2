"""Wrong gradients of calls or layers with one feature only: which it is, is told by the problems that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from conformance.cases.problem import Problem
from conformance.experiments.measured import PREFIX
from conformance.zoo.bug import Bug, OnTop
from mha_core import AttentionConfig, AttentionInputs
from mha_core.reference.backward import BACKWARD
from mha_core.reference.state import State, Step


class Call(Protocol):
    """A layer and what one call of it is given: a Problem, or a State."""

    @property
    def config(self) -> AttentionConfig: ...

    @property
    def inputs(self) -> AttentionInputs: ...


FEATURES: dict[str, Callable[[Call], bool]] = {
    "a softcap": lambda c: c.config.softcap is not None,
    "the additive score": lambda c: c.config.score == "additive",
    "a given scale": lambda c: c.config.scale is not None,
    "a keep-mask": lambda c: c.inputs.dropout_keep is not None,
    "a past": lambda c: c.inputs.past_keys is not None,
    "an additive bias": lambda c: c.inputs.mask.bias is not None,
    "valid lengths": lambda c: c.inputs.mask.valid_lens is not None,
    "a mask of allowed keys": lambda c: c.inputs.mask.allowed is not None,
    "a causal mask": lambda c: c.inputs.mask.causal,
    "several items": lambda c: len(c.inputs.queries) > 1,
    "no projections": lambda c: not c.config.projections,
    "grouped heads": lambda c: c.config.num_kv_heads < c.config.num_heads,
    "as many queries as keys": lambda c: c.inputs.queries.shape[-2] == c.inputs.keys.shape[-2],
}
"""Words to be read after "With" -> whether a call has it."""


def features_of(wrong: Sequence[Problem], right: Sequence[Problem]) -> list[str]:
    """Those that all problems that differ have, and none of the others; none if there are no others."""
    if not right:
        return []
    return [name for name, has in FEATURES.items() if all(map(has, wrong)) and not any(map(has, right))]


def only_with(bugs: Sequence[Bug], features: Sequence[str]) -> Iterator[Bug]:
    """Each bug in calls with one of the features alone."""
    for feature in features:
        for bug in bugs:
            if all(isinstance(step, OnTop) for step in bug.backward.values()):
                yield _only_with(bug, feature)


def _only_with(bug: Bug, feature: str) -> Bug:
    has = FEATURES[feature]

    def conditional(change: Callable[[State, Step], Any]) -> Callable[[State, Step], Any]:
        return lambda state, beneath: change(state, beneath) if has(state) else beneath(state)

    return Bug(
        f"{PREFIX}{bug.id.removeprefix(PREFIX)}-with-{feature.replace(' ', '-')}",
        f"With {feature}, and in no other call: {bug.sentence[0].lower()}{bug.sentence[1:]}",
        bug.stage,
        bug.fix,
        backward={
            name: OnTop(BACKWARD[name], conditional(step.change))
            for name, step in bug.backward.items()
            if isinstance(step, OnTop)
        },
    )
