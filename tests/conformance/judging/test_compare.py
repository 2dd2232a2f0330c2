"""The comparison and the tolerances: each check has something that must fail it."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.bounds.precision import Precision
from conformance.cases.table import select
from conformance.judging.compare import ParityError, compare, in_float64, is_allowed
from conformance.judging.distance import worst
from conformance.judging.expected import answer
from mha_core import STAGES, Trace
from mha_core.reference import pipeline as reference


@pytest.fixture(scope="module")
def problem():
    return select(("ragged-square",))[0].build()


@pytest.fixture(scope="module")
def expected(problem):
    return reference.run(problem.config, problem.weights, problem.inputs)


def judge(problem, expected, actual, dtype="float64"):
    wanted = answer(problem, Precision.of(dtype))
    np.testing.assert_array_equal(wanted.trace.output, expected.output)
    differing = {mismatch.stage for mismatch in wanted.judge(actual, dtype)[1]}
    for name, array in actual.arrays().items():  # one array alone is judged in a shorter way
        assert wanted.allows(name, array, dtype) == (name not in differing), name
    return compare(actual, wanted.trace, wanted.allowed_error, wanted.where, dtype)


def nudged(trace, name, index, factor):
    """`trace` with one element of one stage moved by a factor of itself."""
    array = getattr(trace, name).copy()
    array[index] *= 1.0 + factor
    return replace(trace, **{name: array})


def test_the_reference_equals_itself(problem, expected):
    ratios = judge(problem, expected, expected)
    assert set(ratios) == {*STAGES, *(f"gradients.{name}" for name in expected.gradients)}
    assert set(ratios.values()) == {0.0}


@pytest.mark.parametrize("name", [stage for stage in STAGES if stage != "scores"])
def test_one_wrong_element_is_found(problem, expected, name):
    index = tuple(
        int(i) for i in np.unravel_index(np.abs(getattr(expected, name)).argmax(), getattr(expected, name).shape)
    )
    with pytest.raises(
        ParityError, match=rf"{name} differs in 1 of .* worst at \[{', '.join(map(str, index))}\]: got"
    ) as error:
        judge(problem, expected, nudged(expected, name, index, 1e-11))
    (mismatch,) = error.value.mismatches
    assert (mismatch.stage, mismatch.index, mismatch.wrong) == (name, index, 1)
    assert mismatch.error > mismatch.allowed
    assert error.value.ratios[name] > 1.0


def test_scores_count_only_where_attention_is_allowed(problem, expected):
    allowed = problem.allowed()
    excluded, open_ = np.argwhere(~allowed)[0], np.argwhere(allowed)[0]
    judge(problem, expected, nudged(expected, "scores", tuple(excluded), 5.0))
    with pytest.raises(ParityError, match="scores differs in 1 of"):
        judge(problem, expected, nudged(expected, "scores", tuple(open_), 1e-9))


def test_what_is_defined_exactly_must_be_exact(problem, expected):
    """An excluded weight of 1e-300, or a wrong last bit in an empty row, is a difference."""
    for name, index in (("weights", (1, 0, 0, 6)), ("heads", (0, 1, 2, 3)), ("output", (0, 1, 2))):
        array = getattr(expected, name).copy()
        array[index] = np.nextafter(array[index], 1.0)
        with pytest.raises(ParityError, match=f"{name} differs in 1 of .* allowed 0"):
            judge(problem, expected, replace(expected, **{name: array}))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_are_never_close(problem, expected, value):
    output = expected.output.copy()
    output[3, 2, 1] = value
    with pytest.raises(ParityError, match=rf"worst at \[3, 2, 1\]: got {value}"):
        judge(problem, expected, replace(expected, output=output))


@pytest.mark.parametrize("wanted_there", [(), (np.nan, np.inf, -np.inf)])
def test_one_array_is_judged_alone_as_beside_others_up_to_the_last_bit(wanted_there):
    rng = np.random.default_rng(4)
    wanted, allowed = np.exp(rng.normal(size=200)), np.exp(rng.normal(size=200) - 30.0)
    wanted[100:] = 0.0  # the error is then the number itself
    wanted[: len(wanted_there)], allowed[-4:] = wanted_there, (np.inf, 0.0, 5e-324, 1e-310)
    judged = []
    for place, other in np.ndindex(200, 6):
        made, bound = wanted.copy(), wanted[place] + allowed[place]
        made[9] = np.nextafter(made[9], np.inf)  # which is within the bound, and not the same bits
        made[place] = (bound, np.nextafter(bound, np.inf), np.nextafter(bound, 0.0), np.inf, -np.inf, np.nan)[other]
        found = is_allowed("output", made, wanted, {"output": allowed}, np.array(True), "float64")
        assert found == (worst(made, wanted, allowed).ratio <= 1.0), (place, other)
        judged.append(found)
    assert 300 < sum(judged) < 900


def test_expected_nan_must_be_there():
    problem = select(("nan-in-open-key",))[0].build()
    expected = reference.run(problem.config, problem.weights, problem.inputs)
    judge(problem, expected, expected)
    with pytest.raises(ParityError, match="expected nan"):
        judge(problem, expected, replace(expected, output=np.nan_to_num(expected.output)))


def test_shapes_dtypes_and_missing_gradients(problem, expected):
    with pytest.raises(ParityError, match=r"heads has shape \(5, 3, 7\); it must be \(5, 3, 7, 13\)"):
        judge(problem, expected, replace(expected, heads=expected.heads[..., 0]))
    with pytest.raises(ParityError, match="output is float32; a run in float64 must give float64"):
        judge(problem, expected, replace(expected, output=expected.output.astype(np.float32)))
    fewer = {name: array for name, array in expected.gradients.items() if name != "k_proj.weight"}
    with pytest.raises(ParityError, match=r"gradients.k_proj.weight is missing"):
        judge(problem, expected, replace(expected, gradients=fewer))


def test_float64_of_a_users_own_code_is_judged_by_its_numbers_and_nobody_elses(problem):
    wanted = answer(problem, Precision.of("float32"))
    given = wanted.trace
    assert in_float64(given, "float32") == tuple(given.arrays())
    assert in_float64(given, "float64") == ()
    ratios, wrong = wanted.judge(given, "float32", own=True)
    assert (wrong, {*ratios.values()}) == ((), {0.0})
    assert {one.stage for one in wanted.judge(given, "float32")[1]} == {*given.arrays()}
    other = replace(given, output=given.output + np.where(np.arange(given.output.shape[-1]) == 3, 1e-2, 0.0))
    (wrong,) = wanted.judge(other, "float32", own=True)[1]
    assert (wrong.stage, wrong.index[-1]) == ("output", 3)
    narrow = replace(given, output=given.output.astype(np.float16))
    assert "output is float16" in wanted.judge(narrow, "float32", own=True)[1][0].message


def test_every_offender_is_listed(problem, expected):
    wrong = replace(expected, queries=expected.queries + 1.0, output=expected.output + 1.0)
    with pytest.raises(ParityError) as error:
        judge(problem, expected, wrong)
    assert [mismatch.stage for mismatch in error.value.mismatches] == ["queries", "output"]


def test_an_output_alone_is_judged(problem, expected):
    assert set(judge(problem, expected, Trace(output=expected.output))) == {"output"}


def test_float64_is_tight(problem, expected):
    """1e-12 relative or better on data of order 1 in each stage; gradients, which pass through all, 2.5e-12."""
    allowed = answer(problem, Precision.of("float64")).allowed_error
    for stage in STAGES:
        size = np.abs(
            np.where(problem.allowed(), expected.scores, 0) if stage == "scores" else getattr(expected, stage)
        )
        assert allowed[stage].max() <= 1e-12 * max(1.0, size.max()), stage
    for name in expected.gradients:
        # A key's bias moves no weight: its gradient is 0, a sum of numbers of the size of its weight's gradient.
        size = np.abs(expected.gradients[name.replace(".bias", ".weight")])
        assert allowed[f"gradients.{name}"].max() <= 2.5e-12 * size.max(), name


def test_a_float32_softmax_inside_a_float64_path_is_found(problem, expected):
    weights = expected.weights.astype(np.float32).astype(np.float64)
    with pytest.raises(ParityError, match="weights differs"):
        judge(problem, expected, replace(expected, weights=weights))
