"""Items and lengths: what items do to each other, and what depends on lengths, is measured and holds elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.measure.designs import CONFIGS, generic
from conformance.zoo.blocked import keys as keys_in_blocks
from conformance.zoo.blocked.queries import in_blocks_of
from conformance.zoo.bug import Bug
from conformance.zoo.registry import select
from mha_core.reference.state import State
from tests.conformance.measure.wrong import is_right, measured, plain_problems, said, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

OF_ITEMS = ("items-of-equal-scores", "items", "batches")
LENGTHS = ((2, 3, 11), (2, 11, 3), (2, 7, 7), (2, 6, 14))
IN_BLOCKS = {bug.id: bug for bug in keys_in_blocks.KEY_BLOCKS}


def from_item(number: int, change: Callable[[NDArray], NDArray]) -> Callable[[State, NDArray], NDArray]:
    """The change in items from `number` on."""

    def some(state: State, array: NDArray) -> NDArray:
        return np.concatenate([array[:number], change(array)[number:]])

    return some


ITEMS = {
    "queries-of-next": wrong_at("queries", lambda s, x: np.roll(x, -1, axis=0)),
    "keys-two-before": wrong_at("keys", lambda s, x: np.roll(x, 2, axis=0)),
    "values-leak": wrong_at("values", lambda s, x: 0.83 * x + 0.17 * np.roll(x, 1, axis=0)),
    "queries-leak": wrong_at("queries", lambda s, x: 0.6 * x + 0.4 * x[::-1]),
    "keys-leak-to-mean": wrong_at("keys", lambda s, x: 0.9 * x + 0.1 * x.mean(axis=0, keepdims=True)),
    "values-centred": wrong_at("values", lambda s, x: x + 0.25 * (x.mean(axis=0, keepdims=True) - x)),
    "heads-over-batch": wrong_at("heads", lambda s, x: x / s.sizes.batch),
    "scores-over-root-of-batch": wrong_at("similarity", lambda s, x: x / s.sizes.batch**0.5),
    "zero-from-2": wrong_at("heads", from_item(2, lambda x: 0.0 * x)),
    "half-from-4": wrong_at("heads", from_item(4, lambda x: 0.5 * x)),
    "other-scale-from-6": wrong_at("similarity", from_item(6, lambda x: 1.3 * x)),
    "odd-queries-negative": wrong_at(
        "queries", lambda s, x: x * (-1.0) ** np.arange(s.sizes.batch)[:, None, None, None]
    ),
    "normalised-over-items": wrong_at("weights", lambda s, x: x / x.sum(axis=(0, 3), keepdims=True)),
    "keys-refolded": wrong_at(
        "keys", lambda s, x: x.reshape(x.shape[1], x.shape[0], *x.shape[2:]).swapaxes(0, 1).copy()
    ),
    "pairs-share-values": wrong_at("values", lambda s, x: x[np.arange(s.sizes.batch) // 2 * 2]),
}


def kept(rule: Callable[[NDArray, NDArray, int, int], NDArray]) -> Bug:
    """A mask that nobody asked for: rule(i, j, Lq, Lk)."""

    def mask(state: State, array: NDArray) -> NDArray:
        query_len, key_len = state.sizes.query_len, state.sizes.key_len
        return array & rule(np.arange(query_len)[:, None], np.arange(key_len), query_len, key_len)

    return wrong_at("allowed", mask)


def in_queries(where: Callable[[NDArray, int], NDArray], factor: float) -> Bug:
    """Heads times a factor in the queries for which where(i, Lk)."""

    def heads(state: State, array: NDArray) -> NDArray:
        here = where(np.arange(state.sizes.query_len), state.sizes.key_len)
        return np.where(here[:, None], factor * array, array)

    return wrong_at("heads", heads)


OF_LENGTHS = {
    "last-block-of-4-dropped": kept(lambda i, j, q, k: j < k - k % 4),
    "cut-behind-7": kept(lambda i, j, q, k: j < 7),
    "window-of-3": kept(lambda i, j, q, k: abs(i - j) <= 3),
    "causal-where-lengths-are-equal": kept(lambda i, j, q, k: (j <= i) | (q != k)),
    "causal-unless-one-query": kept(lambda i, j, q, k: (j <= i) | (q == 1)),
    "first-query-of-each-5-zero": in_queries(lambda i, k: i % 5 == 0, 0.0),
    "queries-past-keys-zero": in_queries(lambda i, k: i >= k, 0.0),
    "half-from-query-6": in_queries(lambda i, k: i >= 6, 0.5),
    "other-scale-of-many-keys": wrong_at("similarity", lambda s, x: x * (1.7 if s.sizes.key_len > 8 else 1.0)),
    "padding-counts-in-blocks-of-6": in_blocks_of(IN_BLOCKS["block-padding-counted"], 6),
}


@pytest.mark.parametrize("name", ITEMS)
def test_what_items_do_to_each_other_is_measured(name: str) -> None:
    found = measured(ITEMS[name], probes=OF_ITEMS)
    assert is_right(found, (ITEMS[name],), items_of_others(), among=1), said(found)


def items_of_others() -> list:
    return [generic(config, seed=50 + k, batch=7, query_len=4, key_len=7) for k, config in enumerate(CONFIGS[:2])]


def test_a_fault_of_items_beside_another_is_found_too() -> None:
    wrong = (*select(("scale-query-dim",)), ITEMS["values-leak"])
    found = measured(*wrong, probes=["batches"], alone=False, zoo=None)
    assert "scale-query-dim" in {bug.id for model in found.models for bug in model}
    assert is_right(found, wrong, items_of_others(), among=1), said(found)


def test_a_bug_of_items_on_file_is_named() -> None:
    found = measured(*select(("merge-batch-of-heads",)), probes=OF_ITEMS, zoo=None)
    assert "merge-batch-of-heads" in {bug.id for model in found.models for bug in model}


@pytest.mark.parametrize("name", OF_LENGTHS)
def test_what_depends_on_lengths_is_measured(name: str) -> None:
    found = measured(OF_LENGTHS[name], probes=["lengths"])
    assert is_right(found, (OF_LENGTHS[name],), plain_problems(*LENGTHS), among=1), said(found)


def test_blocks_that_only_larger_lengths_fill_are_named() -> None:
    found = measured(
        in_blocks_of(IN_BLOCKS["block-of-last-keys-dropped"], 128), probes=["lengths-of-hundreds"], zoo=None
    )
    assert "block-of-last-keys-dropped-of-128" in {bug.id for model in found.models for bug in model}
