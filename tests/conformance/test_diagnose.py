"""Diagnosis: the right first answer for every bug of the zoo, and for most pairs, from what a subject shows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from conformance.bug import BuggySubject, compatible
from conformance.bugs import all_bugs
from conformance.cases import all_cases
from conformance.diagnose import Runs, diagnose
from conformance.diagnosis_text import describe
from mha_core import STAGES, SpecError, Trace

CASES = [case for case in all_cases() if not case.expensive]


class Showing(BuggySubject):
    """A buggy subject that shows its output, and nothing else unless told so."""

    def __init__(self, *bugs, gradients=False, stages=False, **keywords):
        super().__init__(*bugs, **keywords)
        self.gradients, self.stages = gradients, stages

    def prepare(self, config, weights):
        run = super().prepare(config, weights)

        def shown(inputs):
            trace = run(inputs if self.gradients else replace(inputs, cotangent=None))
            return trace if self.stages else Trace(output=trace.output, gradients=trace.gradients)

        return shown


FORWARD_BUGS = [bug for bug in all_bugs() if not bug.equivalent and bug.forward]
BACKWARD_BUGS = [bug for bug in all_bugs() if not bug.equivalent and not bug.forward]

RUNS = Runs()


@pytest.fixture
def runs():
    return RUNS


@cache
def from_its_output(bug):
    """The diagnosis of a subject with one bug that shows its output alone."""
    return diagnose(Showing(bug), CASES, runs=RUNS)


@pytest.mark.parametrize("bug", FORWARD_BUGS, ids=lambda bug: bug.id)
def test_every_forward_bug_is_named_from_outputs_alone(bug, runs):
    found = from_its_output(bug)
    if not found.failing:
        # Not every wrong stage moves the output: a key bias, for one, shifts every score of a row alike.
        found = diagnose(Showing(bug, stages=True), CASES, runs=runs)
    assert bug.id in [explanation.name for explanation in found.explanations]
    assert all(explanation.complete for explanation in found.explanations)


@pytest.mark.parametrize("bug", BACKWARD_BUGS, ids=lambda bug: bug.id)
def test_every_backward_bug_is_named_from_gradients(bug, runs):
    found = diagnose(Showing(bug, gradients=True), CASES, runs=runs)
    assert bug.id in [explanation.name for explanation in found.explanations]


def test_few_bugs_are_left_with_more_than_one_explanation():
    """From outputs alone, some bugs give the very same numbers in every case; they are reported together."""
    sizes = [len(from_its_output(bug).explanations) for bug in FORWARD_BUGS]
    assert np.mean([size <= 1 for size in sizes]) > 0.8


def random_pairs(count):
    visible = [bug for bug in FORWARD_BUGS if from_its_output(bug).failing]
    pairs = [pair for pair in combinations(visible, 2) if compatible(*pair)]
    chosen = np.random.default_rng(0).choice(len(pairs), size=count, replace=False)
    return [pairs[int(index)] for index in chosen]


def test_at_least_8_of_10_random_pairs_are_named(runs):
    right = 0
    for pair in random_pairs(10):
        found = diagnose(Showing(*pair), CASES, runs=runs)
        names = [set(explanation.name.split(" + ")) for explanation in found.explanations]
        right += {bug.id for bug in pair} in names
    assert right >= 8


def test_three_bugs_at_once_are_named(runs):
    """What an ordinary layer tends to have: empty rows that are NaN, padding that leaks, and a mistake of its own."""
    bugs = [bug for bug in FORWARD_BUGS if bug.id in ("empty-row-nan", "padding-not-zeroed", "scale-query-dim")]
    found = diagnose(Showing(*bugs), CASES, runs=runs)
    assert {bug.id for bug in bugs} in [set(explanation.name.split(" + ")) for explanation in found.explanations]


def test_the_first_wrong_stage_is_named_where_stages_are_visible(runs):
    """A mask that is wrong shows at `weights`, and where it makes padding of other keys at `keys` already."""
    right, some = 0, FORWARD_BUGS[::7]
    for bug in some:
        found = diagnose(Showing(bug, stages=True), CASES, runs=runs)
        assert STAGES.index(found.mismatch.stage) <= STAGES.index(bug.stage), bug.id
        right += found.mismatch.stage == bug.stage
    assert right >= 0.9 * len(some)


def test_a_right_subject_has_nothing_to_explain(runs):
    found = diagnose(Showing(), CASES, runs=runs)
    assert not found.failing
    assert "There is nothing to explain" in describe(found)


def test_an_unknown_bug_gets_the_closest(runs):
    class Unknown(Showing):
        def prepare(self, config, weights):
            run = super().prepare(config, weights)
            return lambda inputs: Trace(output=run(inputs).output * 1.001)

    found = diagnose(Unknown(), CASES, runs=runs)
    assert not found.explanations
    assert len(found.closest) == 3
    assert "No bugs of the zoo explain all" in describe(found)


def test_what_cannot_be_run_is_left_out_with_its_reason(runs):
    class Partial(Showing):
        def prepare(self, config, weights):
            if config.score == "additive":
                raise NotImplementedError("additive scores are not for us")
            return super().prepare(config, weights)

    found = diagnose(Partial(FORWARD_BUGS[0]), CASES, runs=runs)
    assert found.left_out["additive"] == "NotImplementedError: additive scores are not for us"
    assert "additive: NotImplementedError" in describe(found)


def test_nothing_to_go_by_is_an_error():
    class Broken(Showing):
        def prepare(self, config, weights):
            raise RuntimeError("no kernel")

    with pytest.raises(SpecError, match="could not run a single case: RuntimeError: no kernel"):
        diagnose(Broken(), CASES[:2])
