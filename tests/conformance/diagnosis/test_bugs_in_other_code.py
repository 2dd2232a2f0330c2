"""A sample of the benchmark of diagnosis: bugs in other people's code (`diagnosis_bench` runs all of them)."""

import importlib
import time

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.deviations.known import load
from conformance.diagnosis import apart
from conformance.diagnosis.apart import diagnosed, explained
from conformance.diagnosis.brief import ENDED, ENDED_AFTER, describe
from conformance.diagnosis.diagnose import Runs, diagnose
from conformance.runner import run_case
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import all_bugs
from mha.cli.main import main
from mha_core import SpecError
from tests.conformance.diagnosis.bugs_in_other_code import BACKWARD, KNOWN, UNKNOWN, OtherCode
from tests.conformance.diagnosis.diagnosis_bench import CASES, answer
from tests.conformance.diagnosis.plain_layers import STYLES, Layer

diagnosis = importlib.import_module("conformance.diagnosis.diagnose")

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

SOME = CASES[::3]
RUNS = Runs()


def in_other_code(subjects, bug):
    return next(subject for subject in subjects if subject.bug == bug)


def test_the_plain_layer_is_right():
    """So that what differs in the others is what was put into them."""
    subject = OtherCode("none", Layer, stages=True, gradients=True)
    results = {case.id: run_case(case, subject) for case in CASES if case.id not in ("no-items", "no-keys")}
    lacking = {case.id for case in CASES if case.config.parts}
    assert {id for id, result in results.items() if result.status == "unsupported"} == lacking
    different = {id for id, result in results.items() if result.status != "equal"} - lacking
    # Where weights and gradients hold other NaN.
    assert different == {"nan-in-open-key", "nan-under-softcap", "infinity-in-open-value"}


def test_there_are_enough_in_every_style():
    assert len({subject.bug for subject in KNOWN} | {subject.bug for subject in BACKWARD}) >= 60
    assert len(UNKNOWN) >= 15
    for style in STYLES:
        assert sum(issubclass(subject.layer, style) for subject in KNOWN) >= 8


@pytest.mark.parametrize(
    ("bug", "stages"), [("v-proj-bias-missing", False), ("bias-subtracted", True), ("causal-bottom-right", False)]
)
def test_known_bugs_are_named(bug, stages):
    word, told = answer(in_other_code(KNOWN, bug).showing(stages=stages), RUNS, SOME)
    assert word in ("named", "k of n"), told


@pytest.mark.parametrize("bug", ["weights-detached"])
def test_known_bugs_of_gradients_are_named(bug):
    word, told = answer(in_other_code(BACKWARD, bug), RUNS, SOME)
    assert word in ("named", "k of n"), told


@pytest.mark.parametrize("bug", ["output-larger"])
def test_of_unknown_bugs_nothing_absurd_is_said(bug):
    found = diagnose(in_other_code(UNKNOWN, bug), SOME, runs=RUNS)
    assert found.failing
    assert not found.explanations + found.partly + found.closest


@pytest.mark.parametrize("command", ["check", "diagnose"])
def test_what_fails_in_an_expensive_case_alone_is_diagnosed(command):
    cases = ["--case", "prime", "--case", "window", "--case", "blocks-long"]
    arguments = [
        command,
        "--subject",
        "tests.conformance.diagnosis.bugs_in_other_code:LARGE",
        "--dtype",
        "float64",
        *cases,
    ]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert (
        "Large float64: 1 of 3 differ" if command == "check" else "Large (float64) differs in 1 of 3 cases: blocks-"
    ) in said
    assert "How sure: this explains what fails, though it would show in 1 case that passes as well." in said
    assert "weights: The window is ignored. " in said
    assert "(window-ignored)" in said


def test_check_diagnoses_nothing_if_told_so():
    subject = "tests.conformance.diagnosis.bugs_in_other_code:LARGE"
    arguments = ["check", "--subject", subject, "--dtype", "float64", "--case", "blocks-long", "--no-diagnosis"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "Case blocks-long, float64: output[" in done.output
    assert "differs in 1 of 1 cases" not in done.output


class SingleOnly:
    """A layer that says nothing of dtypes, and takes no float64."""

    def prepare(self, config, weights):
        if weights["q_proj.weight"].dtype != np.float32:
            raise TypeError("expected Float but found Double")
        bug = next(bug for bug in all_bugs() if bug.id == "out-proj-bias-missing")
        return BuggySubject(bug, dtype="float32").prepare(config, weights)


def test_a_subject_that_takes_float32_alone_is_diagnosed_in_that():
    arguments = ["diagnose", "--subject", f"{__name__}:SingleOnly", "--no-experiments", "--workers", "0", "-c", "prime"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "SingleOnly (float32) differs in the one case: prime." in done.output
    done = CliRunner().invoke(main, [*arguments, "--dtype", "float64"])
    assert done.exit_code == 2
    assert "TypeError: expected Float but found Double" in done.output


def raising(*args, **options):
    raise OverflowError(34, "Numerical result out of range")


def hanging(*args, **options):
    time.sleep(20.0)


@pytest.mark.parametrize("command", ["check", "diagnose"])
@pytest.mark.parametrize(
    ("search", "reason"), [(raising, "OverflowError: (34, "), (hanging, "TookTooLong: no answer within 2 s")]
)
def test_whatever_becomes_of_the_search_the_verdict_stands(command, search, reason, monkeypatch):
    """What differs is said, with the exit status of that, the bug on file that was found first, and why it ended."""
    monkeypatch.setattr(apart, "call", lambda settings, function, *arguments: function(*arguments))
    monkeypatch.setattr(diagnosis, "Probing", search)
    monkeypatch.setattr(diagnosis, "LONGEST", 2.0 if search is hanging else 60.0)  # the bug on file takes 0.3 s
    subject = f"{__name__}:SingleOnly"
    done = CliRunner().invoke(main, [command, "-s", subject, "--workers", "0", "-d", "float32", "-c", "prime"])
    assert done.exit_code == 1, done.output
    said = " ".join(done.output.split())
    whole = "SingleOnly float32: 1 of 1 differ", "SingleOnly (float32) differs in the one case: prime."
    assert whole[command == "diagnose"] in said
    assert "(out-proj-bias-missing)" in said
    assert f"{ENDED_AFTER} {reason}" in said


def test_a_search_that_ends_before_it_has_found_a_reason_says_that_none_is_known(monkeypatch):
    monkeypatch.setattr(diagnosis, "Probing", raising)
    bug = next(bug for bug in all_bugs() if bug.id == "out-proj-bias-missing")
    found = diagnose(BuggySubject(bug), SOME, bugs=(), experiments=True)
    assert found.differs
    assert f"\n{ENDED} OverflowError: (34, 'Numerical result out of range')" in describe(found)


def test_a_subject_that_can_no_longer_be_asked_leaves_the_verdict():
    assert explained(diagnosed, BuggySubject(), (), load()).text.startswith(f"{ENDED} SpecError: ")
    with pytest.raises(SpecError, match="could not run a single case"):
        diagnose(BuggySubject(), ())
