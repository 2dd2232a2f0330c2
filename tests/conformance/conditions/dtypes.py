"""Conditions of dtypes that a user's call could well be in."""

# ruff: noqa: F403, F405
import numpy as np

from tests.conformance.conditions.arrays import *
from tests.conformance.conditions.words import *

# fmt: off
CONDITIONS: list[Condition] = [
    Condition("lens_uint8_above_255_keys", "lengths in 8 bits, more keys than those hold",
              lambda c, e: (x := arr(c, 'valid_lens')) is not None and x.dtype == np.uint8 and z(c).lk > 255),
    Condition("lens_uint64", "lengths in uint64",
              lambda c, e: (x := arr(c, 'valid_lens')) is not None and x.dtype == np.uint64),
    Condition("bfloat16_dropout", "bfloat16 with dropout", lambda c, e: c.dtype == 'bfloat16' and has(c, 'dropout')),
    Condition("float16_bias", "float16 with an additive bias", lambda c, e: c.dtype == 'float16' and has(c, 'bias')),
    Condition("window_at_limit", "a window as wide as 32 bits hold",
              lambda c, e: m(c).window is not None and 2**31 - 1 in m(c).window),
    Condition("bfloat16_grouped", "bfloat16 with grouped heads",
              lambda c, e: c.dtype == 'bfloat16' and has(c, 'grouped')),
    Condition("float16_large_scores", "float16 with scores above 1000",
              lambda c, e: c.dtype == 'float16' and top(c) > 1000),
    Condition("float16_long", "float16 or bfloat16 with more than 256 keys",
              lambda c, e: c.dtype in ('float16', 'bfloat16') and z(c).lk > 256),
    Condition("bfloat16", "bfloat16", lambda c, e: c.dtype == 'bfloat16'),
    Condition("float32_1000_keys", "float32 with 1000 keys or more",
              lambda c, e: c.dtype == 'float32' and z(c).lk >= 1000),
    Condition("lens_rows_int32", "lengths by query in 32 bits",
              lambda c, e: (x := arr(c, 'valid_lens')) is not None and x.ndim == 2 and x.dtype == np.int32),
    Condition("lens_int32", "lengths in int32",
              lambda c, e: (x := arr(c, 'valid_lens')) is not None and x.dtype == np.int32),
    Condition("lens_int8_above_127_keys", "lengths in signed 8 bits, more keys than those hold",
              lambda c, e: (x := arr(c, 'valid_lens')) is not None and x.dtype == np.int8 and z(c).lk > 127),
    Condition("offset_array_int64", "offsets by item in 64 bits",
              lambda c, e: m(c).has_positions and (x := arr(c, 'query_offset')) is not None and x.dtype == np.int64),
    Condition("float16", "float16", lambda c, e: c.dtype == 'float16'),
    Condition("float32_large_scores", "float32 with scores above 100",
              lambda c, e: c.dtype == 'float32' and top(c) > 100),
    Condition("offset_array_narrow", "offsets by item in 8 or 16 bits",
              lambda c, e: m(c).has_positions and (x := arr(c, 'query_offset')) is not None and x.dtype.itemsize <= 2),
    Condition("bfloat16_bias", "bfloat16 with an additive bias", lambda c, e: c.dtype == 'bfloat16' and has(c, 'bias')),
    Condition("float32_dropout", "float32 with dropout", lambda c, e: c.dtype == 'float32' and has(c, 'dropout')),
    Condition("offset_at_limit", "an offset within 10 of what 32 bits hold",
              lambda c, e: bool((np.abs(offsets(c)) >= 2**31 - 10).any())),
    Condition("offset_array_unsigned", "offsets by item, unsigned",
              lambda c, e: m(c).has_positions and (x := arr(c, 'query_offset')) is not None and x.dtype.kind == 'u'),
    Condition("float32", "float32", lambda c, e: c.dtype == 'float32'),
    Condition("different_integers", "lengths and offsets in integers of different width",
              lambda c, e: (x := arr(c, 'valid_lens')) is not None and (y := arr(c, 'query_offset')) is not None and
                  x.dtype != y.dtype),
    Condition("offset_and_window_beyond_32_bits", "a position and its window whose sum needs more than 32 bits",
              lambda c, e: m(c).window is not None and any(w is not None and int(np.abs(offsets(c)).max(initial=0)) +
                  w > 2**31 for w in m(c).window)),
]
