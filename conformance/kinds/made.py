"""Faults as bugs: changed steps of the reference, which can be run and compared. Their ids begin alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.kinds.change import Setting
from conformance.zoo.bug import GRADIENTS, Bug, OnTop
from mha_core.call.arguments import with_fields
from mha_core.call.masks import padding_keys
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD, PART_OF
from mha_core.reference.state import State, Step
from mha_core.stages import STAGES

if TYPE_CHECKING:
    from conformance.kinds.change import Where

PREFIX = "measured:"

TROUBLE = (ArithmeticError, ValueError, IndexError)
"""What a guess with odd numbers may raise: no diagnosis ends with that."""

Change = Callable[[State, Step], Any]
"""(state, the step beneath) -> the step's result."""

Model = tuple[Bug, ...]
"""The bugs that are put into the reference together."""


def is_measured(bug: Bug) -> bool:
    """Return whether a bug is one of `conformance.kinds` (its id begins with "measured:"), and not of the zoo."""
    return bug.id.startswith(PREFIX)


@contextmanager
def unwarned() -> Iterator[None]:
    """Return a context without NumPy's warnings, for experiments: a guess with odd numbers needs no warning."""
    with warnings.catch_warnings(), any_numbers:
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"conformance\.(measure|kinds)\.")
        yield


def stage_of(step: str) -> str:
    """Return the first stage that shows a change of a step.

    >>> stage_of("similarity"), stage_of("allowed"), stage_of("d_keys")
    ('scores', 'weights', 'gradients')
    """
    if step in BACKWARD:
        return GRADIENTS
    stage = PART_OF.get(step, step)
    return stage if stage in STAGES else {"allowed": "weights", "padding": "keys"}[stage]


def bug_of(slug: str, sentence: str, fix: str, steps: Mapping[str, Change], *, stage: str = "") -> Bug:
    """Return a measured bug.

    Args:
        slug: the end of its id, such as "similarity-times-scale". Equal changes must have equal slugs.
        sentence, fix: what was measured, with its number; what to change, or "" where that is not known.
        steps: step of the reference -> function that replaces its result; it may raise DoesNotApply.
        stage: the stage at which it first shows. Default: the stage of the first step.
    """
    found = {name: OnTop({**FORWARD, **BACKWARD}[name], one) for name, one in steps.items()}
    forward = {name: step for name, step in found.items() if name in FORWARD}
    backward = {name: step for name, step in found.items() if name in BACKWARD}
    slug = PREFIX + slug.replace(" ", "-")
    return Bug(slug, sentence, stage or stage_of(next(iter(steps))), fix, forward=forward, backward=backward)


def lower(words: str) -> str:
    """Return the words with a small first letter, as inside a sentence."""
    return words[0].lower() + words[1:]


def with_parameters(state: State, changes: Mapping[str, NDArray]) -> State:
    """Return the State with other parameters."""
    return replace(state, parameters={**state.parameters, **changes})


def with_inputs(state: State, **changes: Any) -> State:
    """Return the State with other fields of AttentionInputs and of AttentionMask, which are not checked again."""
    fields = vars(state.inputs)
    of_mask = {name: value for name, value in changes.items() if name not in fields}
    given = {name: value for name, value in changes.items() if name in fields}
    if of_mask:
        given["mask"] = with_fields(state.inputs.mask, **of_mask)
    found = state.copy()
    found.inputs = with_fields(state.inputs, **given)
    return found


def only_in(bug: Bug, where: Where) -> Bug:
    """Return the bug, limited to the calls for which `where` holds."""
    changes = {name: _only_in(step, where) for name, step in {**bug.forward, **bug.backward}.items()}
    is_said = where.words == "layers with projections" and "projected" in bug.sentence
    sentence = bug.sentence if is_said else f"Only in {where.words}: {lower(bug.sentence)}"
    return bug_of(f"{bug.id.removeprefix(PREFIX)}-in-{where.slug}", sentence, bug.fix, changes, stage=bug.stage)


def with_padding_zeroed(bugs: Iterable[Bug]) -> Iterator[Bug]:
    """Yield variants of the bugs that let padding in, for layers that still set padded keys and values to 0."""
    for bug in bugs:
        if bug.stage == "keys" and "allowed" in bug.forward and "padding" not in bug.forward:
            sentence = f"{bug.sentence.rstrip('.')}, though padded keys and values are set to 0."
            steps = {**bug.forward, "padding": lambda state: padding_keys(state.inputs.mask, state.sizes)}
            yield replace(bug, id=f"{PREFIX}{bug.id}-zeroed", sentence=sentence, stage="weights", forward=steps)


@cache
def of_mask(bug: Bug) -> Bug:
    """Return the bug, with the stage "weights" in place of "keys" if the bug changes what the mask allows.

    >>> from conformance.zoo.registry import all_bugs
    >>> of_mask(next(bug for bug in all_bugs() if bug.id == "lens-one-long")).stage
    'weights'
    """
    return replace(bug, stage="weights") if bug.stage == "keys" and "allowed" in bug.forward else bug


def _only_in(step: Step, where: Where) -> Change:
    def change(state: State, beneath: Step) -> Any:
        if not where.holds(Setting.of(state)):
            return beneath(state)
        return step.change(state, beneath) if isinstance(step, OnTop) else step(state)

    return change
