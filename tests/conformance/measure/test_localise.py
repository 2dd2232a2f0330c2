"""The first wrong step of layers whose faults nobody describes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from conformance.cases.table import all_cases
from conformance.diagnosis import diagnose as diagnosing
from conformance.diagnosis.hypotheses import Hypothesis
from conformance.diagnosis.text import describe
from conformance.measure.asker import Asker
from conformance.measure.designs import CONFIGS, generic
from conformance.measure.localise import Located, localise
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from mha_core import AttentionMask
from tests.conformance.measure.wrong import OutputAlone, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def _rough(array):
    """A change that no list of functions has."""
    return array + 0.3 * np.sin(3.0 * array) * np.cos(array) ** 2


def _kept_sums(array):
    found = _rough(array) * (array > 0.0)
    return found / np.maximum(found.sum(axis=-1, keepdims=True), 1e-300)


STEPS = {
    "queries": ("queries", _rough),
    "q_proj": ("queries", _rough),
    "keys": ("keys", _rough),
    "values": ("values", _rough),
    "similarity": ("scores", _rough),
    "scores": ("scores", _rough),
    "weights": ("weights", lambda array: _rough(array) * (array > 0.0)),
    "kept_weights": ("heads", _kept_sums),
    "heads": ("heads", _rough),
    "output": ("output", _rough),
}
"""Step -> the stage at which it shows first, and what is done to its numbers."""


def _located(subject, further=()):
    measured = SimpleNamespace(
        asker=Asker(subject), models=(), outcomes=(), unexplained=(), behaviour=SimpleNamespace(is_function=True)
    )
    return localise(measured, further)


@pytest.mark.parametrize("step", STEPS)
def test_the_first_wrong_step_of_an_odd_function_is_found(step):
    stage, change = STEPS[step]
    located = _located(OutputAlone(wrong_at(step, lambda state, array: change(array))))
    assert located is not None
    assert located.stage == stage


def test_keys_that_are_left_out_are_a_fault_of_the_weights():
    def change(state, allowed):
        return allowed & ((np.arange(allowed.shape[-1]) % 3 != 1) | (allowed.shape[-1] < 4))

    assert _located(OutputAlone(wrong_at("allowed", change))).stage == "weights"


def test_weights_that_are_wrong_after_dropout_are_of_the_heads():
    subject = OutputAlone(wrong_at("kept_weights", lambda state, weights: 5.0 * np.tanh(weights / 5.0)))
    assert _located(subject).stage == "heads"


def test_what_is_wrong_in_some_calls_only_is_found_in_these():
    def change(state, keys):
        return keys if state.inputs.mask.valid_lens is None else _rough(keys)

    subject = OutputAlone(wrong_at("keys", change))
    assert _located(subject) is None
    masked = generic(CONFIGS[0], batch=2, query_len=4, key_len=6, mask=AttentionMask(valid_lens=np.array([5, 6])))
    assert _located(subject, [masked]).stage == "keys"


def test_of_a_right_layer_no_step_is_wrong():
    problems = [case.build() for case in all_cases() if not case.expensive][:30]
    assert _located(OutputAlone(), problems) is None
    assert _located(OutputAlone(dtype="float32"), problems) is None


def test_a_diagnosis_says_the_first_wrong_step_if_it_finds_no_more(monkeypatch):
    few = select_probes(["equal-scores"], alone=True)
    monkeypatch.setattr(diagnosing, "measure", partial(measure, probes=few))
    subject = OutputAlone(wrong_at("similarity", lambda state, array: _rough(array)))
    cases = [case for case in all_cases() if case.id in ("prime", "no-bias", "square")]
    found = diagnosing.diagnose(subject, cases, bugs=[], experiments=Asker(subject, configs=CONFIGS[:1]))
    assert not found.explanations
    assert found.first_stage == "scores"
    said = "First wrong step: scores (or several before it at once), seen in calls such as B="
    alone = "What it does was not found."
    assert said in describe(found)
    assert alone in describe(found)
    nearly = replace(found, partly=(Hypothesis((), 2, 3, 1, 2),))
    assert said in describe(nearly)
    assert alone not in describe(nearly)


def test_what_explains_nearly_all_says_which_step_is_wrong_where_it_explains():
    """One factor on all outputs is as well one on the values where there are no biases."""
    half, rough = (wrong_at("output", change) for change in (lambda s, x: x / 2.0, lambda s, x: _rough(x)))
    problem = generic(CONFIGS[0], batch=2, query_len=4, key_len=6)
    located = Located("values", problem)
    for subject, stage in ((OutputAlone(half), "output"), (OutputAlone(rough), "values")):
        nearly = Hypothesis((half,), 2, 3, 1, 2)
        assert diagnosing._as_explained(located, [nearly], Asker(subject)).stage == stage
