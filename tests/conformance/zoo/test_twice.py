"""Every bug of the zoo is killed by two cases or more of a default run, on the path that shows no stages too."""

import pytest

from conformance.any_numbers import any_numbers
from conformance.bounds.precision import Precision
from conformance.cases.table import all_cases
from conformance.judging.expected import expected
from conformance.plan import FAST_IN_WIDE
from conformance.zoo.bug import DoesNotApply
from conformance.zoo.registry import all_bugs
from conformance.zoo.shows import Shows
from mha_core import STAGES

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

PATHS = {"usual": STAGES, "fast": ("output",)}
"""Path -> the stages that it shows."""

CHEAP = [case for case in all_cases() if not case.expensive]

IN_WEIGHTS_ALONE = {"dropout-in-returned-weights"}
"""The bugs that leave the output and the gradients right: a path without weights can't show them."""


def dtypes_of(path, case):
    """The dtypes in which a default run asks a case on a path."""
    return ("float64", "float32") if path == "usual" or case.id in FAST_IN_WIDE else ("float32",)


def killed(case, path):
    """The ids of the bugs that a case kills on a path, in one of its dtypes."""
    found = set()
    for dtype in dtypes_of(path, case):
        shows = Shows.of(expected(case, Precision.of(dtype)), dtype, PATHS[path])
        for bug in all_bugs():
            if bug.id in found:
                continue
            try:
                if shows.first_difference(bug):
                    found.add(bug.id)
            except DoesNotApply:
                continue
    return found


@pytest.mark.parametrize("path", PATHS)
def test_every_bug_is_killed_by_two_cases(path):
    with any_numbers:  # once for all runs
        kills = {case.id: killed(case, path) for case in CHEAP}
    killers = {bug.id: [name for name, bugs in kills.items() if bug.id in bugs] for bug in all_bugs()}
    exempt = {bug.id for bug in all_bugs() if bug.equivalent} | (IN_WEIGHTS_ALONE if path == "fast" else set())
    assert {bug: names for bug, names in killers.items() if len(names) < 2 and bug not in exempt} == {}
