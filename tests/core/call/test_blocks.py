"""Blocks of queries and the keys they need, held against the mask itself."""

import itertools

import numpy as np
import pytest

from mha_core import AttentionMask
from mha_core.call.arguments import CallSizes
from mha_core.call.blocks import SMALLEST_BLOCK, query_block, query_blocks, reach
from mha_core.call.masks import allowed_keys

SIZES = CallSizes(batch=3, query_len=7, key_len=5)
PER_QUERY = np.array([[0, 0, 5, 2, 0, 4, 1], [5, 3, 0, 0, 0, 2, 5], [4, 4, 4, 4, 4, 4, 0]])
MASKS = {
    "no source": AttentionMask(),
    "lengths": AttentionMask(valid_lens=np.array([0, 3, 5])),
    "lengths per query": AttentionMask(valid_lens=PER_QUERY),
    "causal": AttentionMask(causal=True),
    "causal, before the first key": AttentionMask(causal=True, query_offset=-4),
    "window": AttentionMask(window=(1, 1), query_offset=2),
    "window to the left, behind the last key": AttentionMask(window=(2, None), query_offset=np.array([0, 3, 9])),
    "window to the right": AttentionMask(window=(None, 0), query_offset=np.array([-9, 1, 0])),
    "all of them": AttentionMask(valid_lens=PER_QUERY, causal=True, window=(3, 2), query_offset=np.array([1, -2, 0])),
    "a window of one key": AttentionMask(window=(0, 0)),
}


@pytest.mark.parametrize("name", MASKS)
def test_the_reach_of_each_query_is_what_the_mask_allows(name):
    first, stop = reach(MASKS[name], SIZES)
    j = np.arange(SIZES.key_len)
    within = (j >= first[..., None]) & (j < stop[..., None])
    allowed = allowed_keys(MASKS[name], SIZES, num_heads=1)[:, 0]
    np.testing.assert_array_equal(np.broadcast_to(within, allowed.shape), allowed)


@pytest.mark.parametrize("name", MASKS)
def test_the_keys_of_a_block_are_the_fewest_that_hold_all(name):
    """And a block is open if and only if nothing in it is excluded."""
    found, allowed = reach(MASKS[name], SIZES), allowed_keys(MASKS[name], SIZES, num_heads=1)[:, 0]
    items = [slice(0, 1), slice(1, 3), slice(0, 3)]
    for item, block in itertools.product(items, (1, 2, 3, 7)):
        for queries in query_blocks(SIZES.query_len, block):
            used = np.flatnonzero(allowed[item, queries].any(axis=(0, 1)))
            keys = found.keys(item, queries)
            wanted = slice(0, 0) if not used.size else slice(int(used[0]), int(used[-1]) + 1)
            assert keys == wanted
            if used.size:
                assert found.is_open(item, queries, keys) == bool(allowed[item, queries, keys].all())


def test_allowed_and_bias_have_no_part_in_it():
    mask = AttentionMask(allowed=np.zeros((1, 5), bool), bias=np.full((7, 5), -np.inf))
    assert reach(mask, SIZES).keys(slice(0, 3), slice(0, 2)) == slice(0, 5)


@pytest.mark.parametrize(("length", "block"), [(0, 2), (1, 2), (6, 2), (7, 3), (7, 7), (5, 9)])
def test_blocks_cover_each_query_once(length, block):
    blocks = query_blocks(length, block)
    assert [i for queries in blocks for i in range(length)[queries]] == list(range(length))
    assert all(1 <= queries.stop - queries.start <= block for queries in blocks)


def test_the_rule_fits_the_budget_and_stays_within_its_ends():
    for length, per_query, budget in itertools.product((0, 1, 40, 5000), (12, 4000, 10**9), (1, 2**16, 2**22)):
        block = query_block(length, per_query, budget)
        assert 1 <= block <= max(length, 1)
        assert block * per_query <= budget or block <= SMALLEST_BLOCK
        if block < length:
            assert block & (block - 1) == 0, "a power of two"
            assert 2 * block * per_query > budget, "the next one does not fit"
