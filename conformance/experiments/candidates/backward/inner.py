"""Arrays inside backward steps, read off as those of whole steps are: the softmax's sum over each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.candidates.backward.formula import where_open
from conformance.experiments.changes.fit import fit
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.experiments.measured import on_step
from conformance.experiments.readings.backward import Backward, Inner, Refuted
from conformance.zoo.backward.attention import SOFTMAX_FIX
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.state import State

MOST = 8
"""Most changes of one array."""

ROW_AXES = ("item", "head", "query", "sum")


def _along(state: State) -> NDArray:
    return where_open(state, state["weights"] * state["d_weights"])


def _with_row_sum(state: State, rows: NDArray) -> NDArray:
    return where_open(state, _along(state) - state["weights"] * rows)


ROW_SUM = Inner("d_scores", "row-sum", lambda state: _along(state).sum(axis=-1, keepdims=True), _with_row_sum)


def of_row_sums(found: Sequence[Backward], unit: float) -> Iterator[tuple[int, Bug]]:
    """Other sums over the rows of P * dP in the softmax's backward step, and how many gradients each may explain."""
    try:
        samples = [sample for one in found if (sample := _sample(one, unit)) is not None]
    except (Refuted, DoesNotApply):
        return
    if samples:
        rank = len(found[0].wrong & {*found[0].reached(ROW_SUM.step)})
        with any_numbers:
            changes = fit(samples)[:MOST]
        yield from ((rank, _of_row_sum(change)) for change in changes)


def _sample(one: Backward, unit: float) -> Sample | None:
    array = one.read(ROW_SUM.step, ROW_SUM)
    if array is None:
        return None
    return Sample(array, ROW_SUM.array(one.state), ROW_AXES, Setting(one.problem.config, one.problem.sizes), unit=unit)


def _of_row_sum(change: Change) -> Bug:
    def changed(state: State, result: NDArray) -> NDArray:
        rows = ROW_SUM.array(state)
        other = change.apply(rows, ROW_AXES, Setting(state.config, state.sizes))
        surplus: NDArray = where_open(state, state["weights"] * (rows - other))
        return result + surplus

    return on_step(
        ROW_SUM.step,
        f"d-scores-row-sum-{change.slug}",
        changed,
        f"In the softmax's backward step the sum over a row, rowsum(P * dP), is the definition's, {change.words}.",
        SOFTMAX_FIX,
    )
