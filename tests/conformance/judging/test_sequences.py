"""A layer that keeps something is caught by a sequence of calls, and it is said what it keeps."""

import pytest

from conformance.cases.table import all_sequences, select
from conformance.runner import run_case
from conformance.subjects.backend import ReferenceSubject
from tests.conformance.judging.keeping import FAULTS

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


@pytest.mark.nightly("what a layer keeps is caught", every=8)
@pytest.mark.parametrize("name", FAULTS)
def test_a_layer_that_keeps_something_is_caught_and_described(name):
    fault = FAULTS[name]
    results = [run_case(sequence, fault.subject()) for sequence in all_sequences()]
    wrong = [result for result in results if result.status == "different"]
    assert wrong, "no sequence shows it"
    said = [result.kept for result in wrong if result.kept]
    assert any(fault.words in kept for kept in said), said


def test_there_are_enough_of_them_and_cases_of_one_call_do_not_show_them():
    assert len(FAULTS) >= 25
    (case,) = select(("prime",))
    shown = {name for name, fault in FAULTS.items() if run_case(case, fault.subject()).status == "different"}
    assert len(shown) <= 4, shown


def test_the_reference_keeps_nothing():
    assert {run_case(sequence, ReferenceSubject()).status for sequence in all_sequences()} == {"equal"}
