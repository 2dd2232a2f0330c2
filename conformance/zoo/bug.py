"""Bug: one way of getting attention wrong, as a few steps of the reference pipeline replaced; and a bug as a subject.

The registry is in `registry.py`, the bugs themselves are by topic in `forward/`, `backward/` and `blocked/`.

A bug on file is a row of a table, made of operations:

    row = Table("scores", "Add the bias to the scaled scores, as it is.")
    row("bias-twice", "The additive bias is added twice.", after("scores", lambda s, right: ...))

A row has an id, a sentence and operations; the table gives the stage and the fix, unless the row says others. An
operation is a mapping from the names of steps to other steps:

    {"weights": function}            another function in place of the step
    after("scores", change)          the right result of the step, changed
    times("d_keys", factor)          the right result times a number or an array
    of_past("keys", change, where)   the past changed, and the new keys not
    entries("d_inputs", change)      some of the arrays of a step that gives several by name
    other_mask(valid_lens=change)    the mask as if the caller had given another source
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.bounds.precision import Precision
from conformance.subjects.ask import CannotExpress
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, Trace
from mha_core.backend import Run
from mha_core.call.masks import allowed_keys
from mha_core.dtypes import round_to
from mha_core.reference import pipeline as reference
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State, Step
from mha_core.weights import Weights

GRADIENTS = "gradients"
"""The value of `Bug.stage` for a bug that changes gradients only."""


class DoesNotApply(CannotExpress, ValueError):
    """An error: the bug can't be made in a problem of these sizes, such as a transposed matrix that is not square."""


class Contradiction(DoesNotApply):
    """An error: two bugs would change one number in different ways, so no layer has both."""


@dataclass(frozen=True, eq=False)
class Bug:
    """A bug: a way of getting attention wrong, as replaced steps of the reference.

    Args:
        id: its name, in kebab-case.
        sentence: what is wrong.
        stage: the name of the first stage that it changes; "gradients" if it changes none.
        fix: what to change.
        forward, backward: name of a step of `forward.FORWARD` or `backward.BACKWARD` -> the wrong step. The
            wrong step raises DoesNotApply where sizes make the bug impossible.
        seen_in: public code or reports in which it occurred; "" for none.
        equivalent: why its results equal the reference's. "": they differ, and the suite must detect the bug.

    >>> from mha_core import reference
    >>> bug = Bug("heads-doubled", "Every head counts twice.", "heads", "Add each head once.",
    ...           forward={"heads": lambda state: 2 * forward.heads(state)})
    >>> sorted(bug.steps)
    ['heads']
    """

    id: str
    sentence: str
    stage: str
    fix: str
    forward: Mapping[str, Step] = field(default_factory=dict)
    backward: Mapping[str, Step] = field(default_factory=dict)
    seen_in: str = ""
    equivalent: str = ""

    @property
    def steps(self) -> frozenset[str]:
        """Return the names of the steps that the bug replaces."""
        return frozenset(self.forward) | frozenset(self.backward)

    def run_state(self, config: AttentionConfig, weights: Weights, inputs: AttentionInputs) -> State:
        """Return the State of the reference run with this bug. Raises DoesNotApply if the bug can't be made here."""
        forward, backward = pipelines(self)
        return reference.run_state(config, weights, inputs, forward=forward, backward=backward)


@dataclass(frozen=True, eq=False)
class OnTop:
    """A step that wraps another step; if several bugs wrap one step, they are applied in the bugs' order.

    Args:
        beneath: the wrapped step: the reference's, or another bug's.
        change: (state, beneath) -> the result. It may change the result of `beneath`, or call it with another state.
    """

    beneath: Step
    change: Callable[[State, Step], Any]

    def __call__(self, state: State) -> Any:
        return self.change(state, self.beneath)


def compatible(a: Bug, b: Bug) -> bool:
    """Return whether two bugs replace no step in common, so that they can't contradict each other."""
    return not any(_replaces(a, name) and _replaces(b, name) for name in a.steps & b.steps)


def _replaces(bug: Bug, name: str) -> bool:
    return not all(isinstance(steps[name], OnTop) for steps in (bug.forward, bug.backward) if name in steps)


