"""What a subject's function is given, and what it can't be told."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from conformance.bounds.precision import Precision
from conformance.cases.table import all_cases, select
from conformance.judging.expected import expected
from conformance.runner import run_case
from conformance.subjects.ask import SubjectFailed, ask
from conformance.subjects.function import known_options
from conformance.subjects.load import subject_from_function
from mha_core.call.masks import allowed_keys, padding_keys
from tests.conformance.subjects.own_layer import PRIME, judge


def test_options_are_what_they_say():
    seen = {}

    def f(weights, queries, keys, values, mask, **options):
        seen.update(options, mask=mask, weights=weights)
        return np.zeros((*queries.shape[:2], options["config"].output_dim))

    case = select(("every-source",))[0]
    problem = expected(case, Precision.of("float64")).problem
    ask(subject_from_function(f), problem)
    assert set(seen) == {*known_options(), "mask", "weights"}
    sizes = problem.inputs.check(problem.config)
    np.testing.assert_array_equal(seen["mask"], allowed_keys(problem.inputs.mask, sizes, problem.config.num_heads))
    np.testing.assert_array_equal(seen["padding"], padding_keys(problem.inputs.mask, sizes))
    given, bias = problem.inputs.mask.bias, seen["bias"]
    assert bias.shape == given.shape
    np.testing.assert_array_equal(bias, np.where(np.isneginf(given), 0.0, given))
    np.testing.assert_array_equal(seen["cotangent"], problem.inputs.cotangent)
    config = problem.config
    assert (seen["num_heads"], seen["num_kv_heads"], seen["scale"]) == (3, 3, config.head_dim**-0.5)
    assert (seen["dropout_keep"], seen["dropout"], seen["dtype"], seen["config"]) == (None, 0.0, "float64", config)
    assert seen["weights"]["q_proj.weight"].flags.writeable


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_tables_of_rotary_positions_are_given_in_the_dtype_of_the_run(dtype):
    seen = []

    def f(weights, queries, keys, values, mask, *, rotary, config):
        seen.extend(table.dtype.name for table in (*rotary.queries, *rotary.keys, queries))
        return queries

    with suppress(SubjectFailed):
        ask(subject_from_function(f, dtype=dtype), expected(*select(("rotary",)), Precision.of(dtype)).problem)
    assert seen == [dtype] * 5


LACKING = {
    "prime": "several heads (the function has no parameter num_heads or config)",
    "grouped-heads": "several heads (the function has no parameter num_heads or config); "
    "grouped heads (the function has no parameter num_kv_heads or config)",
    "scale": "several heads (the function has no parameter num_heads or config)",
    "dot": "score without scale (the function has no parameter scale or config)",
    "additive": "additive score (the function has no parameter config)",
    "bias-per-head": "additive bias (the function has no parameter bias)",
    "dropout": "dropout mask (the function has no parameter dropout_keep); "
    "dropout rate (the function has no parameter dropout or config)",
    "one-head": "",
}


@pytest.mark.parametrize("case", LACKING)
def test_what_no_parameter_can_tell_is_listed_with_its_reason(case):
    def f(weights, queries, keys, values, mask):
        raise AssertionError("not to be called")

    result = run_case(select((case,))[0], subject_from_function(f))
    if LACKING[case]:
        assert result.status == "unsupported"
        assert result.message.startswith("cannot express: ")
        assert LACKING[case] in result.message
        assert result.judged == ()
    else:
        assert (result.status, result.message) == ("failed", "AssertionError: not to be called")


def test_a_function_that_takes_all_options_expresses_all_cases():
    subject = subject_from_function(lambda weights, queries, keys, values, mask, **options: None)
    for case in all_cases():
        problem = expected(case, Precision.of("float64")).problem
        assert subject.supports(problem.config, problem.inputs) is None


def test_minus_infinity_alone_is_no_additive_bias():
    problem = expected(select(("bias-excludes",))[0], Precision.of("float64")).problem
    excluding = np.where(np.isneginf(problem.inputs.mask.bias), -np.inf, 0.0)
    inputs = replace(problem.inputs, mask=replace(problem.inputs.mask, bias=excluding))
    subject = subject_from_function(lambda weights, queries, keys, values, mask, *, num_heads: None)
    assert "additive bias" in str(subject.supports(problem.config, problem.inputs))
    assert subject.supports(problem.config, inputs) is None


def test_a_subject_can_say_what_it_cannot_express(module):
    declared = judge("class subject(Right):\n    def supports(self, config, inputs): return 'windows'", module)
    assert (declared.status, declared.message) == ("unsupported", "cannot express: windows")
    raised = judge(
        "from conformance.subjects.load import CannotExpress\n"
        "def subject(weights, queries, keys, values, mask, *, config):\n    raise CannotExpress('windows')",
        module,
    )
    assert (raised.status, raised.message) == ("unsupported", "cannot express: windows")
    own = subject_from_function(
        lambda weights, queries, keys, values, mask, *, config: None,
        supports=lambda config, inputs: "prime sizes" if config.num_heads == 3 else None,
    )
    assert run_case(PRIME, own).message == "cannot express: prime sizes"
