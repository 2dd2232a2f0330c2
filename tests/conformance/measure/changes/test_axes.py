"""Orders of an axis are found again, by a rule that holds at lengths that were not seen."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.measure.read.fit import fit
from conformance.zoo.bug import DoesNotApply
from tests.conformance.measure.changes.worlds import first_found, samples_of

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def on(axis, order):
    """The array with index order(n) at each place of an axis."""
    return lambda x, s: np.take(x, order(x.shape[axis]), axis=axis)


def moved(n, a, b):
    order = np.arange(n)
    order[[a, b]] = order[[b, a]]
    return order


MADE = {
    "with its key axis in reverse order": on(3, lambda n: np.arange(n)[::-1]),
    "with its key axis rolled by -4": on(3, lambda n: np.roll(np.arange(n), -4)),
    "with its head axis with 0 and 1 exchanged": on(1, lambda n: moved(n, 0, 1)),
    "with its key axis with 1 and the last exchanged": on(3, lambda n: moved(n, 1, -1)),
    "with its query axis the last one everywhere": on(2, lambda n: np.full(n, n - 1)),
    "with its query axis shifted by +1, the end repeated": on(2, lambda n: np.minimum(np.arange(n) + 1, n - 1)),
    "with its key axis within each block of 3 in reverse order": on(
        3, lambda n: np.concatenate([np.arange(k, min(n, k + 3))[::-1] for k in range(0, n, 3)])
    ),
    "with its key axis the first of each block of 2 in its place": on(3, lambda n: np.arange(n) // 2 * 2),
}


@pytest.mark.parametrize("words", MADE)
def test_an_order_of_an_axis_is_found_again(words):
    assert first_found(MADE[words]).words == words


def test_a_merged_axis_read_with_heads_and_channels_exchanged():
    def made(x, s):
        return x.reshape(*x.shape[:-1], s.config.num_heads, -1).swapaxes(-1, -2).reshape(x.shape)

    found = first_found(made, ("item", "query", "merged channel"))
    assert found.words == "with its merged channel axis read as (rest, head_dim) and transposed"


def test_an_order_without_a_rule_is_claimed_for_the_lengths_at_which_it_was_seen():
    orders = {5: (3, 1, 4, 0, 2), 6: (1, 4, 3, 5, 2, 0), 8: (5, 0, 7, 2, 1, 4, 6, 3), 9: (2, 7, 0, 5, 1, 8, 6, 3, 4)}
    samples = samples_of(on(3, lambda n: np.array(orders[n])))
    (found,) = fit(samples)
    assert "3, 1, 4, 0, 2" in found.words
    assert "seen at these lengths alone" in found.words
    with pytest.raises(DoesNotApply):
        found.apply(np.zeros((1, 1, 1, 7)), samples[0].axes, samples[0].setting)
