"""A past: what befalls its keys and values is measured from outputs alone, and holds at other lengths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.candidates.calls.pasts import orders_of_past
from conformance.measure.designs import CONFIGS
from conformance.measure.faults import around
from conformance.measure.probes.calls.past import PROBES, with_past
from conformance.measure.search.measure import measure
from conformance.zoo.bug import Bug, BuggySubject
from conformance.zoo.registry import select
from mha_core import AttentionMask
from mha_core.reference.state import State, Step
from tests.conformance.measure.wrong import OutputAlone

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def in_past(step: str, change: Callable[[NDArray], NDArray]) -> Bug:
    """A wrong layer that is not on file: the past part of a step's result is another."""

    def changed(state: State, beneath: Step) -> NDArray:
        joined, at = beneath(state), state.sizes.past_len
        return np.concatenate([change(joined[:, :, :at]), joined[:, :, at:]], axis=2) if at else joined

    return around(step, "wrong", changed, "It is wrong.", "Mend it.")


def behind_past(step: str, change: Callable[[NDArray], NDArray]) -> Bug:
    def changed(state: State, beneath: Step) -> NDArray:
        joined, at = beneath(state), state.sizes.past_len
        return np.concatenate([joined[:, :, :at], change(joined[:, :, at:])], axis=2) if at else joined

    return around(step, "wrong", changed, "It is wrong.", "Mend it.")


WRONG = {
    "values-of-next-head": in_past("values", lambda x: np.roll(x, -1, axis=1)),
    "keys-of-first-item": in_past("keys", lambda x: np.broadcast_to(x[:1], x.shape)),
    "keys-rolled": in_past("keys", lambda x: np.roll(x, 1, axis=2)),
    "values-sine": in_past("values", np.sin),
    "keys-zero": in_past("keys", np.zeros_like),
    "keys-times-0.7": in_past("keys", lambda x: 0.7 * x),
    "channels-reversed": in_past("keys", lambda x: x[..., ::-1]),
    "oldest-mixed": in_past("values", lambda x: 0.8 * x + 0.2 * x[:, :, :1]),
    "new-doubled": behind_past("values", lambda x: 2.0 * x),
    "new-reversed": behind_past("keys", lambda x: x[:, :, ::-1]),
}


def fresh() -> list[Problem]:
    """Problems that no probe asks."""
    lens = AttentionMask(valid_lens=np.array([4, 6]))
    return [
        with_past(CONFIGS[3], 6, 3, batch=3),
        with_past(CONFIGS[4], 3, 5),
        with_past(CONFIGS[0], 4, 2, batch=2, mask=lens),
    ]


@pytest.mark.parametrize("name", WRONG)
def test_past(name: str) -> None:
    wrong = OutputAlone(WRONG[name])
    (model, *_) = measure(wrong, probes=PROBES, zoo=()).models
    assert model
    for problem in fresh():
        runs = (layer.prepare(problem.config, problem.weights) for layer in (wrong, BuggySubject(*model)))
        got, made = (run(problem.inputs).output for run in runs)
        np.testing.assert_allclose(made, got, rtol=1e-6, atol=1e-8)


def test_keys_of_a_past_show_in_calls_for_values_where_a_softmax_is_over_all_queries() -> None:
    (over_both,) = select(["softmax-over-both"])
    rolled = WRONG["keys-rolled"]
    measured = measure(OutputAlone(over_both, rolled), start=[(over_both,)], probes=PROBES[:1], zoo=())
    assert not measured.unexplained
    assert {"keys" for model in measured.models} == {model[-1].stage for model in measured.models}


def test_an_order_that_moves_nothing_in_the_calls_asked_is_not_proposed() -> None:
    problems = [with_past(CONFIGS[0], 3, 4), with_past(CONFIGS[2], 4, 3)]
    assert [config.num_kv_heads for config in CONFIGS[:3:2]] == [2, 3]
    ids = [bug.id for bug in orders_of_past("keys", problems)]
    assert any("kv-head-first-and-third" in id for id in ids)
    assert not any("kv-head-first-and-fourth" in id or "-item-" in id for id in ids)
    of_items = [bug.id for bug in orders_of_past("keys", [with_past(CONFIGS[0], 3, 4, batch=2)])]
    assert any("-item-" in id for id in of_items)


def test_right() -> None:
    measured = measure(OutputAlone(), probes=PROBES)
    assert measured.models == ((),)
    assert not measured.unexplained
