"""Conditions of masks that a user's call could well be in."""

# ruff: noqa: F403, F405
from __future__ import annotations

import numpy as np

from tests.conformance.conditions.arrays import *
from tests.conformance.conditions.words import *

# fmt: off
CONDITIONS: list[Condition] = [
    Condition("allowed_BHQK", "`allowed` of the shape BHQK", lambda c, e: pattern(c, 'allowed') == 'BHQK'),
    Condition("empty_rows_of_one_head", "rows without a key in some heads alone",
              lambda c, e: ordinary(c) and bool((empty_rows(c).any(axis=1) & ~empty_rows(c).all(axis=1)).any())),
    Condition("all_five", "all five sources at once", lambda c, e: len(sources(c)) == 5 and ordinary(c)),
    Condition("three_lens_bias_window", "lengths, a bias and a window at once",
              lambda c, e: has(c, *('lens', 'bias', 'window')) and ordinary(c)),
    Condition("allowed_B1Q1", "`allowed` of the shape B1Q1", lambda c, e: pattern(c, 'allowed') == 'B1Q1'),
    Condition("allowed_BH11", "`allowed` of the shape BH11", lambda c, e: pattern(c, 'allowed') == 'BH11'),
    Condition("causal_more_queries_than_keys", "causal with more queries than keys",
              lambda c, e: m(c).causal and z(c).lq > z(c).lk > 1),
    Condition("causal_offset_bias", "causal with an offset, and a bias",
              lambda c, e: has(c, 'causal', 'offset', 'bias') and ordinary(c)),
    Condition("causal_past_several_queries", "causal with a past, its offset, and several queries",
              lambda c, e: has(c, 'past', 'causal') and z(c).lq > 1 and bool((offsets(c) == z(c).past).all())),
    Condition("bias_with_past", "a bias with a past", lambda c, e: has(c, 'past', 'bias') and ordinary(c)),
    Condition("allowed_QK", "`allowed` of the shape QK", lambda c, e: pattern(c, 'allowed') == 'QK'),
    Condition("window_none_none", "a window without any bound",
              lambda c, e: m(c).window == (None, None) and ordinary(c)),
    Condition("bias_1H11", "a bias of the shape 1H11", lambda c, e: pattern(c, 'bias') == '1H11'),
    Condition("left_padding", "padding at the left, by `allowed`",
              lambda c, e: has(c, 'allowed') and ordinary(c) and bool((padding(c)[:, 0] & ~padding(c)[:, -1]).any())),
    Condition("three_lens_allowed_causal", "lengths, `allowed` and causal at once",
              lambda c, e: has(c, *('lens', 'allowed', 'causal')) and ordinary(c)),
    Condition("allowed_single", "`allowed` as a single bool",
              lambda c, e: (x := arr(c, 'allowed')) is not None and x.ndim == 0),
    Condition("three_lens_bias_causal", "lengths, a bias and causal at once",
              lambda c, e: has(c, *('lens', 'bias', 'causal')) and ordinary(c)),
    Condition("empty_rows_by_two", "rows without a key by two sources, neither of which empties a row",
              lambda c, e: ordinary(c) and bool(empty_rows(c).any()) and not any(empty_by(c, s) for s in sources(c))),
    Condition("bias_minus_1e9", "a bias of -1e9 where others write -inf",
              lambda c, e: (x := arr(c, 'bias')) is not None and bool(((x < -0.9e9) & (x > -1.1e9)).any())),
    Condition("lens_zero_one_full", "lengths of 0, of 1 and full in one batch",
              lambda c, e: (x := lens(c)) is not None and x.ndim == 1 and z(c).lk > 1 and {0, 1, z(c).lk} <=
                  set(x.tolist())),
    Condition("allowed_Q1", "`allowed` of the shape Q1", lambda c, e: pattern(c, 'allowed') == 'Q1'),
    Condition("bias_1HQK", "a bias of the shape 1HQK", lambda c, e: pattern(c, 'bias') == '1HQK'),
    Condition("only_causal", "causal and nothing else", lambda c, e: kinds(c) == {'causal'} and ordinary(c)),
    Condition("allowed_all_true", "`allowed` that allows everything",
              lambda c, e: (x := arr(c, 'allowed')) is not None and x.size > 1 and bool(x.all())),
    Condition("allowed_B111", "`allowed` of the shape B111", lambda c, e: pattern(c, 'allowed') == 'B111'),
    Condition("allowed_B11K", "`allowed` of the shape B11K", lambda c, e: pattern(c, 'allowed') == 'B11K'),
    Condition("only_allowed_causal", "`allowed` and causal, no other source",
              lambda c, e: sources(c) == {'allowed', 'causal'} and ordinary(c)),
    Condition("lens_by_query", "lengths by query that differ within an item",
              lambda c, e: (x := lens(c)) is not None and x.ndim == 2 and x.size > 0 and bool((x != x[:, :1]).any())),
    Condition("only_causal_window", "causal and a window, no other source",
              lambda c, e: sources(c) == {'causal', 'window'} and ordinary(c)),
    Condition("all_rows_empty", "no row has a key", lambda c, e: ordinary(c) and bool(empty_rows(c).all())),
    Condition("empty_rows_by_lens", "rows without a key by lengths alone", lambda c, e: empty_by(c, 'lens')),
    Condition("bias_same_as_lens", "a bias that excludes the same keys as the lengths do",
              lambda c, e: has(c, 'lens', 'bias') and bool((~full_of(c, 'lens')).any()) and bool((full_of(c, 'lens')
                  == full_of(c, 'bias')).all())),
    Condition("offset_by_item_both_signs", "offsets of both signs in one batch",
              lambda c, e: ordinary(c) and bool((offsets(c) < 0).any() and (offsets(c) > 0).any())),
    Condition("lens_all_equal", "lengths all equal, neither 0 nor full",
              lambda c, e: (x := lens(c)) is not None and x.size > 1 and bool((x == x.flat[0]).all()) and 0 <
                  x.flat[0] < z(c).lk),
    Condition("lens_by_query_causal", "lengths by query that are a causal mask",
              lambda c, e: (x := lens(c)) is not None and x.ndim == 2 and x.shape[1] > 1 and x.size > 0 and
                  bool((np.diff(x, axis=1) == 1).all())),
    Condition("only_allowed_bias", "`allowed` and a bias, no other source",
              lambda c, e: sources(c) == {'allowed', 'bias'} and ordinary(c)),
    Condition("allowed_1H11", "`allowed` of the shape 1H11", lambda c, e: pattern(c, 'allowed') == '1H11'),
    Condition("empty_rows_by_allowed", "rows without a key by `allowed` alone", lambda c, e: empty_by(c, 'allowed')),
    Condition("window_past", "a window with a past longer than it",
              lambda c, e: has(c, 'past', 'window') and m(c).window[0] is not None and z(c).past > m(c).window[0]),
    Condition("only_bias_causal", "a bias and causal, no other source",
              lambda c, e: sources(c) == {'bias', 'causal'} and ordinary(c)),
    Condition("lens_all_one", "lengths all 1, with more keys",
              lambda c, e: (x := lens(c)) is not None and x.size > 1 and z(c).lk > 1 and bool((x == 1).all())),
    Condition("window_wider_than_keys", "a window at least as wide as there are keys, to both sides",
              lambda c, e: m(c).window is not None and all(w is not None and w >= z(c).lk for w in m(c).window) and
                  ordinary(c)),
    Condition("causal_offset_allowed", "causal with an offset, and `allowed`",
              lambda c, e: has(c, 'causal', 'offset', 'allowed') and ordinary(c)),
    Condition("three_lens_allowed_bias", "lengths, `allowed` and a bias at once",
              lambda c, e: has(c, *('lens', 'allowed', 'bias')) and ordinary(c)),
    Condition("lone_keys", "rows with a single allowed key, of several",
              lambda c, e: z(c).lk > 1 and z(c).lq > 0 and bool((full(c).sum(axis=-1) == 1).any())),
    Condition("lens_by_query_with_zero", "lengths by query, of which some but not all of an item are 0",
              lambda c, e: (x := lens(c)) is not None and x.ndim == 2 and x.size > 0 and bool(((x == 0).any(axis=1) &
                  (x > 0).any(axis=1)).any())),
    Condition("window_many_keys", "a window with more than 64 keys",
              lambda c, e: has(c, 'window') and z(c).lk > 64 and bool((~full_of(c, 'window')).any())),
    Condition("lens_ascending", "lengths in ascending order, all different, of three items or more",
              lambda c, e: (x := lens(c)) is not None and x.ndim == 1 and x.size >= 3 and bool((np.diff(x) > 0).all())),
    Condition("allowed_HQK", "`allowed` of the shape HQK", lambda c, e: pattern(c, 'allowed') == 'HQK'),
    Condition("window_uneven", "a window wider to the right than to the left",
              lambda c, e: m(c).window is not None and None not in m(c).window and m(c).window[1] > m(c).window[0] and
                  not m(c).causal and ordinary(c)),
    Condition("block_diagonal", "`allowed` in blocks, as of packed documents",
              lambda c, e: arr(c, 'allowed') is not None and ordinary(c) and z(c).lq == z(c).lk > 3 and (y :=
                  full_of(c, 'allowed')[0, 0]).diagonal().all() and bool((y == y.T).all() and not y.all() and
                  np.array_equal((y @ y), y) and y.sum() > len(y))),
    Condition("allowed_with_past", "`allowed` with a past, some of which it excludes",
              lambda c, e: has(c, 'past', 'allowed') and ordinary(c) and bool((~full_of(c, 'allowed')[...,
                  :z(c).past]).any())),
    Condition("only_allowed_window", "`allowed` and a window, no other source",
              lambda c, e: sources(c) == {'allowed', 'window'} and ordinary(c)),
    Condition("mask_by_head", "a mask that differs between heads", lambda c, e: by(c, 1)),
    Condition("bias_minus_inf_some", "a bias that holds -inf and finite numbers that are not 0",
              lambda c, e: (x := arr(c, 'bias')) is not None and bool(np.isneginf(x).any() and (np.isfinite(x) & (x !=
                  0)).any())),
]
