"""The judge: right for the truth's own description, wrong for another, and silent where nothing is claimed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest

from conformance.diagnosis.diagnose import Diagnosis, Hypothesis
from conformance.trials.changes import Factor
from conformance.trials.faults import Dice, Fault
from conformance.trials.judge import alike, fresh_problems, judge
from conformance.trials.made import Trial
from conformance.trials.parts import states
from conformance.trials.subject import Limits
from conformance.zoo.bug import Bug
from mha_core.reference import forward

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


def bug(step, function, stage):
    return Bug(f"{stage}-measured", "Measured.", stage, "Change it.", forward={step: function})


def times(number):
    return bug("unscaled", lambda state: number * forward.unscaled(state), "scores")


def found(*explanations, partly=()):
    hypotheses = tuple(Hypothesis(bugs, 1, 1, 1, 1) for bugs in explanations)
    nearly = tuple(Hypothesis(bugs, 1, 2, 1, 1) for bugs in partly)
    return Diagnosis("it", "float64", ("a",), (), {}, None, ("output",), explanations=hypotheses, partly=nearly)


def trial(*faults, stages):
    return Trial("0-0", faults, frozenset(stages))


SCALED = trial(Fault("factor", (("raw", Factor("0.9", lambda view: 0.9)),)), stages={"scores", "queries"})


def test_the_own_description_is_right():
    verdict = judge(SCALED, SCALED.subject(), found((times(0.9),)))
    assert (verdict.stage, verdict.described, verdict.wrong, verdict.silent) == (True, True, False, False)


@pytest.mark.parametrize(
    "bugs",
    [(times(0.91),), (times(1.0),), (times(0.9), bug("values", lambda state: -forward.values(state), "values")), ()],
)
def test_another_is_wrong(bugs):
    verdict = judge(SCALED, SCALED.subject(), found(bugs))
    assert verdict.wrong
    assert not verdict.described


def test_what_is_said_of_a_layer_of_one_size_is_judged_in_that_size():
    limits = Limits(batches=(2,), query_lens=(5,), key_lens=(7,))
    limited = replace(SCALED, limits=limits)
    assert all(problem.sizes[:3] == (2, 5, 7) for problem in islice(fresh_problems(limited), 20))
    assert judge(limited, limited.subject(), found((times(0.9),))).described
    assert judge(limited, limited.subject(), found((times(0.91),))).wrong


def test_of_several_that_cant_be_told_apart_one_suffices():
    assert judge(SCALED, SCALED.subject(), found((times(0.8),), (times(0.9),))).described


def test_what_explains_nearly_all_is_no_wrong_claim():
    verdict = judge(SCALED, SCALED.subject(), found(partly=((times(0.8),),)))
    assert verdict.stage
    assert not verdict.wrong
    assert not verdict.described


def test_nothing_said_is_silence():
    verdict = judge(SCALED, SCALED.subject(), found())
    assert verdict.silent
    assert (verdict.stage, verdict.described, verdict.wrong) == (False, False, False)


def test_a_small_fault_is_not_described_by_none():
    small = trial(Fault("factor", (("raw", Factor("1 + 1e-7", lambda view: 1.0000003)),)), stages={"scores"})
    assert judge(small, small.subject(), found(())).wrong
    assert judge(small, small.subject(), found((times(1.0000003),))).described


def test_another_stage_is_no_right_one():
    negative = bug("values", lambda state: -forward.values(state), "values")
    verdict = judge(SCALED, SCALED.subject(), found((negative,)))
    assert not verdict.stage
    assert verdict.wrong


def test_the_stage_of_a_description_that_gives_the_same_outputs_is_right():
    total = trial(Fault("factor", (("total", Factor("0.5", lambda view: 0.5)),)), stages={"weights"})
    doubled = bug("heads", lambda state: 2.0 * forward.heads(state), "heads")
    verdict = judge(total, total.subject(), found((doubled,)))
    assert verdict.described
    assert verdict.stage
    thrice = bug("heads", lambda state: 3.0 * forward.heads(state), "heads")
    assert not judge(total, total.subject(), found((thrice,))).stage


@dataclass(frozen=True)
class Finding:
    stage: str
    sentence: str
    confident: bool
    bug: Bug | None = None


@dataclass(frozen=True)
class WithFindings(Diagnosis):
    findings: tuple[Finding, ...] = ()


def with_findings(*findings):
    return WithFindings("it", "float64", ("a",), (), {}, None, ("output",), findings=findings)


def test_findings_count_as_claims():
    sure = with_findings(Finding("scores", "scores times 0.9", True, times(0.9)))
    assert judge(SCALED, SCALED.subject(), sure).described
    wrong = with_findings(Finding("scores", "scores times 0.8", True, times(0.8)))
    assert judge(SCALED, SCALED.subject(), wrong).wrong
    unsure = with_findings(Finding("scores", "scores times 0.8", False, times(0.8)))
    verdict = judge(SCALED, SCALED.subject(), unsure)
    assert verdict.stage
    assert not verdict.wrong


def test_of_a_layer_whose_calls_differ_that_has_to_be_said():
    state = trial(next(iter(states.parts().values()))(Dice("state")), stages={"output"})
    assert state.stateful
    said = with_findings(Finding("output", "a second call differs from the first", True))
    assert judge(state, state.subject(), said).described
    assert judge(state, state.subject(), found((times(0.9),))).wrong


@pytest.mark.parametrize(("numbers", "expected"), [(1, True), (5, False)])
def test_rounding_may_fall_the_other_way_in_a_few_numbers_only(numbers, expected):
    array = np.ones(100)
    other = array.copy()
    other[:numbers] += 2.0**-8
    assert alike({"output": other}, {"output": array}, effect=0.1, roundoff=2.0**-8) is expected
    assert not alike({"output": other}, {"output": array}, effect=0.1, roundoff=0.0)
