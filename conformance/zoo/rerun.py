"""Run the reference again with other steps, from where they first change something.

A step that nothing before it has changed gives what it gave: it is not run. A bug that does not touch a case costs
almost nothing there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from mha_core.reference.state import State, Step


def rerun(
    state: State, pipeline: Mapping[str, Step], replaced: Collection[str], *, changed: bool = False
) -> tuple[State, bool]:
    """Take up a finished run with other steps: the replaced ones, and all after the first that gives another array.

    Args:
        state: what `reference.run_state` gave; it stays as it is.
        pipeline: every step, forward or backward, with the replaced ones among them.
        replaced: their names.
        changed: whether something before this pipeline is new already.

    Returns:
        The new State, and whether anything in it is new.
    """
    found = replace(state, arrays=dict(state.arrays))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for name, step in pipeline.items():
            if changed or name in replaced:
                found.arrays[name] = step(found)
                changed = changed or not _same(found.arrays[name], state.arrays[name])
    return found, changed


def _same(a: object, b: object) -> bool:
    """Whether a step's results are equal; a NaN equals a NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if a is None or b is None:
        return a is b
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
