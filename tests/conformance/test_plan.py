"""What a run asks by default, what it leaves to `--all`, and that it says so."""

import pytest

from conformance.bounds.precision import Precision
from conformance.cases.case import Case
from conformance.cases.table import all_cases, all_sequences, select_asked
from conformance.judging.expected import expected
from conformance.judging.repeats import AFTERWARDS, AGAIN, REORDERED, questions
from conformance.judging.result import Result
from conformance.plan import FAST_IN_WIDE, Plan
from conformance.reports.looked_at import looked_at
from conformance.runner import CaseRunner
from conformance.subjects.backend import BackendSubject, ReferenceSubject
from mha_core.backend import Backend
from mha_core.reference import pipeline as reference
from tests.conformance.running import run_all

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

ASKED = (*all_cases(), *all_sequences())

ONLY_WITH_ALL = """
    trained-first-layer trained-last-layer ragged-square no-bias no-key-bias grouped-heads multi-query valid-lens
    valid-lens-as-many-items-as-queries valid-lens-as-many-items-as-keys
    valid-lens-per-query causal causal-more-queries causal-bottom-right causal-bottom-right-more-queries
    causal-padding causal-offset-per-item window window-zero window-causal allowed allowed-per-head bias-per-head
    dropout dropout-off dot scale additive square-window square-allowed-per-head square-bias-per-head square-dot
    square-scale square-grouped square-additive square-dropout square-dropout-off square-self-attention
    square-widths square-causal-padding square-bias-excludes weights-x4 weights-x20-inputs-x3
    inputs-x0.03
    denormal-inputs scores-shifted one-loud-item one-item one-head one-query one-key head-dim-1 no-items no-queries
    views nan-in-padding nan-in-disallowed infinity-in-open-value softcap softcap-saturated softcap-additive past
    past-padded heads-given heads-given-split heads-given-short-cache additive-half-precision softcap-windowed
    causal-softcap nan-under-softcap bare-capped additive-in-training finfo-bias unscaled-by-head query-key-norm
    query-key-norm-layer query-key-norm-all query-key-norm-bare query-key-norm-half-precision rotary-interleaved
    rotary-last rotary-last-interleaved rotary-tables rotary-llama3 rotary-longrope rotary-axes
    rotary-axes-interleaved rotary-bare as-many-heads-as-queries-and-keys as-many-queries-and-keys-as-channels
    one-head-of-the-whole-width rotary-long query-key-norm-long
"""
"""The cases that the path "fast" is asked in float64 by `--all` alone; in float32 it is asked all of them."""


class Numbers(Backend):
    """The reference as a backend with a fast path."""

    name = "numbers"

    def versions(self):
        return {}

    def devices(self):
        return ("cpu",)

    def dtypes(self, device):
        return ("float64", "float32")

    def paths(self):
        return ("eager", "fast", "blocks")

    def build(self, config, weights, dtype, device, path):
        return lambda inputs: reference.run(config, weights, inputs)


NUMBERS = Numbers()
WHOLE = tuple(
    BackendSubject(NUMBERS, dtype, "cpu", path) for dtype in ("float64", "float32") for path in (None, "fast")
)


def triples(*subjects, everything=False):
    """(case, dtype, path) that a run asks."""
    plan = Plan(subjects, everything)
    return {(asked.id, one.dtype, one.path) for one in subjects for asked in plan.asked(one, ASKED)}


def test_what_is_asked_by_all_alone_is_listed():
    sequences = {one.id for one in all_sequences()}
    moved = triples(*WHOLE, everything=True) - triples(*WHOLE)
    assert {case for case, *where in moved if where == ["float64", "fast"]} - sequences == set(ONLY_WITH_ALL.split())
    of_one_path = {(one.id, "float64", None) for one in all_sequences() if one.one_path}
    assert {one for one in moved if one[1:] != ("float64", "fast")} == of_one_path
    # The path "fast" is asked sequences in the dtype in which it is asked all cases.
    assert triples(*WHOLE) - triples(*WHOLE, everything=True) == {(one, "float32", "fast") for one in sequences}


