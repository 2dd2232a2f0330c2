"""Conditions of numbers that a user's call could well be in."""

# ruff: noqa: F403, F405
import numpy as np

from tests.conformance.conditions.arrays import *
from tests.conformance.conditions.words import *

# fmt: off
CONDITIONS: list[Condition] = [
    Condition("nan_behind_causal", "NaN in a key that only later queries may attend to",
              lambda c, e: m(c).causal and ordinary(c) and z(c).lq > 1 and nan_for_some(c)),
    Condition("scores_all_negative", "a row whose scores are all below -50",
              lambda c, e: finite(c) and ordinary(c) and bool((best_scores(c) < -50).any())),
    Condition("keys_shared_by_items", "items with the same keys and values, and different queries",
              lambda c, e: ordinary(c) and z(c).b > 1 and all(bool((x == x[:1]).all()) for x in (c.inputs.keys,
                  c.inputs.values)) and not bool((c.inputs.queries == c.inputs.queries[:1]).all())),
    Condition("one_item_zero", "one item of 0, another not",
              lambda c, e: ordinary(c) and z(c).b > 1 and bool((flat(c.inputs.queries) == 0).all(axis=1).any()) and
                  bool(c.inputs.queries.any())),
    Condition("nan_in_left_padding", "NaN in padding by `allowed` at the left",
              lambda c, e: has(c, 'allowed') and not has(c, 'lens') and bad(c, 'keys', np.isnan, 'padding') and
                  bool(padding(c)[:, 0].any())),
    Condition("nan_in_open_values", "NaN in values that somebody may attend to",
              lambda c, e: bad(c, 'values', np.isnan, 'open')),
    Condition("unit_vectors", "values that are unit vectors",
              lambda c, e: ordinary(c) and z(c).new > 1 and units(key_rows(c, 'values'))),
    Condition("scores_peaked", "a row in which one key has a weight above 0.9999, of several allowed",
              lambda c, e: finite(c) and peaked(c)),
    Condition("scores_above_80", "scores beyond what exp holds in float32 in either direction",
              lambda c, e: 80 < top(c) < 1e300),
    Condition("weights_large", "weights above 10",
              lambda c, e: any(size_of(x) > 10 for n, x in c.weights.items() if n.endswith('weight'))),
    Condition("item_far_larger", "an item a thousand times larger than another",
              lambda c, e: finite(c) and ordinary(c) and z(c).b > 1 and far_larger(flat(c.inputs.queries))),
    Condition("integers", "queries and keys of whole numbers, not all 0",
              lambda c, e: ordinary(c) and finite(c) and all(bool((x == np.round(x)).all()) and bool(x.any()) for x in
                  (c.inputs.queries, c.inputs.keys))),
    Condition("inf_in_padding_keys", "infinity in keys of padding", lambda c, e: bad(c, 'keys', np.isinf, 'padding')),
    Condition("nan_in_past_padding", "NaN in a past that is padding",
              lambda c, e: has(c, 'past') and ordinary(c) and bool((np.isnan(c.inputs.past_keys).any(axis=(1, 3)) &
                  padding(c)[:, :z(c).past]).any())),
    Condition("nan_in_query_of_empty_row", "NaN in a query that may attend to nothing",
              lambda c, e: ordinary(c) and c.inputs.queries.ndim == 3 and
                  bool((np.isnan(c.inputs.queries).any(axis=-1) & empty_rows(c).all(axis=1)).any())),
    Condition("minus_infinity_in_values", "negative infinity in an open value",
              lambda c, e: bad(c, 'values', np.isneginf, 'open')),
    Condition("items_equal", "all items of a batch the same",
              lambda c, e: ordinary(c) and z(c).b > 1 and all(bool((x == x[:1]).all()) for x in (c.inputs.queries,
                  c.inputs.keys, c.inputs.values))),
    Condition("keys_equal", "all keys of an item equal, several",
              lambda c, e: ordinary(c) and z(c).new > 1 and equal_rows(c, 'keys') and bool(c.inputs.keys.any())),
    Condition("inf_in_open_keys", "infinity in keys that somebody may attend to",
              lambda c, e: bad(c, 'keys', np.isinf, 'open')),
    Condition("values_tiny", "values below 1e-6, not 0", lambda c, e: 0 < size_of(c.inputs.values) < 1e-6),
    Condition("nan_in_padding_keys", "NaN in keys of padding", lambda c, e: bad(c, 'keys', np.isnan, 'padding')),
    Condition("values_equal", "all values of an item equal, several",
              lambda c, e: ordinary(c) and z(c).new > 1 and equal_rows(c, 'values') and bool(c.inputs.values.any())),
    Condition("keep_all", "a keep-mask that keeps everything",
              lambda c, e: (x := arr(c, 'dropout_keep')) is not None and x.size > 1 and bool(x.all())),
    Condition("value_far_larger", "a value a hundred times larger than the others of its item",
              lambda c, e: finite(c) and ordinary(c) and outlier(key_rows(c, 'values'))),
    Condition("weights_zero", "a projection of 0, as some begin",
              lambda c, e: any(x.size > 1 and not x.any() for n, x in c.weights.items() if n.endswith('weight'))),
    Condition("cotangent_one_place", "a cotangent that is 0 but for one place",
              lambda c, e: (x := arr(c, 'cotangent')) is not None and x.size > 1 and int((x != 0).sum()) == 1),
    Condition("scores_constant_rows", "rows whose scores are all equal, not 0",
              lambda c, e: finite(c) and z(c).lk > 1 and ordinary(c) and bool(((np.ptp(logit_rows(c), axis=-1) <
                  1e-12) & (np.abs(logit_rows(c)[..., 0]) > 0)).any())),
    Condition("scores_tiny", "scores all below a millionth, not 0",
              lambda c, e: logits(c).size > 1 and 0 < top(c) < 1e-6),
    Condition("nan_in_one_item", "NaN in one item, none in another",
              lambda c, e: z(c).b > 1 and any(bool(np.isnan(flat(x)).any(axis=1).any()) and not
                  bool(np.isnan(flat(x)).any(axis=1).all())
                  for x in (c.inputs.queries, c.inputs.keys, c.inputs.values) if
                  x.size)),
    Condition("cotangent_zero", "a cotangent of 0",
              lambda c, e: (x := arr(c, 'cotangent')) is not None and x.size > 0 and not x.any()),
    Condition("scores_wide_range", "rows whose scores range over more than 1000",
              lambda c, e: finite(c) and ordinary(c) and bool((np.ptp(logit_rows(c), axis=-1) > 1000).any())),
]
