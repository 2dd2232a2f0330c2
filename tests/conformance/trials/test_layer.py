"""The layer of the trials: right without faults, and wrong from where a fault says on."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.cases.table import all_cases
from conformance.judging.compare import ParityError, compare
from conformance.judging.expected import expected
from conformance.subjects.ask import SubjectFailed, ask
from conformance.trials.changes import Factor
from conformance.trials.faults import Dice, Fault
from conformance.trials.layer import View, forward
from conformance.trials.made import arrays_of, distance, families
from conformance.trials.points import POINTS
from conformance.trials.problems import FEATURES, draw_problem
from conformance.trials.subject import FaultySubject, Limits, hooks_of, run_view
from mha_core import STAGES

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone

CASES = [case for case in all_cases() if not (case.expensive or case.config.parts)]


def test_without_a_fault_every_stage_and_gradient_of_every_case_is_right():
    subject = FaultySubject(stages=True, gradients=True)
    for case in CASES:
        wanted = expected(case, subject.precision)
        trace = ask(subject, wanted.problem)
        assert trace.arrays().keys() == wanted.trace.arrays().keys()
        compare(trace, wanted.trace, wanted.allowed_error, wanted.where, subject.dtype)


def test_a_small_fault_is_not():
    subject = FaultySubject((Fault("", (("raw", Factor("1.001", lambda view: 1.001)),)),))
    wanted = expected(CASES[0], subject.precision)
    with pytest.raises(ParityError):
        compare(ask(subject, wanted.problem), wanted.trace, wanted.allowed_error, wanted.where, subject.dtype)


def test_every_point_is_reached():
    seen = set()
    for feature in FEATURES:
        for problem in (draw_problem(Dice(feature, number), (feature,)) for number in range(4)):
            view = View(problem.config, problem.weights, problem.inputs)
            forward(view)
            seen |= view.seen.keys()
    assert seen == set(POINTS)


def stages_of(problem, faults=()):
    view = View(problem.config, problem.weights, problem.inputs, hooks_of(faults))
    trace = run_view(view, stages=True)
    arrays = dict(trace.stages())
    arrays["scores"] = np.where(view.seen["mask"], arrays["scores"], 0.0)
    return arrays, view.seen["mask"]


@pytest.mark.parametrize("module", sorted(families()))
def test_every_family_changes_something_and_first_the_stage_that_it_says(module):
    for name, draw in families()[module].items():
        fault, problem = acting(draw, name)
        if module == "gradients":
            assert distance(arrays_of((fault,), problem, gradients=False), arrays_of((), problem, gradients=False)) == 0
            continue
        if fault.kind == "state":
            continue
        (right, mask), (wrong, other_mask) = stages_of(problem), stages_of(problem, (fault,))
        both = mask & other_mask  # scores count only where they are seen
        right["scores"], wrong["scores"] = (np.where(both, a["scores"], 0.0) for a in (right, wrong))
        differ = [stage for stage in STAGES if distance({"": wrong[stage]}, {"": right[stage]}) > 1e-10]
        assert differ, (name, fault.words)
        assert differ[0] in fault.stages, (name, fault.words, differ)


def acting(draw, name):
    """A fault of this family, and a problem in which it changes the results."""
    for number in range(12):
        fault = draw(Dice("acting", name, number))
        for index in range(8):
            problem = draw_problem(Dice("problem", index), fault.needs)
            arrays = (arrays_of(faults, problem, gradients=fault.is_backward, calls=1) for faults in ((fault,), ()))
            if distance(*arrays) > 1e-7:
                return fault, problem
    raise AssertionError(f"{name} changes nothing: {fault.words}")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(batches=(5, 7)), "batches other than 5, 7"),
        (Limits(masks=("causal",)), "no lens"),
        (Limits(config=CASES[1].config), "another config"),
    ],
)
def test_limits_are_said(limits, words):
    problem = draw_problem(Dice("limits", 3), ("lens",))
    why = FaultySubject(limits=limits).supports(problem.config, problem.inputs)
    assert why is not None
    assert words in why


def test_odd_inputs_raise_where_they_are_said_to():
    wanted = expected(next(case for case in CASES if case.key_len == 1), FaultySubject().precision)
    with pytest.raises(SubjectFailed, match="one key"):
        ask(FaultySubject(limits=Limits(odd=("one key",))), wanted.problem)
