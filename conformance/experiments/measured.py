"""Measured bugs: what was read off as a change of a step of the reference, so that it can be run and compared.

They are Bugs as the zoo's are, made while a subject is diagnosed. Their ids begin with "measured:".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.zoo.bug import GRADIENTS, Bug, OnTop
from mha_core.call.inputs import AttentionInputs
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD, PART_OF
from mha_core.reference.state import State, Step
from mha_core.stages import STAGES

PREFIX = "measured:"

TROUBLE = (ArithmeticError, ValueError, IndexError)
"""What a guess with odd numbers may raise: no diagnosis ends with that."""

STAGE_OF_MASK = "weights"
"""The stage at which a wrong mask shows first."""


def is_measured(bug: Bug) -> bool:
    return bug.id.startswith(PREFIX)


@contextmanager
def unwarned() -> Iterator[None]:
    """Without NumPy's warnings of what experiments compute: a guess with odd numbers does not fit, and that is all."""
    with warnings.catch_warnings(), any_numbers:
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"conformance\.experiments\.")
        yield


def stage_of(step: str) -> str:
    """The stage at which a change of a step shows first.

    >>> stage_of("similarity"), stage_of("allowed"), stage_of("d_keys")
    ('scores', 'weights', 'gradients')
    """
    if step in BACKWARD:
        return GRADIENTS
    stage = PART_OF.get(step, step)
    if stage in STAGES:
        return stage
    return {"allowed": STAGE_OF_MASK, "padding": "keys"}[stage]


def on_step(
    step: str,
    slug: str,
    change: Callable[[State, Any], Any],
    sentence: str,
    fix: str,
    *,
    stage: str | None = None,
) -> Bug:
    """A bug that changes the result of a step.

    Args:
        step: a name of `forward.FORWARD` or `backward.BACKWARD`.
        slug: the rest of its id, such as "similarity-times-scale": equal changes must have equal slugs.
        change: (state, result of the step) -> another result. It may raise DoesNotApply.
        sentence, fix: what was measured, with its number; what to change.
        stage: where it first shows. Default: that of the step.
    """
    return around(step, slug, lambda state, beneath: change(state, beneath(state)), sentence, fix, stage=stage)


def around(
    step: str,
    slug: str,
    change: Callable[[State, Step], Any],
    sentence: str,
    fix: str,
    *,
    stage: str | None = None,
) -> Bug:
    """As `on_step`, but `change` is given the step itself, and may run it on another State."""
    slug, stage = f"{PREFIX}{slug}", stage or stage_of(step)
    if step in BACKWARD:
        return Bug(slug, sentence, stage, fix, backward={step: OnTop(BACKWARD[step], change)})
    return Bug(slug, sentence, stage, fix, forward={step: OnTop(FORWARD[step], change)})


def on_parameter(
    step: str, name: str, slug: str, change: Callable[[State, NDArray], NDArray], sentence: str, fix: str
) -> Bug:
    """A bug by which a step reads a changed parameter: `change(state, parameter)`; nothing where a layer lacks it."""

    def changed(state: State, beneath: Step) -> Any:
        if name not in state.parameters:
            return beneath(state)
        return beneath(with_parameters(state, {name: np.asarray(change(state, state.parameters[name]))}))

    return around(step, slug, changed, sentence, fix)


def with_parameters(state: State, changes: dict[str, NDArray]) -> State:
    """The State with other parameters."""
    return replace(state, parameters={**state.parameters, **changes})


def with_mask(state: State, **changes: Any) -> State:
    """The State with other sources of the mask: fields of AttentionMask.

    Models run tens of thousands of times, so the arrays beside the mask are not looked at again.
    """
    inputs = object.__new__(AttentionInputs)
    inputs.__dict__.update(vars(state.inputs), mask=replace(state.inputs.mask, **changes))
    changed = state.copy()
    changed.inputs = inputs
    return changed
