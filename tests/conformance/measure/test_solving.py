"""The array at any place is solved for from outputs, and what was done to it is fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.measure.asker import Asker
from conformance.measure.designs import CONFIGS, NO_BIASES, generic
from conformance.measure.evidence import Evidence
from conformance.measure.faults import unwarned
from conformance.measure.places import PLACES
from conformance.measure.propose.steps import at_places
from conformance.measure.read.descent import least_squares
from conformance.measure.read.solve import samples_of, solved
from conformance.zoo.rerun import noted_run
from conformance.zoo.variants import Variants
from tests.conformance.measure.wrong import OutputAlone, same_on, wrong_at

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


def evidence_of(*wrong, problems=()):
    return Evidence(Asker(OutputAlone(*wrong)), Variants(), (), tuple(problems))


# What is solved for -------------------------------------------------------------------------------------

SOLVED = (
    *("output", "merged", "heads", "kept_weights", "weights", "values", "value_inputs", "values read"),
    *("scores", "similarity", "keys", "keys read", "queries"),
)


@pytest.mark.parametrize("name", SOLVED)
@pytest.mark.parametrize("config", CONFIGS[:2])
def test_the_array_of_a_wrong_layer_is_the_one_that_it_has(name, config):
    step, gauge = name.split()[0], PLACES[name].gauge
    problem = generic(config, query_len=7, key_len=6)
    bug = wrong_at(step, lambda state, x: 1.3 * x + 0.2 * np.sin(x))
    measured, own = solved(evidence_of(bug), problem, PLACES[name])
    state, _ = noted_run(problem.config, problem.weights, problem.inputs)
    right = state.heads_of(step) if name.endswith("read") else state[step]
    wrong = 1.3 * right + 0.2 * np.sin(right)
    np.testing.assert_array_equal(own, right)
    if gauge is not None:  # a number that is the same along this axis changes no output
        measured, wrong = (array - array.mean(axis=gauge, keepdims=True) for array in (measured, wrong))
    known = ~np.isnan(measured)
    assert known.all() or name == "value_inputs"  # more channels go in than come out
    np.testing.assert_allclose(measured[known], wrong[known], atol=1e-7)


@pytest.mark.parametrize("name", ["q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight", "q_proj.bias"])
def test_a_parameter_is_solved_for(name):
    problem = generic(CONFIGS[0], query_len=7, key_len=6)
    (sample,) = samples_of(evidence_of(), [problem], PLACES[name])
    np.testing.assert_allclose(sample.measured, problem.weights[name], atol=1e-7)


def test_a_number_of_the_layer_is_solved_for():
    config = replace(CONFIGS[0], softcap=0.9, scale=0.7)
    bug = wrong_at("capped", lambda s, x: x if s.config.softcap is None else 1.4 * np.tanh(s["similarity"] / 1.4))
    measured, own = solved(evidence_of(bug), generic(config, query_len=4, key_len=6), PLACES["softcap"])
    np.testing.assert_allclose((measured[0], own[0]), (1.4, 0.9), atol=1e-8)


def test_what_is_no_array_of_a_place_is_not_solved_for():
    mixed = wrong_at("output", lambda state, x: x + 0.3 * np.roll(x, 1, axis=1))
    problem = generic(CONFIGS[0], query_len=7, key_len=6)
    assert solved(evidence_of(mixed), problem, PLACES["queries"]) is None
    assert solved(evidence_of(mixed), problem, PLACES["output"]) is not None


# What is fitted to it -----------------------------------------------------------------------------------

WRONG = {
    "kept_weights: 3 tanh(x / 3)": ("kept_weights", lambda state, x: 3.0 * np.tanh(x / 3.0)),
    "kept_weights: small 0": ("kept_weights", lambda state, x: np.where(np.abs(x) < 0.13, 0.0, x)),
    "value_inputs: small 0": ("value_inputs", lambda state, x: np.where(np.abs(x) < 0.05, 0.0, x)),
    "values: power": ("values", lambda state, x: np.sign(x) * np.abs(x) ** 1.7),
    "queries: leaky": ("queries", lambda state, x: np.where(x < 0.0, 0.3 * x, x)),
    "query_inputs: shrunk": ("query_inputs", lambda s, x: np.sign(x) * np.maximum(np.abs(x) - 0.25, 0.0)),
}


def problems(config):
    shape = (1, config.num_heads, 6, 7)
    for seed, scale in ((0, None), (1, 0.8)):
        keep = np.random.default_rng(seed).random(shape) > 0.3
        one = replace(config, dropout=0.3, scale=scale)
        yield generic(one, seed=seed, query_len=6, key_len=7, weights=NO_BIASES, dropout_keep=keep)
    yield generic(config, query_len=7, key_len=5)


@pytest.mark.parametrize("name", WRONG)
def test_a_function_is_found_with_its_number(name):
    bug = wrong_at(*WRONG[name])
    evidence = evidence_of(bug, problems=problems(CONFIGS[4]))
    with unwarned():
        found = list(at_places(evidence, evidence.problems, [name.split(":")[0]]))
    assert any(same_on(problems(CONFIGS[0]), (bug,), (one,)) for one in found), [one.id for one in found]


PARTS = {
    "odd keys clipped": ("similarity", lambda s, x: np.where(np.arange(x.shape[-1]) % 2 == 1, x.clip(-0.4, 0.4), x)),
    "the last head capped": (
        "similarity",
        lambda state, x: np.where((np.arange(x.shape[1]) == x.shape[1] - 1)[:, None, None], 1.5 * np.tanh(x / 1.5), x),
    ),
    "small values of odd keys 0": (
        "values",
        lambda state, x: np.where((np.arange(x.shape[2]) % 2 == 1)[:, None] & (np.abs(x) < 0.06), 0.0, x),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_function_of_a_part_is_read_off(name):
    step, wrong = PARTS[name]
    calls = [
        generic(config, seed=seed, query_len=11, key_len=9, weights=NO_BIASES)
        for config in CONFIGS[:4]
        for seed in range(3)
    ]
    if step != "values":  # of key 0 the score is 0, whatever is done to it
        calls = [
            replace(one, inputs=replace(one.inputs, keys=one.inputs.keys * (np.arange(9) > 0)[:, None]))
            for one in calls
        ]
    bug, fresh = wrong_at(step, wrong), [generic(config, query_len=5, key_len=7) for config in CONFIGS[:3]]
    with unwarned():
        found = list(at_places(evidence_of(bug), calls, [step]))
    assert any(same_on(fresh, (bug,), (one,)) for one in found), [one.id for one in found]


# Least squares of what is not finite: what NumPy gives, and nothing printed by LAPACK ----------------------------

A = np.random.default_rng(0).normal(size=(5, 3))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_nothing_is_printed_of_what_is_not_finite(wrong, capfd):
    one, several = A[:, 0].copy(), A[:, :2].copy()
    one[2], several[2, 1] = wrong, wrong
    assert np.isnan(least_squares(A, one)[0]).all()
    found, rank = least_squares(A, several)
    assert rank == 3
    np.testing.assert_allclose(found[:, 0], [1.0, 0.0, 0.0], atol=1e-12)
    assert np.isnan(found[:, 1]).all()
    with pytest.raises(np.linalg.LinAlgError):
        least_squares(several, A[:, 0])
    assert capfd.readouterr() == ("", "")


def test_finite_numbers_give_what_numpy_gives():
    np.testing.assert_array_equal(
        least_squares(A, A @ [1.0, 2.0, 3.0])[0], np.linalg.lstsq(A, A @ [1.0, 2.0, 3.0], None)[0]
    )
