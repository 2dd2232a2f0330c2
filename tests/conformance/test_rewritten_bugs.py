"""A sample of the benchmark of diagnosis: bugs in other people's code (`diagnosis_bench` runs all of them)."""

from __future__ import annotations

import pytest

from conformance.diagnose import Runs, diagnose
from conformance.runner import run_case
from tests.conformance.diagnosis_bench import CASES, answer
from tests.conformance.plain_layers import STYLES, Layer
from tests.conformance.rewritten_bugs import BACKWARD, KNOWN, UNKNOWN, Rewritten

SOME = CASES[::3]
RUNS = Runs()


def rewritten(subjects, bug):
    return next(subject for subject in subjects if subject.bug == bug)


def test_the_plain_layer_is_right():
    """So that what differs in the others is what was put into them."""
    subject = Rewritten("none", Layer, stages=True, gradients=True)
    results = {case.id: run_case(case, subject) for case in CASES if case.id not in ("no-items", "no-keys")}
    different = {id for id, result in results.items() if result.status != "equal"}
    assert different == {"nan-in-open-key", "infinity-in-open-value"}  # where weights and gradients hold other NaN


def test_there_are_enough_in_every_style():
    assert len({subject.bug for subject in KNOWN} | {subject.bug for subject in BACKWARD}) >= 60
    assert len(UNKNOWN) >= 15
    for style in STYLES:
        assert sum(issubclass(subject.layer, style) for subject in KNOWN) >= 8


@pytest.mark.parametrize("stages", [False, True], ids=["outputs", "stages"])
@pytest.mark.parametrize("bug", ["v-proj-bias-missing", "groups-tiled", "bias-subtracted", "scale-num-heads"])
def test_known_bugs_are_named(bug, stages):
    word, told = answer(rewritten(KNOWN, bug).showing(stages=stages), RUNS, SOME)
    assert word in ("named", "k of n"), told


@pytest.mark.parametrize("bug", ["weights-detached"])
def test_known_bugs_of_gradients_are_named(bug):
    word, told = answer(rewritten(BACKWARD, bug), RUNS, SOME)
    assert word in ("named", "k of n"), told


@pytest.mark.parametrize("bug", ["output-larger", "temperature", "values-squared"])
def test_of_unknown_bugs_nothing_absurd_is_said(bug):
    found = diagnose(rewritten(UNKNOWN, bug), SOME, runs=RUNS)
    assert found.failing
    assert not found.explanations + found.partly + found.closest
