"""Mixes with other places along an axis are found again, with their shares."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.measure.grammar.sample import Change, Setting
from conformance.measure.designs import CONFIGS, generic
from tests.conformance.measure.changes.worlds import first_found

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

MADE = {
    "plus 0.1 times itself with its key axis rolled by +1": lambda x, s: x + 0.1 * np.roll(x, 1, 3),
    "times 0.8, plus 0.2 times itself with its query axis rolled by -1": lambda x, s: 0.8 * x + 0.2 * np.roll(x, -1, 2),
    "with its head axis rolled by +1, times 0.5": lambda x, s: 0.5 * np.roll(x, 1, 1),
    "less its mean over the key axis": lambda x, s: x - x.mean(axis=3, keepdims=True),
    "plus 0.3 times its mean over the head axis": lambda x, s: x + 0.3 * x.mean(axis=1, keepdims=True),
    "replaced by its mean over the query axis": lambda x, s: np.broadcast_to(x.mean(axis=2, keepdims=True), x.shape),
    "replaced by its running sum along the key axis": lambda x, s: np.cumsum(x, axis=3),
    "replaced by its softmax along the key axis": lambda x, s: np.exp(x) / np.exp(x).sum(axis=3, keepdims=True),
    "plus 1 / sqrt(head_dim) times both its neighbours on the key axis, in a ring": lambda x, s: (
        x + s.config.head_dim**-0.5 * (np.roll(x, 1, 3) + np.roll(x, -1, 3))
    ),
    "less its largest over the key axis": lambda x, s: x - x.max(axis=3, keepdims=True),
}


@pytest.mark.parametrize("words", MADE)
def test_a_mix_is_found_again(words):
    assert first_found(MADE[words]).words == words


def test_where_there_are_no_keys_a_mix_changes_nothing():
    problem = generic(CONFIGS[0], key_len=0)
    least = Change("least", "its smallest", lambda x, axes, setting: x - x.min(axis=3, keepdims=True))
    weights = np.zeros((1, CONFIGS[0].num_heads, 3, 0))
    assert least.apply(weights, ("item", "head", "query", "key"), Setting(CONFIGS[0], problem.sizes)) is weights
