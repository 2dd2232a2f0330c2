"""Rows: a bug as a row of a table, and the operations that a row is made of.

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug, DoesNotApply
from mha_core import AttentionMask, SpecError
from mha_core.call.masks import allowed_keys
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State, Step

Steps: TypeAlias = Mapping[str, Step]
Change: TypeAlias = Callable[[State, Any], Any]
"""(state, the right one) -> the wrong one."""
Where: TypeAlias = Callable[[State], bool]
"""The calls that an operation affects."""
Arrays: TypeAlias = dict[str, NDArray]
Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Table:
    """A table of bugs that share the first stage that they change, and the fix.

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
    """Return two functions: state -> whether its config has this part (`field`), and state -> the part, a `kind`."""
    return lambda state: getattr(state.config, field) is not None, attrgetter(f"config.{field}")


def right_step(name: str) -> Step:
    """Return the definition's step `name`, forward or backward."""
    return FORWARD[name] if name in FORWARD else BACKWARD[name]


def after(name: str, change: Change, where: Where = lambda state: True) -> Steps:
    """Return {name: step}, where the step returns `change(state, right result)` in place of its right result.

    A result of None is not changed, nor any result in calls for which `where(state)` is false.
    """
    right = right_step(name)

    def step(state: State) -> Any:
        result = right(state)
        return result if result is None or not where(state) else change(state, result)

    return {name: step}


def times(name: str, factor: Callable[[State], Any]) -> Steps:
    """Return the step's result times `factor(state)`."""
    return after(name, lambda state, right: right * factor(state))


def of_past(name: str, change: Change, where: Where) -> Steps:
    """Return {name: step} for "keys" or "values", with `change(state, past)` in place of a past (B, G, Lp, d or dv)."""

    def changed(state: State, right: NDArray) -> NDArray:
        past = state.sizes.past_len
        return np.concatenate([change(state, right[:, :, :past]), right[:, :, past:]], axis=2)

    return after(name, changed, lambda state: where(state) and state.sizes.past_len > 0)


def entries(name: str, change: Callable[[State, Arrays], Arrays]) -> Steps:
    """Return {name: step}, for a step that returns a dict: `change(state, dict)` replaces entries of it."""
    return after(name, lambda state, right: {**right, **change(state, right)} if right else right)


def other_mask(where: Where = lambda state: True, **sources: Change) -> Steps:
    """Return name -> step, as if the mask had been given with changed fields. Padding that it lets in is not zeroed.

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
