"""Lengths: what depends on lengths, or on places, is measured from outputs alone with its number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.measure.designs import CONFIGS, generic
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from conformance.zoo.blocked import keys as keys_in_blocks
from conformance.zoo.blocked.queries import in_blocks_of
from conformance.zoo.bug import Bug
from mha_core.reference.state import State
from tests.conformance.measure.test_items import OutputsOnly, changed

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

LENGTHS = select_probes(("lengths",), alone=True)
LONGER = select_probes(("lengths-of-hundreds",), alone=True)
SIZES = ((3, 11), (11, 3), (7, 7), (6, 14))
IN_BLOCKS = {bug.id: bug for bug in keys_in_blocks.KEY_BLOCKS}


def kept(rule: Callable[[NDArray, NDArray, int, int], NDArray]) -> Bug:
    """A mask that nobody asked for: rule(i, j, Lq, Lk)."""

    def mask(state: State, array: NDArray) -> NDArray:
        query_len, key_len = state.sizes.query_len, state.sizes.key_len
        return array & rule(np.arange(query_len)[:, None], np.arange(key_len), query_len, key_len)

    return changed("allowed", mask)


def in_queries(where: Callable[[NDArray, int], NDArray], factor: float) -> Bug:
    """Heads times a factor in the queries for which where(i, Lk)."""

    def heads(state: State, array: NDArray) -> NDArray:
        here = where(np.arange(state.sizes.query_len), state.sizes.key_len)
        return np.where(here[:, None], factor * array, array)

    return changed("heads", heads)


WRONG = {
    "last-block-of-4-dropped": kept(lambda i, j, q, k: j < k - k % 4),
    "cut-behind-7": kept(lambda i, j, q, k: j < 7),
    "window-of-3": kept(lambda i, j, q, k: abs(i - j) <= 3),
    "causal-where-lengths-are-equal": kept(lambda i, j, q, k: (j <= i) | (q != k)),
    "causal-unless-one-query": kept(lambda i, j, q, k: (j <= i) | (q == 1)),
    "first-query-of-each-5-zero": in_queries(lambda i, k: i % 5 == 0, 0.0),
    "queries-past-keys-zero": in_queries(lambda i, k: i >= k, 0.0),
    "half-from-query-6": in_queries(lambda i, k: i >= 6, 0.5),
    "other-scale-of-many-keys": changed("similarity", lambda s, x: x * (1.7 if s.sizes.key_len > 8 else 1.0)),
    "padding-counts-in-blocks-of-6": in_blocks_of(IN_BLOCKS["block-padding-counted"], 6),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_depends_on_lengths_is_measured(name: str) -> None:
    wrong = WRONG[name]

    found = measure(OutputsOnly(wrong), probes=LENGTHS, zoo=())

    assert found.models[0]
    assert not found.unexplained
    subject, model = OutputsOnly(wrong), OutputsOnly(*found.models[0])
    for seed, (query_len, key_len) in enumerate(SIZES):
        problem = generic(CONFIGS[seed % 2], seed=90 + seed, batch=2, query_len=query_len, key_len=key_len)
        got, made = (one.prepare(problem.config, problem.weights)(problem.inputs).output for one in (subject, model))
        np.testing.assert_allclose(made, got, rtol=1e-6, atol=1e-9)


def test_blocks_that_only_larger_lengths_fill_are_named() -> None:
    found = measure(OutputsOnly(in_blocks_of(IN_BLOCKS["block-of-last-keys-dropped"], 128)), probes=LONGER)

    assert "block-of-last-keys-dropped-of-128" in {bug.id for model in found.models for bug in model}


def test_a_right_layer_has_no_finding() -> None:
    assert measure(OutputsOnly(), probes=LONGER).models == ((),)
