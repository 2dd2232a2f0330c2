"""The held-out layer is the definition without a fault, and each row differs from it."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from conformance.cases.table import all_cases
from conformance.diagnosis.observations import observe
from mha_core import STAGES, reference
from tests.conformance.heldout.layer import Layer, bfloat16
from tests.conformance.heldout.problems import fresh
from tests.conformance.heldout.rows import HeldOut, half, pair_rows, single_rows

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

PROBLEMS = [fresh(number, name="test") for number in range(150)]
RIGHT = [reference.run(one.config, one.weights, one.inputs).output for one in PROBLEMS]
SINGLES, PAIRS = single_rows(), pair_rows()
ROWS = {**SINGLES, **PAIRS}


@cache
def answers(layer):
    """The output of a layer for each of PROBLEMS; None where it can't be asked this."""
    return [
        None if layer.supports(one.config, one.inputs) else layer(one.config, one.weights, one.inputs).output()
        for one in PROBLEMS
    ]


def differ(outputs, others):
    """For each of PROBLEMS, whether there are two answers, which differ."""
    return [
        one is not None and other is not None and not np.allclose(one, other, rtol=0, atol=1e-10)
        for one, other in zip(outputs, others, strict=True)
    ]


def stages(layer, unseen):
    """What a layer makes at each stage; keys and values without the positions `unseen` (B, Lk)."""
    with np.errstate(all="ignore"):
        queries, keys, values = layer.queries(), layer.keys(), layer.values()
        scores = layer.scores(queries, layer.keys_read())
        weights = layer.weights(scores, layer.allowed())
        heads = layer.heads(layer.dropped(weights), layer.values_read())
    keys, values = (np.where(unseen[:, None, :, None], 0.0, array) for array in (keys, values))
    return queries, keys, values, scores, weights, heads, layer.output()


def first_wrong(row_layer, one):
    """The first stage of a problem at which a layer differs; scores where they are defined."""
    asked, right = (kind(one.config, one.weights, one.inputs) for kind in (row_layer, Layer))
    unseen = asked.padding() | right.padding()  # of another mask other keys are padding, which is 0
    both = zip(STAGES, stages(asked, unseen), stages(right, unseen), strict=True)
    shown = right.allowed()
    for stage, one_array, other_array in both:
        where = shown if stage == "scores" else True
        if differ([np.where(where, one_array, 0.0)], [np.where(where, other_array, 0.0)])[0]:
            return stage
    raise AssertionError("no stage differs")


def same_problems(first, second):
    return first.config == second.config and np.array_equal(first.inputs.queries, second.inputs.queries)


def test_without_a_fault_it_is_the_definition():
    for number, (output, right) in enumerate(zip(answers(Layer), RIGHT, strict=True)):
        np.testing.assert_allclose(output, right, rtol=0, atol=1e-12, err_msg=str(number))


def test_without_a_fault_it_passes_every_case():
    observations, left_out = observe(HeldOut("right", Layer), [case for case in all_cases() if not case.expensive])
    assert set(left_out) == {case.id for case in all_cases() if case.config.parts and not case.expensive}
    assert not [one.case.id for one in observations if one.mismatches]


def test_the_problems_have_every_feature():
    masks = [problem.inputs.mask for problem in PROBLEMS]
    seen = {
        "past": sum(problem.inputs.past_keys is not None for problem in PROBLEMS),
        "dropout": sum(problem.inputs.dropout_keep is not None for problem in PROBLEMS),
        "grouped": sum(problem.config.num_kv_heads < problem.config.num_heads for problem in PROBLEMS),
        "softcap": sum(problem.config.softcap is not None for problem in PROBLEMS),
        "scale": sum(problem.config.scale is not None for problem in PROBLEMS),
        "bare": sum(not problem.config.projections for problem in PROBLEMS),
        "additive": sum(problem.config.score == "additive" for problem in PROBLEMS),
        "dot": sum(problem.config.score == "dot" for problem in PROBLEMS),
        "split": sum(problem.inputs.is_split for problem in PROBLEMS),
        "window": sum(mask.window is not None for mask in masks),
        "causal": sum(mask.causal for mask in masks),
        "valid_lens": sum(mask.valid_lens is not None for mask in masks),
        "allowed": sum(mask.allowed is not None for mask in masks),
        "bias": sum(mask.bias is not None for mask in masks),
        "empty rows": sum(not problem.allowed().any(axis=-1).all() for problem in PROBLEMS),
    }
    assert min(seen.values()) >= 4, seen


def test_equal_numbers_give_equal_problems():
    assert same_problems(fresh(3), fresh(3))
    assert not any(same_problems(one, other) for one, other in pairwise([*map(fresh, range(5)), PROBLEMS[0]]))


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_each_fault_changes_some_outputs(row):
    outputs = answers(row.layer)
    assert sum(differ(outputs, RIGHT)) >= 4  # of 150: a narrow one, such as a softcap that decoding forgets, is rare
    for output, right in zip(outputs, RIGHT, strict=True):
        assert output is None or (output.shape == right.shape and output.dtype == np.float64)


@pytest.mark.parametrize("row", SINGLES.values(), ids=list(SINGLES))
def test_the_first_stage_that_differs_is_one_that_the_row_names(row):
    wrong = [one for one, is_wrong in zip(PROBLEMS, differ(answers(row.layer), RIGHT), strict=True) if is_wrong]
    found = {first_wrong(row.layer, one) for one in wrong[:30]}  # more tell nothing new
    assert min(found, key=STAGES.index) in row.stages


@pytest.mark.parametrize("row", PAIRS.values(), ids=list(PAIRS))
def test_each_pair_has_both_faults_at_once(row):
    one, other = (answers(SINGLES[id].layer) for id in row.id.split(" + "))
    outputs = answers(row.layer)
    assert any(map(all, zip(differ(outputs, one), differ(outputs, other), differ(one, RIGHT), strict=True)))


def test_no_two_rows_are_the_same_layer():
    said = {}
    for row in ROWS.values():
        key = tuple(None if one is None else round(float(np.nansum(one)), 8) for one in answers(row.layer))
        assert said.setdefault(key, row.id) == row.id


def test_rows_say_what_is_wrong_and_where_it_was_seen():
    for row in ROWS.values():
        assert row.wrong.endswith(".")
        assert row.source
        assert row.stages
        assert set(row.stages) <= set(STAGES)


def test_there_are_enough_rows_in_both_halves():
    for rows, least in ((SINGLES, 140), (PAIRS, 14)):
        assert len(rows) >= least
        assert sorted([*half(rows, "open"), *half(rows, "hidden")]) == sorted(rows) == sorted(half(rows, "all"))
        assert min(len(half(rows, "open")), len(half(rows, "hidden"))) >= least // 3


def test_bfloat16_is_the_nearest_of_eight_bits():
    import ml_dtypes

    numbers = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-5, 5).repeat(100)
    right = numbers.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    np.testing.assert_array_equal(bfloat16(numbers), right)
