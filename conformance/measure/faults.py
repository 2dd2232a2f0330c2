"""Faults as bugs: changed steps of the reference, which can be run and compared. Their ids begin alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.grammar.sample import Setting
from conformance.measure.grammar.where import Where
from conformance.zoo.bug import GRADIENTS, Bug, DoesNotApply, OnTop
from mha_core.call.arguments import with_fields
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD, PART_OF
from mha_core.reference.state import State, Step
from mha_core.stages import STAGES

PREFIX = "measured:"

TROUBLE = (ArithmeticError, ValueError, IndexError)
"""What a guess with odd numbers may raise: no diagnosis ends with that."""

Change = Callable[[State, Step], Any]
"""(state, the step beneath) -> the step's result."""


def is_measured(bug: Bug) -> bool:
    return bug.id.startswith(PREFIX)


@contextmanager
def unwarned() -> Iterator[None]:
    """Without NumPy's warnings of what experiments compute: a guess with odd numbers does not fit, and that is all."""
    with warnings.catch_warnings(), any_numbers:
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"conformance\.measure\.")
        yield


def stage_of(step: str) -> str:
    """The stage at which a change of a step shows first.

    >>> stage_of("similarity"), stage_of("allowed"), stage_of("d_keys")
    ('scores', 'weights', 'gradients')
    """
    if step in BACKWARD:
        return GRADIENTS
    stage = PART_OF.get(step, step)
    return stage if stage in STAGES else {"allowed": "weights", "padding": "keys"}[stage]


def bug_of(
    slug: str,
    sentence: str,
    fix: str,
    steps: Mapping[str, Change] | str,
    change: Change | None = None,
    *,
    stage: str = "",
) -> Bug:
    """A measured bug.

    Args:
        slug: the rest of its id, such as "similarity-times-scale": equal changes must have equal slugs.
        sentence, fix: what was measured, with its number; what to change.
        steps: step -> its change; or the name of one step, and `change`. A change may raise DoesNotApply.
        change: that of the one step.
        stage: where it first shows. Default: that of the first step.
    """
    if isinstance(steps, str):
        assert change is not None
        steps = {steps: change}
    found = {name: OnTop({**FORWARD, **BACKWARD}[name], one) for name, one in steps.items()}
    forward = {name: step for name, step in found.items() if name in FORWARD}
    backward = {name: step for name, step in found.items() if name in BACKWARD}
    slug = PREFIX + slug.replace(" ", "-")
    return Bug(slug, sentence, stage or stage_of(next(iter(steps))), fix, forward=forward, backward=backward)


def on_result(change: Callable[[State, Any], Any]) -> Change:
    """A change of what a step gives: (state, result) -> another one."""
    return lambda state, beneath: change(state, beneath(state))


def lower(words: str) -> str:
    """The words with a small letter in front, as inside a sentence."""
    return words[0].lower() + words[1:]


def with_parameters(state: State, changes: Mapping[str, NDArray]) -> State:
    """The State with other parameters."""
    return replace(state, parameters={**state.parameters, **changes})


def with_arrays(state: State, **arrays: Any) -> State:
    """The State with other results of earlier steps."""
    found = state.copy()
    found.arrays.update(arrays)
    return found


def with_inputs(state: State, **changes: Any) -> State:
    """The State with other inputs, or sources of the mask: fields of AttentionInputs and of AttentionMask.

    Models run tens of thousands of times, so nothing is looked at again: what is given is as these two hold it.
    """
    fields = vars(state.inputs)
    of_mask = {name: value for name, value in changes.items() if name not in fields}
    given = {name: value for name, value in changes.items() if name in fields}
    if of_mask:
        given["mask"] = with_fields(state.inputs.mask, **of_mask)
    found = state.copy()
    found.inputs = with_fields(state.inputs, **given)
    return found


# In some calls, or in a part of an array, alone ------------------------------------------------------------

_PLAIN = ("item", "{}", "channel")
_HEADS = ("item", "head", "{}", "channel")
_SCORED = ("item", "head", "query", "key")

STEP_AXES: Mapping[str, tuple[str, ...]] = {
    **{name: tuple(axis.format("query") for axis in _PLAIN) for name in ("query_inputs", "q_proj", "merged", "output")},
    **{
        name: tuple(axis.format("new key") for axis in _PLAIN)
        for name in ("key_inputs", "value_inputs", "k_proj", "v_proj")
    },
    **{
        name: tuple(axis.format("query") for axis in _HEADS)
        for name in ("projected_queries", "normed_queries", "rotated_queries", "queries", "heads")
    },
    **dict.fromkeys(
        (
            "projected_keys",
            "normed_keys",
            "rotated_keys",
            "new_keys",
            "projected_values",
        ),
        ("item", "kv head", "new key", "channel"),
    ),
    **dict.fromkeys(("keys", "values"), ("item", "kv head", "key", "channel")),
    **dict.fromkeys(("allowed", "unscaled", "similarity", "capped", "scores", "weights", "kept_weights"), _SCORED),
    "additive_hidden": (*_SCORED, "hidden"),
    "padding": ("item", "key"),
}
"""Step -> the axes of its result, by which a bug of any sort may be limited to a part."""


def only_at(bug: Bug, where: Where) -> Bug | None:
    """The bug at some places or in some calls alone; None if one of its steps has no such axis."""
    for name in bug.steps:
        if where.axes and not set(where.axes) <= set(STEP_AXES.get(name, ())):
            return None
    changes = {
        name: _only_at(STEP_AXES.get(name, ()), step, where) for name, step in {**bug.forward, **bug.backward}.items()
    }
    sentence = f"At {where.words}: {lower(bug.sentence)}"
    return bug_of(f"{bug.id.removeprefix(PREFIX)}-at-{where.slug}", sentence, bug.fix, changes, stage=bug.stage)


def _only_at(axes: tuple[str, ...], step: Step, where: Where) -> Change:
    def change(state: State, beneath: Step) -> Any:
        setting = Setting.of(state)
        right = beneath(state)
        if right is None or (not where.axes and not where.holds(setting)):
            return right
        wrong = step.change(state, beneath) if isinstance(step, OnTop) else step(state)
        if not where.axes:
            return wrong
        if wrong is None or np.shape(wrong) != np.shape(right):
            raise DoesNotApply("a part of an axis has no array of another shape")
        return np.where(where.flags(right.shape, axes, setting), wrong, right)

    return change
