"""Functions of the elements are found again, with the numbers in them."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.measure.read.fit import fit
from tests.conformance.measure.changes.worlds import first_found, samples_of

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

MADE = {
    "times 0.97": lambda x, s: 0.97 * x,
    "negated": lambda x, s: -x,
    "times 1 / sqrt(query_dim)": lambda x, s: x / s.config.query_dim**0.5,
    "times sqrt(head_dim / query_dim)": lambda x, s: x * (s.config.head_dim / s.config.query_dim) ** 0.5,
    "times ({0} - 1) / {0}".format("key length"): lambda x, s: x * (s.sizes.key_len - 1) / s.sizes.key_len,
    "times ln 2": lambda x, s: x * np.log(2.0),
    "without its signs": lambda x, s: np.abs(x),
    "with negative numbers replaced by 0 (ReLU)": lambda x, s: np.maximum(x, 0.0),
    "with negative numbers times 0.2": lambda x, s: np.where(x > 0.0, x, 0.2 * x),
    "squared": lambda x, s: x**2,
    "to the power of 1.3, with its signs": lambda x, s: np.sign(x) * np.abs(x) ** 1.3,
    "through tanh": lambda x, s: np.tanh(x),
    "through tanh, times 3": lambda x, s: 3.0 * np.tanh(x),
    "capped by c * tanh(x / c) with c = 1.3": lambda x, s: 1.3 * np.tanh(x / 1.3),
    "capped by c * tanh(x / c) with c = head_dim": lambda x, s: s.config.head_dim * np.tanh(x / s.config.head_dim),
    "clipped at +-0.9": lambda x, s: np.clip(x, -0.9, 0.9),
    "at most 1.1: larger numbers are replaced by it": lambda x, s: np.minimum(x, 1.1),
    "plus 0.25": lambda x, s: x + 0.25,
    "plus 1 / head_dim": lambda x, s: x + 1.0 / s.config.head_dim,
    "times 2.5, plus 0.25": lambda x, s: 2.5 * x + 0.25,
    "replaced by 0 where |x| < 0.2": lambda x, s: np.where(np.abs(x) < 0.2, 0.0, x),
    "truncated to integers": lambda x, s: np.trunc(x),
    "replaced by 0": lambda x, s: np.zeros_like(x),
}
"""Words -> what they say."""


@pytest.mark.parametrize("words", MADE)
def test_a_function_of_the_elements_is_found_again(words):
    assert first_found(MADE[words]).words == words


def test_nothing_is_found_in_a_right_array():
    assert fit(samples_of(lambda x, s: x)) == []


def test_nothing_is_found_in_an_array_that_has_nothing_to_do_with_the_expected_one():
    assert fit(samples_of(lambda x, s: np.random.default_rng(5).normal(size=x.shape))) == []


def test_places_that_were_not_measured_do_not_count():
    def made(x, s):
        array = 0.5 * x
        array[..., 1] = np.nan
        return array

    assert fit(samples_of(made))[0].words == "times 0.5"