def test_every_case_is_asked_on_each_path_and_each_sequence_on_one_at_least():
    asked = triples(*WHOLE)
    for path in (None, "fast"):
        assert {case for case, dtype, one in asked if (dtype, one) == ("float32", path)} >= {c.id for c in all_cases()}
    assert {case for case, *_ in asked} == {one.id for one in ASKED}
    assert len(all_cases()) >= 100
    assert len(all_sequences()) >= 18


@pytest.mark.parametrize(
    "subjects",
    [
        (BackendSubject(NUMBERS, "float64", "cpu", "fast"), BackendSubject(NUMBERS, "float32", "cpu", "fast")),
        (BackendSubject(NUMBERS, "float64", "cpu"), BackendSubject(NUMBERS, "float64", "cpu", "fast")),
    ],
    ids=["a path that was chosen", "one dtype"],
)
def test_a_path_or_a_dtype_that_was_chosen_is_asked_every_case(subjects):
    asked = triples(*subjects)
    for one in subjects:
        assert {case for case, *where in asked if where == [one.dtype, one.path]} >= {c.id for c in all_cases()}


def test_a_layer_is_asked_again_in_its_first_dtype():
    plan = Plan(WHOLE)
    again = {(one.dtype, one.path): plan.again(one) for one in WHOLE}
    assert again == {
        ("float64", None): "in two ways",
        ("float64", "fast"): "never",
        ("float32", None): "never",
        ("float32", "fast"): "in one way",
    }
    assert {Plan(WHOLE, everything=True).again(one) for one in WHOLE} == {"in every way"}


def test_the_ways_in_which_it_is_asked_again():
    several, one_item = (
        expected(case, Precision.of("float64"))
        for case in select_asked(("prime", "one-item"))
        if isinstance(case, Case)
    )
    assert [question.call for question in questions(several)] == [AGAIN, REORDERED, AFTERWARDS]
    assert [question.call for question in questions(several, "in two ways")] == [REORDERED]
    assert [question.call for question in questions(one_item, "in two ways")] == [AGAIN]
    assert questions(several, "in one way") == questions(several, "in two ways")
    assert questions(several, "never") == ()


class Counting(ReferenceSubject):
    def __init__(self):
        self.calls = 0

    def prepare(self, config, weights):
        own = super().prepare(config, weights)

        def run(inputs):
            self.calls += 1
            return own(inputs)

        return run


@pytest.mark.parametrize(("again", "calls"), [("in every way", 9), ("in two ways", 5), ("in one way", 4), ("never", 2)])
def test_how_often_two_cases_are_asked(again, calls):
    subject = Counting()
    runner = CaseRunner(subject, again=again)
    assert [runner.run(case).status for case in select_asked(("prime", "causal"))] == ["equal", "equal"]
    assert subject.calls == calls


def test_the_line_says_what_only_all_asks():
    cases = select_asked(("prime", "causal", "sequence-mask-shapes"))
    results = [Result(case.id, one.name, one.dtype, "cpu", "equal") for one in WHOLE for case in cases]
    found = looked_at(cases, results, WHOLE, Plan(WHOLE))
    assert found.with_all == (
        "1 case on the path fast in float64",
        "sequence-mask-shapes on other paths than fast",
        "a layer asked more than twice again, or again in a second dtype",
        "a layer asked again after another case on the path fast",
    )
    assert found.line.endswith(f" Only with --all: {'; '.join(found.with_all)}.")
    assert looked_at(cases, results, WHOLE, Plan(WHOLE, everything=True)).with_all == ()
    assert {case.id for case in all_cases()} >= FAST_IN_WIDE


def test_a_run_of_the_plan_is_equal():
    cases = select_asked(("prime", "causal", "one-item"))
    results = list(run_all(cases, WHOLE[:1], everything=False))
    assert [result.status for result in results] == ["equal"] * 3
