"""Run the reference again with some steps replaced, starting at the first of them.

Steps before the first change are not run: their arrays are those of the finished run. So a bug that changes nothing
in a case takes almost no time there. Nor are later steps of the definition that read nothing new.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from conformance.any_numbers import any_numbers
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.sizes import CallSizes
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD
from mha_core.reference.pipeline import run_state
from mha_core.reference.state import State, Step
from mha_core.weights import Weights

Reads = dict[Step, frozenset[str]]
"""Step of the definition -> the steps whose arrays it reads in one problem."""

_DEFINITION = frozenset((*FORWARD.values(), *BACKWARD.values()))


def rerun(
    state: State,
    pipeline: Mapping[str, Step],
    replaced: Collection[str],
    *,
    changed: bool = False,
    since: State | None = None,
    reads: Reads,
) -> tuple[State, bool]:
    """Run the replaced steps of a finished run, and every step after the first that gives another array.

    Args:
        state: a result of `reference.run_state`; it is not changed.
        pipeline: every step, forward or backward or both, with the replaced ones among them.
        replaced: their names.
        changed: whether something before this pipeline is new already.
        since: that of which `state` is a rerun already. Default: none, `state` is the finished run.
        reads: what steps read, as `noted_run` finds it: those that read nothing new are not run.

    Returns:
        The new State, the given one where no step is run, and whether anything in it is new.
    """
    if not changed and pipeline.keys().isdisjoint(replaced):
        return state, False
    found = state.copy()
    arrays, before = found.arrays, (since or state).arrays
    new = set() if since is None else {name for name in before if arrays[name] is not before[name]}
    with any_numbers:
        for name, step in pipeline.items():
            if name in replaced:
                arrays[name] = step(found)
                changed = changed or not same(arrays[name], state.arrays[name])
            elif changed and not (step in reads and new.isdisjoint(reads[step])):
                arrays[name] = step(found)
                if name == "padding" and np.array_equal(arrays[name], before[name]):
                    arrays[name] = before[name]  # most masks leave it as it is, and many steps read it
            else:
                continue
            if arrays[name] is not before[name]:
                new.add(name)
    return found, changed


def noted_run(
    config: AttentionConfig,
    weights: Weights,
    inputs: AttentionInputs,
    *,
    forward: Mapping[str, Step] = FORWARD,
    sizes: CallSizes | None = None,
) -> tuple[State, Reads]:
    """`reference.run_state`, and what the definition's own steps among these read."""
    state = run_state(config, weights, inputs, forward={}, backward={}, sizes=sizes)
    watched, reads = _Watched(state), Reads()
    with any_numbers:
        for name, step in {**forward, **({} if inputs.cotangent is None else BACKWARD)}.items():
            if step in _DEFINITION:
                watched.read = set()
                state.arrays[name] = step(watched)
                reads[step] = frozenset(watched.read)
            else:
                state.arrays[name] = step(state)
    return state, reads


class _Watched(State):
    """A State that knows which of its arrays were read."""

    def __init__(self, state: State) -> None:
        vars(self).update(vars(state))
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self.arrays[name]


def same(a: object, b: object) -> bool:
    """Whether two results of a step are equal; a NaN equals a NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if a is None or b is None:
        return a is b
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    differ = a != b
    if not differ.any():
        return True
    first = differ.argmax()  # mostly a number, which tells
    return bool(a.flat[first] != a.flat[first]) and np.array_equal(a, b, equal_nan=True)
