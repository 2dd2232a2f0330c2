"""Faults of some calls or items alone: what is measured is limited to those, and holds in no others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from conformance.cases.problem import Problem
from conformance.measure.propose.equivalent_calls import CONDITIONS, ITEMS, MASKS, PAST, asked_in
from conformance.measure.faults import only_where
from conformance.measure.designs import CONFIGS, generic
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from conformance.zoo.bug import Bug, BuggySubject
from mha_core import reference
from mha_core.reference.state import State
from tests.conformance.measure.wrong import Change, OutputAlone, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

ASKED = (*("one-key", "equal-scores", "scores", "softmax", "items"), "calls-alike-of-equal-scores", "calls-alike")
PROBES = [probe for probe in select_probes(["calls-alike*"]) if probe.id in ASKED]


def where(slug: str, step: str, change: Change) -> Bug:
    condition = next(one for one in CONDITIONS if one.slug == slug)
    bug = only_where(wrong_at(step, change), condition)
    assert bug is not None
    return bug


def times(number: float) -> Callable[[State, np.ndarray], np.ndarray]:
    return lambda state, x: number * x


WRONG = {
    "heads-with-lens": where("with-lens", "heads", times(0.7)),
    "queries-without-causal": where("without-causal", "queries", lambda s, x: x[..., ::-1]),
    "output-in-last-item": where("last-item", "output", lambda s, x: x[..., ::-1]),
}


@pytest.mark.parametrize("name", WRONG)
def test_some_calls(name: str) -> None:
    wrong = OutputAlone(WRONG[name])
    (model, *_) = measure(wrong, probes=PROBES, zoo=()).models
    assert model
    plain = [generic(CONFIGS[1], seed=7, query_len=4, key_len=6)]
    for problem in (*plain, *asked_in((*ITEMS, *MASKS, *PAST), plain)):
        runs = (layer.prepare(problem.config, problem.weights) for layer in (wrong, BuggySubject(*model)))
        got, made = (run(problem.inputs).output for run in runs)
        np.testing.assert_allclose(made, got, rtol=1e-6, atol=1e-8)


def test_a_length_of_0_is_left_alone() -> None:
    """1 / Lk has no value there, so a factor that is right elsewhere is one of calls with keys."""
    bug = wrong_at("output", lambda state, x: x / max(state.sizes.key_len, 1))
    asked = ("equal-scores", "equal-scores-with-biases", "no-keys")
    probes = [probe for probe in select_probes(["no-keys"]) if probe.id in asked]
    found = measure(OutputAlone(bug), probes=probes, zoo=())
    assert not found.unexplained
    assert any("In calls with keys" in one.sentence for model in found.models for one in model)


def test_a_bias_left_out_beside_another_source() -> None:
    wrong = OutputAlone(where("with-lens", "scores", lambda state, x: state["capped"]))
    found = measure(wrong, probes=select_probes(["masked-scores-with-bias"], alone=True), zoo=())
    assert not found.unexplained
    assert [one.sentence for one in found.models[0]] == ["In calls with lengths: the additive bias is not added."]


def test_circumstances_change_nothing() -> None:
    problem = generic(CONFIGS[0])

    def output(one: Problem) -> np.ndarray:
        found = reference.run(one.config, one.weights, one.inputs).output
        assert found is not None
        return found

    for circumstance in (*ITEMS, *MASKS, *PAST):
        wrapped = circumstance.of(problem)
        assert wrapped is not None
        item = output(wrapped)[circumstance.item]
        np.testing.assert_allclose(item, output(problem)[0], rtol=1e-12, atol=1e-12)
