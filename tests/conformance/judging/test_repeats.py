"""A subject that is right when it is asked once, and not when it is asked again."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.bounds.precision import Precision
from conformance.cases.table import all_cases, select
from conformance.judging.expected import expected
from conformance.judging.repeats import AFTERWARDS, AGAIN, REORDERED
from conformance.reports.text import failure_text, gradient_lines, repeat_lines, verdict
from conformance.runner import run_case
from conformance.subjects.backend import ReferenceSubject
from conformance.subjects.items import take_items
from mha_core import Trace
from mha_core.reference import pipeline as reference
from tests.conformance.running import run_all

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

PRIME = select(("prime",))[0]
CASES = select(("prime", "causal", "past", "bias-per-head"))


class Adding(ReferenceSubject):
    """Gradients add up from call to call, as they do where nobody sets them to zero."""

    def prepare(self, config, weights):
        total = {}

        def run(inputs):
            trace = reference.run(config, weights, inputs)
            for name, gradient in trace.gradients.items():
                total[name] = total.get(name, 0.0) + gradient
            return replace(trace, gradients=dict(total))

        return run


class Caching(ReferenceSubject):
    """The answer is kept by the shape of the queries."""

    def prepare(self, config, weights):
        known = {}
        return lambda inputs: known.setdefault(inputs.queries.shape, reference.run(config, weights, inputs))


class Mixing(ReferenceSubject):
    """Whatever is asked, item 0 is given the largest queries' place: right only in the order first seen."""

    def prepare(self, config, weights):
        first = []

        def run(inputs):
            trace = reference.run(config, weights, inputs)
            first.append(inputs.queries[0])
            right = np.array_equal(first[0], inputs.queries[0])
            return trace if right else replace(trace, output=trace.output[::-1] + 0.25)

        return run


class Shared(ReferenceSubject):
    """The weights of the layer prepared last serve all layers."""

    weights = None

    def prepare(self, config, weights):
        Shared.weights = (config, weights)

        def run(inputs):
            last, own = Shared.weights
            same = last == config and all(np.array_equal(own[name], weights[name]) for name in weights)
            trace = reference.run(config, weights, inputs)
            return trace if same else replace(trace, output=trace.output + 1.0)

        return run


class FailingLater(ReferenceSubject):
    def prepare(self, config, weights):
        calls = []

        def run(inputs):
            calls.append(1)
            if len(calls) > 1:
                raise RuntimeError("used up")
            return reference.run(config, weights, inputs)

        return run


@pytest.mark.parametrize(
    ("subject", "call", "stage"),
    [
        (Adding(), AGAIN, "gradients.queries"),
        (Caching(), REORDERED, "queries"),
        (Mixing(), REORDERED, "output"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ReferenceSubject) else None,
)
def test_what_changes_from_call_to_call_is_found(subject, call, stage):
    result = run_case(PRIME, subject)
    assert result.status == "different"
    assert not result.wrong_at_once
    assert (result.mismatches[0].call, result.mismatches[0].stage) == (call, stage)
    assert max(result.ratios.values()) <= 1.0  # of the first call
    text = failure_text(result)
    assert "right at first, different when asked again" in text
    assert f"  {call}, {stage} differs in " in text
    assert "keeps something from one call to the next" in repeat_lines([result])[0]


def test_what_another_layer_changes_is_found():
    results = list(run_all(CASES, [Shared()]))
    assert [result.status for result in results] == ["equal", "different", "different", "different"]
    assert results[1].mismatches[0].message.startswith("case prime asked again after this one, output differs in")


def test_a_second_answer_may_not_fail():
    result = run_case(PRIME, FailingLater())
    assert (result.status, result.message) == ("failed", f"{AGAIN}: RuntimeError: used up")


def test_an_answer_over_its_bound_at_first_is_told_as_before():
    class Wrong(ReferenceSubject):
        def prepare(self, config, weights):
            return lambda inputs: Trace(output=reference.run(config, weights, inputs).output + 1.0)

    result = run_case(PRIME, Wrong())
    assert [mismatch.call for mismatch in result.mismatches] == [""]
    assert result.wrong_at_once


def test_the_order_of_items_is_that_of_every_array():
    for case in all_cases():
        problem = expected(case, Precision.of("float64")).problem
        batch = problem.inputs.queries.shape[0]
        if batch > 1 and not case.expensive:
            order = np.roll(np.arange(batch), 1)
            run = reference.run(problem.config, problem.weights, take_items(problem.inputs, order))
            own = reference.run(problem.config, problem.weights, problem.inputs)
            np.testing.assert_allclose(run.output, own.output[order], rtol=1e-9, atol=1e-9, equal_nan=True)
    assert AFTERWARDS  # the third time is seen by whoever is right in the first two


# Gradients -----------------------------------------------------------------------------------------------------


class Doubling(ReferenceSubject):
    """One gradient is twice what it should be."""

    def __init__(self, name, dtype):
        self.doubled, self.dtype, self.precision = name, dtype, Precision.of(dtype)

    def over(self, case):
        wanted = expected(case, self.precision)
        gradient = (wanted.trace.gradients or {}).get(self.doubled)
        if gradient is None:
            return False
        with np.errstate(invalid="ignore"):  # NaN and infinity stay what they are when they are doubled
            return bool((np.abs(gradient) > wanted.allowed_error[f"gradients.{self.doubled}"]).any())


NAMES = sorted({name for case in all_cases() for name in expected(case, Precision.of("float64")).trace.gradients or ()})


@pytest.mark.nightly("every gradient is judged", every=2)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_gradient_is_judged_where_doubling_it_shows(dtype):
    assert {"past_keys", "past_values", "bias", "score.vector", "k_proj.bias"} <= set(NAMES)
    cases = [case for case in all_cases() if not case.expensive]
    unseen = [name for name in NAMES if not any(Doubling(name, dtype).over(case) for case in cases)]
    assert unseen == []


@pytest.mark.parametrize("name", ["past_keys", "past_values", "bias", "queries", "v_proj.weight"])
def test_a_gradient_that_is_left_out_is_missed(name):
    class Without(ReferenceSubject):
        def prepare(self, config, weights):
            def run(inputs):
                trace = reference.run(config, weights, inputs)
                return replace(trace, gradients={key: a for key, a in trace.gradients.items() if key != name})

            return run

    messages = [mismatch.message for result in run_all(CASES, [Without()]) for mismatch in result.mismatches]
    assert f"gradients.{name} is missing" in messages


def test_gradients_that_are_there_in_some_cases_alone_are_told():
    class Sometimes(ReferenceSubject):
        def prepare(self, config, weights):
            def run(inputs):
                trace = reference.run(config, weights, inputs)
                return trace if inputs.past_keys is None else replace(trace, gradients=None)

            return run

    results = list(run_all(CASES, [Sometimes()]))
    assert gradient_lines(results) == ["reference float64 shows gradients in 3 of 4 cases, and none in: past"]
    assert gradient_lines(list(run_all(CASES, [ReferenceSubject()]))) == []
    assert verdict(results).startswith("All 4 results are equal")
