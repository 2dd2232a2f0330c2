"""Runs of hypotheses in the cases: what can't be run there is no answer."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from conformance.cases.table import select
from conformance.diagnosis.brief import AS_OWN_LAYERS, brief
from conformance.diagnosis.diagnose import Diagnosis, Runs, diagnose, observe
from conformance.diagnosis.hypotheses import Hypothesis
from conformance.diagnosis.observations import shown_stages
from conformance.kinds.made import bug_of
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import all_bugs

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def test_a_model_that_can_not_run_in_a_case_is_not_its_answer():
    def less_the_first(state, beneath):
        weights = beneath(state)
        return weights - weights[..., :1].max(axis=-1, keepdims=True)

    meaningless = bug_of("less-the-first", "It has no meaning without keys.", "-", {"weights": less_the_first})
    (empty,), _ = observe(BuggySubject(), select(["no-keys"]))
    assert Runs().arrays(empty, (meaningless,)) is None


def test_where_one_of_several_bugs_can_not_be_made_the_others_give_the_answer():
    """A layer without projections has no bias that could be missing."""
    found = {bug.id: bug for bug in all_bugs()}
    missing, unscaled = found["k-proj-bias-missing"], found["scale-missing"]
    (bare,), _ = observe(BuggySubject(unscaled), select(["heads-given"]))
    runs = Runs()
    assert bare.mismatches
    assert runs.arrays(bare, (missing,)) is None
    together = runs.arrays(bare, (missing, unscaled))
    assert np.array_equal(together["output"], bare.arrays["output"])


BY_ID = {bug.id: bug for bug in all_bugs()}
SOME = select(["prime", "causal", "valid-lens", "one-key", "ragged-square"])


def test_what_is_shown_says_the_first_wrong_stage():
    split = {"queries": True, "keys": True, "values": True, "scores": True, "weights": True, "heads": True}
    assert shown_stages(observe(BuggySubject(BY_ID["split-d-h"]), SOME)[0]) == split
    unmasked = shown_stages(observe(BuggySubject(BY_ID["causal-ignored"]), SOME)[0])
    assert [stage for stage, wrong in unmasked.items() if wrong] == ["weights", "heads"]


def test_a_stage_that_is_a_multiple_of_the_right_one_is_not_the_first_wrong_one():
    """Queries may be scaled in place of scores."""
    scaled = bug_of("early", "-", "-", {"queries": lambda state, beneath: 0.3 * beneath(state)})
    bent = bug_of("bent", "-", "-", {"scores": lambda state, beneath: np.tanh(beneath(state))})
    stages = shown_stages(observe(BuggySubject(scaled, bent), SOME)[0])
    assert (stages["queries"], stages["scores"]) == (False, True)
    found = diagnose(BuggySubject(scaled, bent), SOME, bugs=())
    assert found.first_step == "scores"


def test_what_the_likely_cause_does_not_explain_is_said_by_kind():
    subject = BuggySubject(BY_ID["causal-ignored"], BY_ID["empty-row-nan"])
    cases = [*SOME, *select(["square-causal"])]
    told = brief(diagnose(subject, cases, bugs=[BY_ID["causal-ignored"]]))
    assert told.sure == "How sure: this explains 2 of 4 failing cases, 4 of 6 in all."
    assert told.seen == ("Not explained: 2 with a row without a key (one-key, ragged-square).",)


def test_readings_of_two_steps_are_said_step_by_step():
    fills, padding = ("fill-lowest", "fill-1e9-averaged"), ("padding-not-zeroed", "padding-of-values-not-zeroed")
    for readings in (product(fills, padding), [*product(fills, padding)][:3]):
        models = [(BY_ID["scale-in-float32"], BY_ID[fill], BY_ID[one]) for fill, one in readings]
        likely = Diagnosis("-", "float32", ("prime",), (), {}, None, ("output",))
        told = brief(replace(likely, explanations=tuple(Hypothesis(model, 3, 3) for model in models)))
        assert [cause.bugs for cause in told.causes] == [("scale-in-float32",), padding, fills]
        assert told.seen == (AS_OWN_LAYERS,)
