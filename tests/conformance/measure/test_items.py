"""Items: what items of a batch do to each other is measured from outputs alone, and holds on other sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.measure.designs import CONFIGS, generic
from conformance.measure.outcome import Measured
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from conformance.zoo.bug import Bug, BuggySubject
from conformance.zoo.registry import select
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import Run
from mha_core.reference import forward
from mha_core.reference.state import State
from mha_core.weights import Weights

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


class OutputsOnly(BuggySubject):
    """A layer with bugs that shows its output and nothing else."""

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        run = super().prepare(config, weights)

        def outputs(inputs: AttentionInputs) -> Trace:
            return Trace(output=run(inputs).output)

        return outputs


def changed(step: str, change: Callable[[State, NDArray], NDArray]) -> Bug:
    """A wrong layer that is not on file."""
    right = forward.FORWARD[step]
    return Bug("wrong", "It is wrong.", "output", "Mend it.", forward={step: lambda state: change(state, right(state))})


def from_item(number: int, change: Callable[[NDArray], NDArray]) -> Callable[[State, NDArray], NDArray]:
    """The change in items from `number` on."""

    def some(state: State, array: NDArray) -> NDArray:
        return np.concatenate([array[:number], change(array)[number:]])

    return some


WRONG = {
    "queries-of-next": changed("queries", lambda s, x: np.roll(x, -1, axis=0)),
    "keys-two-before": changed("keys", lambda s, x: np.roll(x, 2, axis=0)),
    "values-leak": changed("values", lambda s, x: 0.83 * x + 0.17 * np.roll(x, 1, axis=0)),
    "queries-leak": changed("queries", lambda s, x: 0.6 * x + 0.4 * x[::-1]),
    "keys-leak-to-mean": changed("keys", lambda s, x: 0.9 * x + 0.1 * x.mean(axis=0, keepdims=True)),
    "values-centred": changed("values", lambda s, x: x + 0.25 * (x.mean(axis=0, keepdims=True) - x)),
    "heads-over-batch": changed("heads", lambda s, x: x / s.sizes.batch),
    "scores-over-root-of-batch": changed("similarity", lambda s, x: x / s.sizes.batch**0.5),
    "zero-from-2": changed("heads", from_item(2, lambda x: 0.0 * x)),
    "half-from-4": changed("heads", from_item(4, lambda x: 0.5 * x)),
    "other-scale-from-6": changed("similarity", from_item(6, lambda x: 1.3 * x)),
    "odd-queries-negative": changed(
        "queries", lambda s, x: x * (-1.0) ** np.arange(s.sizes.batch)[:, None, None, None]
    ),
    "normalised-over-items": changed("weights", lambda s, x: x / x.sum(axis=(0, 3), keepdims=True)),
    "keys-refolded": changed(
        "keys", lambda s, x: x.reshape(x.shape[1], x.shape[0], *x.shape[2:]).swapaxes(0, 1).copy()
    ),
    "pairs-share-values": changed("values", lambda s, x: x[np.arange(s.sizes.batch) // 2 * 2]),
}


OF_ITEMS = select_probes(("items-of-equal-scores", "items", "batches"), alone=True)


def agrees(wrong: tuple[Bug, ...], found: Measured) -> bool:
    """Whether the first model gives the wrong layer's output on problems of other sizes and numbers."""
    subject, model = OutputsOnly(*wrong), OutputsOnly(*found.models[0])
    for seed, config in enumerate(CONFIGS[:2]):
        problem = generic(config, seed=50 + seed, batch=7, query_len=4, key_len=7)
        got, made = (one.prepare(config, problem.weights)(problem.inputs).output for one in (subject, model))
        if not np.allclose(made, got, rtol=1e-6, atol=1e-9):
            return False
    return True


@pytest.mark.parametrize("name", WRONG)
def test_what_items_do_to_each_other_is_measured(name: str) -> None:
    found = measure(OutputsOnly(WRONG[name]), probes=OF_ITEMS, zoo=())

    assert found.models[0]
    assert not found.unexplained
    assert agrees((WRONG[name],), found)


def test_a_fault_of_items_beside_another_is_found_too() -> None:
    wrong = (*select(("scale-query-dim",)), WRONG["values-leak"])

    found = measure(OutputsOnly(*wrong), probes=select_probes(("batches",)))

    assert "scale-query-dim" in {bug.id for model in found.models for bug in model}
    assert not found.unexplained
    assert agrees(wrong, found)


@pytest.mark.parametrize("id", ["merge-batch-of-heads"])
def test_bugs_on_file_are_named(id: str) -> None:
    found = measure(OutputsOnly(*select((id,))), probes=OF_ITEMS)

    assert id in {bug.id for model in found.models for bug in model}


def test_a_right_layer_has_no_finding() -> None:
    assert measure(OutputsOnly()).models == ((),)
