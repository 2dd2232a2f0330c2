"""Axes exchanged, arrays cut otherwise, and two changes one after the other are found again."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.measure.changes.worlds import first_found

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def by_query(x, s):
    keys = (np.arange(x.shape[3])[None] - np.arange(x.shape[2])[:, None]) % x.shape[3]
    return np.take_along_axis(x, np.broadcast_to(keys, x.shape), 3)


def but_key_0(x):
    x = x.copy()
    x[..., 0] = 0.0
    return x


def odd_heads(x, change):
    x = x.copy()
    x[:, 1::2] = change(x[:, 1::2])
    return x


def exchanged(x, a, b):
    order = np.arange(x.shape[3])
    order[[a, b]] = order[[b, a]]
    return x[..., order]


def cut_twice(x, s):
    cut = x.reshape(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).swapaxes(1, 2)
    return odd_heads(cut, lambda y: 2.0 * y)


MADE = {
    "read in the order of the axes (item, query, head, key) and not transposed": lambda x, s: np.ascontiguousarray(
        x.swapaxes(1, 2)
    ).reshape(x.shape),
    "cut into axes (item, query, head, key) as if it were in that order": lambda x, s: x.reshape(
        x.shape[0], x.shape[2], x.shape[1], x.shape[3]
    ).swapaxes(1, 2),
    "with its key axis rolled by the query index": by_query,
    "with its head axis rolled by +1, then through tanh": lambda x, s: np.tanh(np.roll(x, 1, 1)),
    "with its key axis in reverse order, then with negative numbers replaced by 0 (ReLU)": lambda x, s: np.maximum(
        x[..., ::-1], 0.0
    ),
    "with its key axis with 1 and 3 exchanged, then times 0.5": lambda x, s: 0.5 * exchanged(x, 1, 3),
    "with its head axis in reverse order, then with its key axis rolled by +1": lambda x, s: np.roll(x[:, ::-1], 1, 3),
    "times 0.9, then replaced by 0, at key 0 only": lambda x, s: but_key_0(0.9 * x),
    "replaced by 0, at key 0 only, then times 2, at odd heads and all keys but 0 only": lambda x, s: odd_heads(
        but_key_0(x), lambda y: 2 * y
    ),
    "times 0.9, then clipped at +-0.9": lambda x, s: 0.9 * np.clip(x, -1.0, 1.0),
    "times 0.9^head index, then with negative numbers replaced by 0 (ReLU)": lambda x, s: np.maximum(
        x * 0.9 ** np.arange(x.shape[1]).reshape(1, -1, 1, 1), 0.0
    ),
    "with its head axis shifted by +1, 0 at the end, then with its key axis in reverse order": lambda x, s: (
        np.concatenate([x[:, 1:, :, ::-1], 0.0 * x[:, :1]], axis=1)
    ),
    "cut into axes (item, query, head, key) as if it were in that order, then times 2, at odd heads only": cut_twice,
    "with its key axis in reverse order, then times 1 / sqrt(head_dim)": lambda x, s: (
        x[..., ::-1] / s.config.head_dim**0.5
    ),
}


@pytest.mark.parametrize("words", MADE)
def test_two_changes_are_found_again(words):
    found = first_found(MADE[words]).words
    # An order and a factor is also a mix of which one part is absent.
    assert found in (words, words.replace(", then times", ", times"))


def test_an_axis_of_merged_heads_is_split():
    def made(x, s):
        heads = x.reshape(*x.shape[:2], s.config.num_heads, s.config.head_dim)
        return (heads * np.arange(1.0, s.config.num_heads + 1.0)[:, None]).reshape(x.shape)

    found = first_found(made, ("item", "query", "merged channel"))
    assert found.words in ("times (head index + 1)", "times (query head index + 1)")
