"""Run the reference again with some steps replaced, starting at the first of them.

Steps before the first change are not run: their arrays are those of the finished run. So a bug that changes nothing
in a case takes almost no time there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from mha_core.reference.state import State, Step


def rerun(
    state: State, pipeline: Mapping[str, Step], replaced: Collection[str], *, changed: bool = False
) -> tuple[State, bool]:
    """Run the replaced steps of a finished run, and every step after the first that gives another array.

    Args:
        state: a result of `reference.run_state`; it is not changed.
        pipeline: every step, forward or backward, with the replaced ones among them.
        replaced: their names.
        changed: whether something before this pipeline is new already.

    Returns:
        The new State, the given one where no step is run, and whether anything in it is new.
    """
    if not changed and pipeline.keys().isdisjoint(replaced):
        return state, False
    found = state.copy()
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for name, step in pipeline.items():
            if changed or name in replaced:
                found.arrays[name] = step(found)
                changed = changed or not _same(found.arrays[name], state.arrays[name])
    return found, changed


def _same(a: object, b: object) -> bool:
    """Whether two results of a step are equal; a NaN equals a NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if a is None or b is None:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    differ = a != b
    if not differ.any():
        return True
    first = differ.argmax()  # mostly a number, which tells
    return bool(a.flat[first] != a.flat[first]) and np.array_equal(a, b, equal_nan=True)