def pipelines(*bugs: Bug) -> tuple[dict[str, Step], dict[str, Step]]:
    """Return the forward and the backward pipeline (step's name -> step) with the steps of all `bugs`.

    If several bugs replace one step, each element of its result is taken from the bug that changes this element. The
    step raises Contradiction if two bugs change one element differently. Bugs that wrap a step (`OnTop`) act last.
    """
    found = steps_with(bugs, {name for bug in bugs for name in bug.steps})
    forward, backward = ({**own, **{name: found[name] for name in found.keys() & own}} for own in (FORWARD, BACKWARD))
    return forward, backward


def steps_with(bugs: Sequence[Bug], names: Iterable[str]) -> dict[str, Step]:
    """Return the steps of these names from the `pipelines` of `bugs`."""
    found = {}
    for name in names:
        right, there = (BACKWARD, "backward") if name in BACKWARD else (FORWARD, "forward")
        replaced = [steps[name] for bug in bugs if name in (steps := getattr(bug, there))]
        found[name] = _one_step(right[name], replaced)
    return found


def _one_step(right: Step, replaced: Sequence[Step]) -> Step:
    """One step with what several bugs make of it."""
    others = [_where_parameters_are(step) for step in replaced if not isinstance(step, OnTop)]
    found = right if not others else others[0] if len(others) == 1 else _composed(right, others)
    for step in replaced:
        if isinstance(step, OnTop):
            found = _where_parameters_are(OnTop(found, step.change))
    return found


def _composed(right: Step, others: Sequence[Step]) -> Step:
    """The step that changes what any of `others` changes in what `right` gives."""

    def step(state: State) -> Any:
        before = right(state)
        return reduce(lambda found, other: _merged(before, found, other(state)), others, before)

    return step


def _merged(before: Any, a: Any, b: Any) -> Any:
    """`before` with what is changed in `a` and with what is changed in `b`; each is an array, or several by name."""
    if a is before or b is before:
        return b if a is before else a
    if all(isinstance(one, Mapping) and one.keys() == before.keys() for one in (before, a, b)):
        return {name: _merged(before[name], a[name], b[name]) for name in before}
    if all(isinstance(one, tuple) for one in (before, a, b)):  # rotary_tables
        return type(before)(*map(_merged, before, a, b))
    if not all(isinstance(one, np.ndarray) and one.shape == before.shape for one in (before, a, b)):
        raise Contradiction("two bugs give one step results of different shapes")
    in_a, in_b = _differ(a, before), _differ(b, before)
    if (in_a & in_b & _differ(a, b)).any():
        raise Contradiction("two bugs change the same number in one step")
    return np.where(in_a, a, b)


def _differ(a: NDArray, b: NDArray) -> NDArray:
    """Where two arrays differ by more than the order of operations explains; a NaN equals a NaN."""
    return ~np.isclose(a, b, rtol=1e-9, atol=1e-300, equal_nan=True)


def _where_parameters_are(step: Step) -> Step:
    """`step`, changed to raise DoesNotApply in a layer without a parameter that it reads."""

    def guarded(state: State) -> Any:
        try:
            return step(state)
        except KeyError as error:
            if error.args[0] in state.parameters or not str(error.args[0]).endswith((".weight", ".bias", ".vector")):
                raise
            raise DoesNotApply(f"this layer has no {error.args[0]}") from error

    return guarded


class BuggySubject:
    """A subject (a tested layer) that runs the reference with these bugs; without bugs it is right.

    Steps run in float64. At the end every array of the Trace is rounded to `dtype`. The run raises DoesNotApply where a
    bug can't be made.
    """

    device = "cpu"

    def __init__(self, *bugs: Bug, dtype: str = "float64") -> None:
        self.bugs = bugs
        self.dtype = dtype
        self.precision = Precision.of(dtype)
        self.name = "+".join(bug.id for bug in bugs) or "reference"
        self._forward, self._backward = pipelines(*bugs)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            trace = reference.run(config, weights, inputs, forward=self._forward, backward=self._backward)
            return rounded(trace, self.dtype)

        return run


def rounded(trace: Trace, dtype: str) -> Trace:
    """Return every array of the trace rounded to `dtype`."""
    if dtype == "float64":
        return trace
    return Trace.of_arrays({name: rounded_array(array, dtype) for name, array in trace.arrays().items()})


def rounded_array(array: NDArray, dtype: str) -> NDArray:
    """Return an array rounded to `dtype`. With float64 it is unchanged, even if a bug gave it a narrower dtype."""
    if dtype == "float64":
        return array
    with any_numbers:
        return round_to(array, dtype)


