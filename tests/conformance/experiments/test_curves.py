"""A function of one step's numbers is found at steps that no reading shows alone, with its number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.experiments.candidates.elementwise.bench import INSIDE, NAMES, Bench
from conformance.experiments.candidates.elementwise.curves import fitted_curves
from conformance.experiments.candidates.elementwise.shown import parts_shown
from conformance.experiments.designs import CONFIGS, NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.linear import least_squares, pseudo_inverse
from conformance.experiments.view import View
from conformance.zoo.bug import BuggySubject
from conformance.zoo.variants import Variants
from mha_core.reference.forward import FORWARD
from tests.conformance.experiments.wrong import OutputAlone, wrong_at

pytestmark = pytest.mark.same_on_newest  # it computes in NumPy alone


def squashed_inside(state, hidden):
    return None if hidden is None else np.tanh(0.7 * np.arctanh(hidden))


WRONG = {
    "kept_weights-f-cap-tanh-3": ("kept_weights", lambda state, x: 3.0 * np.tanh(x / 3.0)),
    "kept_weights-f-zero-where-small-0.13": ("kept_weights", lambda state, x: np.where(np.abs(x) < 0.13, 0.0, x)),
    "value_inputs-f-zero-where-small-0.05": ("value_inputs", lambda state, x: np.where(np.abs(x) < 0.05, 0.0, x)),
    "unscaled-f-clipped-at-0.7": ("unscaled", lambda state, x: x.clip(-0.7, 0.7)),
    "unscaled-f-sin": ("unscaled", lambda state, x: np.sin(x)),
    "new_keys-f-power-1.7": ("new_keys", lambda state, x: np.sign(x) * np.abs(x) ** 1.7),
    "queries-f-negative-times-0.3": ("queries", lambda state, x: np.where(x < 0.0, 0.3 * x, x)),
    "query_inputs-f-shrunk-by-0.25": ("query_inputs", lambda s, x: np.sign(x) * np.maximum(np.abs(x) - 0.25, 0.0)),
    "inside-f-times-0.7": ("additive_hidden", squashed_inside),
}


def problems(config):
    shape = (1, config.num_heads, 3, 7)
    for seed, scale in ((0, None), (1, 0.8)):
        keep = np.random.default_rng(seed).random(shape) > 0.3
        one = replace(config, dropout=0.3, scale=scale)
        yield generic(one, seed=seed, key_len=7, weights=NO_BIASES, dropout_keep=keep)
    yield generic(replace(config, score="additive"), key_len=7)


@pytest.mark.parametrize("name", WRONG)
def test_a_function_is_found_with_its_number(name):
    bug = wrong_at(*WRONG[name])
    lab = Lab(OutputAlone(bug))
    view = View(lab, Variants(), (), tuple(problems(CONFIGS[0])))
    found = [one.bug() for one in fitted_curves([Bench(view, problem) for problem in view.differing()])]
    assert f"measured:{name}" in [one.id for one in found]
    model = BuggySubject(found[[one.id for one in found].index(f"measured:{name}")])
    for problem in problems(CONFIGS[4]):
        made, wanted = (
            one.prepare(problem.config, problem.weights)(problem.inputs).output for one in (model, lab.subject)
        )
        np.testing.assert_allclose(made, wanted, rtol=1e-6, atol=1e-7)


PARTS = {
    "similarity-clipped-at-0.4-at-key-odd": (
        "similarity",
        lambda state, x: np.where(np.arange(x.shape[-1]) % 2 == 1, x.clip(-0.4, 0.4), x),
    ),
    "unscaled-cap-tanh-1.5-at-head-last": (
        "unscaled",
        lambda state, x: np.where((np.arange(x.shape[1]) == x.shape[1] - 1)[:, None, None], 1.5 * np.tanh(x / 1.5), x),
    ),
    "values-zero-where-small-0.06-at-key-odd": (
        "values",
        lambda state, x: np.where((np.arange(x.shape[2]) % 2 == 1)[:, None] & (np.abs(x) < 0.06), 0.0, x),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_function_of_a_part_is_read_off(name):
    view = View(Lab(OutputAlone(wrong_at(*PARTS[name]))), Variants(), (), ())
    assert f"measured:{name}" in [bug.id for bug in parts_shown(view)]


def test_every_step_with_numbers_has_a_name():
    # The projections are queries, keys and values before they are split: the same numbers.
    assert set(NAMES) - {INSIDE} == set(FORWARD) - {"allowed", "padding", "q_proj", "k_proj", "v_proj"}


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
    if np.isnan(wrong):
        with pytest.raises(np.linalg.LinAlgError):
            pseudo_inverse(several)
    else:
        np.testing.assert_array_equal(pseudo_inverse(several), np.zeros((2, 5)))
    assert capfd.readouterr() == ("", "")


def test_finite_numbers_give_what_numpy_gives():
    np.testing.assert_array_equal(
        least_squares(A, A @ [1.0, 2.0, 3.0])[0], np.linalg.lstsq(A, A @ [1.0, 2.0, 3.0], None)[0]
    )
    np.testing.assert_array_equal(pseudo_inverse(A), np.linalg.pinv(A))
