"""Runs of hypotheses in the cases: what can't be run there is no answer."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.cases.table import select
from conformance.diagnosis.diagnose import Runs, observe
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
