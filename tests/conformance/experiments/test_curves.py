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
