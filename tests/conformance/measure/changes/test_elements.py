"""Roundings, and factors and summands that depend on an index, are found again."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.measure.read.fit import fit
from conformance.zoo.bug import DoesNotApply
from tests.conformance.measure.changes.worlds import first_found, samples_of

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def index(x, axis):
    shape = [1] * x.ndim
    shape[axis] = -1
    return np.arange(x.shape[axis]).reshape(shape)


def int8(x, axis):
    scale = np.abs(x).max(axis=axis, keepdims=True) / 127
    return np.round(x / scale) * scale


MADE = {
    "rounded to 24 significant bits (float32)": lambda x, s: x.astype(np.float32),
    "rounded to 11 significant bits (float16 (or TF32))": lambda x, s: x.astype(np.float16),
    "rounded to multiples of 0.0625": lambda x, s: np.round(x * 16) / 16,
    "rounded down to multiples of 0.05": lambda x, s: np.floor(x / 0.05) * 0.05,
    "rounded to multiples of 0.001": lambda x, s: np.round(x, 3),
    "rounded to multiples of 1/255": lambda x, s: np.round(x * 255) / 255,
    "rounded to 8-bit integers scaled by the largest of the whole array": lambda x, s: int8(x, None),
    "rounded to 8-bit integers scaled by the largest of the key axis": lambda x, s: int8(x, -1),
    "plus 0.1 * (key index - query index)": lambda x, s: x + 0.1 * (index(x, 3) - index(x, 2)),
    "plus -0.25 * |key index - query index|": lambda x, s: x - 0.25 * np.abs(index(x, 3) - index(x, 2)),
    "times 0.9^head index": lambda x, s: x * 0.9 ** index(x, 1),
    "times 1 / (key index + 1)": lambda x, s: x / (index(x, 3) + 1),
    "plus 0.1 * head index": lambda x, s: x + 0.1 * index(x, 1),
    "times 1 + 0.2 * query index": lambda x, s: x * (1 + 0.2 * index(x, 2)),
    "plus 2^(-8 (head index + 1) / n)": lambda x, s: x + 2.0 ** (-8.0 * (index(x, 1) + 1) / x.shape[1]),
}


@pytest.mark.parametrize("words", MADE)
def test_a_change_of_the_elements_is_found_again(words):
    assert first_found(MADE[words]).words == words


def test_factors_without_a_rule_are_said_for_the_indices_that_were_seen():
    factors = np.array([0.3, 0.8, 1.2, 0.7, 0.1, 0.6])
    samples = samples_of(lambda x, s: x * factors[: x.shape[1]].reshape(1, -1, 1, 1))
    (found,) = fit(samples)
    assert found.words == "times 0.3, 0.8, 1.2, 0.7, 0.1, 0.6 for each head in turn"
    with pytest.raises(DoesNotApply):
        found.apply(np.zeros((1, 7, 2, 2)), samples[0].axes, samples[0].setting)