Steps: TypeAlias = Mapping[str, Step]
Change: TypeAlias = Callable[[State, Any], Any]
"""(state, the right one) -> the wrong one."""
Where: TypeAlias = Callable[[State], bool]
"""The calls that an operation affects."""
Arrays: TypeAlias = dict[str, NDArray]
Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Table:
    """A table of bugs that share a fix and the first stage that they change. Calling the table makes a bug.

    >>> row = Table("heads", "Add each head once.")
    >>> bug = row("heads-doubled", "Every head counts twice.", times("heads", lambda state: 2.0))
    >>> bug.stage, list(bug.forward), list(bug.backward)
    ('heads', ['heads'], [])
    """

    stage: str
    fix: str

    def __call__(self, id: str, sentence: str, *operations: Steps, **words: str) -> Bug:
        """Return the bug of one row; `words`: stage, fix, seen_in and equivalent, as of a `Bug`.

        Raises:
            SpecError: an operation names a step that the definition does not have.
        """
        steps = {name: step for operation in operations for name, step in operation.items()}
        if unknown := [name for name in steps if name not in FORWARD and name not in BACKWARD]:
            raise SpecError(f"bug {id!r} replaces {unknown[0]!r}, which is no step of the definition")
        forward = {name: step for name, step in steps.items() if name in FORWARD}
        backward = {name: step for name, step in steps.items() if name in BACKWARD}
        return Bug(id, sentence, **{**vars(self), **words}, forward=forward, backward=backward)


def require(possible: bool, message: str) -> None:
    """Raise DoesNotApply with this message unless `possible`."""
    if not possible:
        raise DoesNotApply(message)


def part(field: str, kind: type[Settings]) -> tuple[Callable[[State], bool], Callable[[State], Settings]]:
    """Return two functions: State -> whether its config has the part `field`, and State -> the part, of type `kind`."""
    return lambda state: getattr(state.config, field) is not None, attrgetter(f"config.{field}")


def right_step(name: str) -> Step:
    """Return the definition's step `name`, forward or backward."""
    return FORWARD[name] if name in FORWARD else BACKWARD[name]


def after(name: str, change: Change, where: Where = lambda state: True) -> Steps:
    """Return {name: step}, where the step returns `change(state, right result)` in place of its right result.

    The step returns its right result unchanged if the right result is None, or if `where(state)` is false.
    """
    right = right_step(name)

    def step(state: State) -> Any:
        result = right(state)
        return result if result is None or not where(state) else change(state, result)

    return {name: step}


def times(name: str, factor: Callable[[State], Any]) -> Steps:
    """Return {name: step}, where the step returns its right result times `factor(state)`."""
    return after(name, lambda state, right: right * factor(state))


def of_past(name: str, change: Change, where: Where) -> Steps:
    """Return {name: step}. The step ("keys" or "values") uses `change(state, past)` as its past (B, G, Lp, width)."""

    def changed(state: State, right: NDArray) -> NDArray:
        past = state.sizes.past_len
        return np.concatenate([change(state, right[:, :, :past]), right[:, :, past:]], axis=2)

    return after(name, changed, lambda state: where(state) and state.sizes.past_len > 0)


def entries(name: str, change: Callable[[State, Arrays], Arrays]) -> Steps:
    """Return {name: step}. If `right` is the unchanged step's dict, step returns {**right, **change(state, right)}."""
    return after(name, lambda state, right: {**right, **change(state, right)} if right else right)


def other_mask(where: Where = lambda state: True, **sources: Change) -> Steps:
    """Return {"allowed": step}, where the step changes the mask. Padding becomes 0 only where the new mask excludes it.

    Args:
        where: state -> whether the bug affects this call.
        sources: field of AttentionMask -> function (state, right value) -> changed value. A field that the caller did
            not give stays absent; the query offset is passed as an array, () or (B,).
    """

    def allowed(state: State) -> NDArray:
        mask = state.inputs.mask
        if where(state):
            given = {name: getattr(mask, name) for name in sources if getattr(mask, name) is not None}
            if "query_offset" in given:
                given["query_offset"] = np.asarray(given["query_offset"])
            mask = replace(mask, **{name: sources[name](state, source) for name, source in given.items()})
        return keys_of(state, mask)

    return {"allowed": allowed}


def keys_of(state: State, mask: AttentionMask, **changes: Any) -> NDArray:
    """Return bool (B, H, Lq, Lk): the keys that a mask, with fields replaced by `changes`, allows in this call."""
    return allowed_keys(replace(mask, **changes) if changes else mask, state.sizes, state.config.num_heads)
