"""Conditions of arrays in memory that a user's call could well be in."""

# ruff: noqa: F403, F405
from __future__ import annotations

from tests.conformance.conditions.arrays import *
from tests.conformance.conditions.words import *

# fmt: off
CONDITIONS: list[Condition] = [
    Condition("cotangent_strided", "a cotangent that is not contiguous", lambda c, e: strided(arr(c, 'cotangent'))),
    Condition("bias_broadcast", "a bias with a stride of 0", lambda c, e: spread(arr(c, 'bias'))),
    Condition("keys_overlap_queries", "keys that begin within the queries' own memory",
              lambda c, e: overlap(c.inputs.queries, c.inputs.keys) and memory_start(c.inputs.keys) !=
                  memory_start(c.inputs.queries)),
    Condition("past_broadcast", "a past that all items share, with a stride of 0",
              lambda c, e: spread(arr(c, 'past_keys'))),
    Condition("split_as_transposed", "heads split by a transposition, without a copy",
              lambda c, e: c.inputs.queries.ndim == 4 and turned(c.inputs.queries)),
    Condition("values_transposed", "values whose axes lie in another order in memory",
              lambda c, e: turned(arr(c, 'values'))),
    Condition("queries_of_odd_address", "queries that begin at no multiple of 16 bytes",
              lambda c, e: unaligned_to(arr(c, 'queries'), 16)),
    Condition("lens_rows_transposed", "lengths by query, laid out the other way",
              lambda c, e: turned(arr(c, 'valid_lens'))),
    Condition("keys_reversed", "keys with a negative stride", lambda c, e: flipped(arr(c, 'keys'))),
    Condition("allowed_broadcast", "`allowed` with a stride of 0", lambda c, e: spread(arr(c, 'allowed'))),
    Condition("same_object_keys_values", "one array as keys and values, another as queries",
              lambda c, e: c.inputs.keys is c.inputs.values and c.inputs.queries is not c.inputs.keys),
    Condition("allowed_sliced", "`allowed` cut from a larger mask", lambda c, e: gaps(arr(c, 'allowed'))),
    Condition("weights_transposed", "a weight stored (in, out), given transposed",
              lambda c, e: any(turned(x) for x in c.weights.values())),
    Condition("weights_tied", "two weights that are one array",
              lambda c, e: len({id(x) for x in c.weights.values()}) < len(c.weights)),
    Condition("past_reversed", "a past with a negative stride",
              lambda c, e: flipped(arr(c, 'past_keys')) or flipped(arr(c, 'past_values'))),
    Condition("keep_broadcast", "a keep-mask with a stride of 0", lambda c, e: spread(arr(c, 'dropout_keep'))),
    Condition("lens_broadcast", "lengths broadcast, with a stride of 0", lambda c, e: spread(arr(c, 'valid_lens'))),
    Condition("allowed_reversed", "`allowed` with a negative stride", lambda c, e: flipped(arr(c, 'allowed'))),
    Condition("weights_readonly", "weights that can't be written",
              lambda c, e: bool(c.weights) and all(readonly(x) for x in c.weights.values())),
    Condition("queries_sliced", "queries cut from a larger array", lambda c, e: gaps(arr(c, 'queries'))),
    Condition("queries_readonly", "queries that can't be written", lambda c, e: readonly(arr(c, 'queries'))),
    Condition("bias_transposed", "a bias with its axes in another order in memory",
              lambda c, e: turned(arr(c, 'bias'))),
    Condition("allowed_transposed", "`allowed` with its axes in another order in memory",
              lambda c, e: turned(arr(c, 'allowed'))),
    Condition("all_three_strided", "queries, keys and values that are not contiguous, all three",
              lambda c, e: all(strided(arr(c, n)) for n in ('queries', 'keys', 'values'))),
    Condition("past_sliced", "a past cut from a larger cache", lambda c, e: gaps(arr(c, 'past_keys'))),
    Condition("past_readonly", "a past that can't be written",
              lambda c, e: readonly(arr(c, 'past_keys')) and readonly(arr(c, 'past_values'))),
    Condition("allowed_readonly", "`allowed` that can't be written", lambda c, e: readonly(arr(c, 'allowed'))),
    Condition("cotangent_broadcast", "a cotangent with a stride of 0, as the gradient of a sum is",
              lambda c, e: spread(arr(c, 'cotangent'))),
    Condition("last_axis_not_dense", "queries whose last axis is not dense",
              lambda c, e: (x := arr(c, 'queries')).size > 1 and x.shape[-1] > 1 and x.strides[-1] != x.itemsize),
    Condition("past_keys_and_values_in_one", "past keys and values as views of one cache",
              lambda c, e: together(arr(c, 'past_keys'), arr(c, 'past_values'))),
]
