"""Conditions of orders of calls that a user's call could well be in."""

# ruff: noqa: F403, F405
import numpy as np

from tests.conformance.conditions.arrays import *
from tests.conformance.conditions.words import *

# fmt: off
CONDITIONS: list[Condition] = [
    Condition("all_empty_then_ordinary", "no row has a key, then all have one, in the same shape",
              lambda c, e: ordinary(c) and not bool(empty_rows(c).any()) and after(e, lambda p: ordinary(p) and
                  bool(empty_rows(p).all()) and shape(p) == shape(c))),
    Condition("then_larger_batch", "a larger batch than the one before",
              lambda c, e: after(e, lambda p: 0 < z(p).b < z(c).b)),
    Condition("equal_items_then_different", "items with the same keys, then items with different ones",
              lambda c, e: ordinary(c) and z(c).b > 1 and not bool((c.inputs.keys == c.inputs.keys[:1]).all()) and
                  after(e, lambda p: z(p).b > 1 and ordinary(p) and bool((p.inputs.keys == p.inputs.keys[:1]).all()))),
    Condition("same_queries_other_keys", "the queries of the call before, other keys of the same shape",
              lambda c, e: ordinary(c) and after(e, lambda p: same(p, c, 'queries') and not same(p, c, 'keys') and
                  shape(p) == shape(c))),
    Condition("second_thread", "a call in another thread than the first",
              lambda c, e: bool(e) and c.thread != e[0].thread),
    Condition("dtype_of_mask_changes", "`allowed`, then the same as a bias of 0 and -inf",
              lambda c, e: sources(c) == {'bias'} and ordinary(c) and after(e, lambda p: sources(p) == {'allowed'} and
                  shape(p) == shape(c) and bool(np.array_equal(full(p), full(c))))),
    Condition("then_fewer_queries", "a call with fewer queries than the one before",
              lambda c, e: after(e, lambda p: z(p).lq > z(c).lq > 0)),
    Condition("allowed_then_none", "`allowed`, then no mask alone in the same shape",
              lambda c, e: not sources(c) and ordinary(c) and after(e, lambda p: sources(p) == {'allowed'} and
                  shape(p) == shape(c))),
    Condition("empty_then_ordinary", "rows without a key, then none in the same shape",
              lambda c, e: ordinary(c) and not bool(empty_rows(c).any()) and after(e, lambda p:
                  bool(empty_rows(p).any()) and shape(p) == shape(c))),
    Condition("grows_over_64", "up to 64 keys, then more",
              lambda c, e: after(e, lambda p: 0 < z(p).lk <= 64 < z(c).lk)),
    Condition("second_thread_other_shape", "a call in a second thread, of another shape than the one before",
              lambda c, e: ordinary(c) and after(e, lambda p: p.thread != c.thread and shape(p) != shape(c))),
    Condition("training_then_evaluation", "a training step, then an evaluation of the same shape",
              lambda c, e: not c.training and ordinary(c) and after(e, lambda p: p.training and shape(p) == shape(c))),
    Condition("shape_comes_back_after_larger", "a shape that comes back after one with more keys, with other numbers",
              lambda c, e: ordinary(c) and after(e, lambda p: z(p).lk > z(c).lk) and once(e, lambda p: shape(p) ==
                  shape(c) and not same(p, c, 'keys'))),
    Condition("past_after_none", "a past after a call without one",
              lambda c, e: has(c, 'past') and after(e, lambda p: not has(p, 'past'))),
    Condition("batch_permuted", "the items of the call before in another order",
              lambda c, e: ordinary(c) and z(c).b > 1 and after(e, lambda p: shape(p) == shape(c) and arr(p,
                  'keys').shape == arr(c, 'keys').shape and not same(p, c, 'keys') and sorted(x.tobytes() for x in
                  p.inputs.keys) == sorted(x.tobytes() for x in c.inputs.keys))),
    Condition("none_then_causal", "no mask, then causal alone in the same shape",
              lambda c, e: sources(c) == {'causal'} and ordinary(c) and after(e, lambda p: not sources(p) and shape(p)
                  == shape(c))),
    Condition("causal_growing_with_window", "causal with a window, 5 calls in a row with one key more",
              lambda c, e: has(c, 'window') and run_of(c, e, lambda a, b: has(a, 'window') and z(b).lk == z(a).lk + 1)
                  >= 5),
    Condition("gradients_then_none", "gradients, then none",
              lambda c, e: not c.gradients and after(e, lambda p: p.gradients)),
    Condition("decode_then_several_new", "steps of one new key, then a step of several",
              lambda c, e: has(c, 'past') and z(c).new > 1 and after(e, lambda p: has(p, 'past') and z(p).new == 1)),
    Condition("evaluation_then_training", "an evaluation, then a training step",
              lambda c, e: c.training and after(e, lambda p: not p.training)),
    Condition("lens_same_maximum", "other lengths with the same maximum, as many items",
              lambda c, e: has(c, 'lens') and ordinary(c) and after(e, lambda p: has(p, 'lens') and z(p).b == z(c).b
                  and lens(p).size and lens(p).max() == lens(c).max() and not same(p, c, 'valid_lens'))),
    Condition("decode_with_window", "3 steps of decoding in a row with a window that the past outgrows",
              lambda c, e: has(c, 'window') and run_of(c, e, steps_on) >= 3 and m(c).window[0] is not None and
                  z(c).past > m(c).window[0]),
    Condition("allowed_then_bias", "`allowed`, then a bias alone in the same shape",
              lambda c, e: sources(c) == {'bias'} and ordinary(c) and after(e, lambda p: sources(p) == {'allowed'} and
                  shape(p) == shape(c))),
    Condition("after_50_calls", "more than 50 calls of one layer", lambda c, e: len(e) > 50),
    Condition("everything_smaller", "fewer items, queries and keys than the one before",
              lambda c, e: after(e, lambda p: all(a > b > 0 for a, b in zip(shape(p), shape(c), strict=True)))),
    Condition("lengths_swapped", "as many queries as the call before had keys, and the other way round",
              lambda c, e: after(e, lambda p: (z(p).lq, z(p).lk) == (z(c).lk, z(c).lq) and z(c).lq != z(c).lk and
                  min(shape(c)) > 0)),
    Condition("more_keys_smaller_batch", "more keys and a smaller batch than the one before",
              lambda c, e: after(e, lambda p: z(p).b > z(c).b > 0 and z(p).lk < z(c).lk)),
    Condition("then_more_queries", "a call with more queries than the one before",
              lambda c, e: after(e, lambda p: 0 < z(p).lq < z(c).lq)),
    Condition("same_keys_changed", "the array of keys of the call before, with other contents",
              lambda c, e: after(e, lambda p: same_object(p, c, 'keys') and not same(p, c, 'keys'))),
    Condition("causal_longer", "causal with more queries and keys than the causal call before",
              lambda c, e: m(c).causal and ordinary(c) and after(e, lambda p: m(p).causal and 0 < z(p).lq < z(c).lq
                  and z(p).lk < z(c).lk)),
    Condition("bias_other_same_shape", "another bias of the same shape, without dropout",
              lambda c, e: has(c, 'bias') and ordinary(c) and not c.training and after(e, lambda p: has(p, 'bias') and
                  not p.training and arr(p, 'bias').shape == arr(c, 'bias').shape and not same(p, c, 'bias'))),
    Condition("after_20_same_then_other_mask", "20 calls of one shape and mask, then another mask in that shape",
              lambda c, e: len(e) >= 20 and len({(shape(p), *(p.digests.get(n) for n in ('valid_lens', 'allowed',
                  'bias'))) for p in e[-20:]}) == 1 and shape(c) == shape(e[-1]) and not same(c, e[-1], 'valid_lens',
                  'allowed', 'bias')),
    Condition("equal_after_another", "a call that was asked before, after a different one",
              lambda c, e: ordinary(c) and after(e, lambda p: not same_inputs(p, c)) and once(e, lambda p:
                  same_inputs(p, c))),
    Condition("training_other_keep", "two training steps of one shape with different keep-masks",
              lambda c, e: c.training and ordinary(c) and after(e, lambda p: p.training and shape(p) == shape(c) and
                  not same(p, c, 'dropout_keep'))),
    Condition("queries_grow_over_64", "up to 64 queries, then more",
              lambda c, e: after(e, lambda p: 0 < z(p).lq <= 64 < z(c).lq)),
    Condition("bias_then_causal", "a bias, then causal alone in the same shape",
              lambda c, e: sources(c) == {'causal'} and ordinary(c) and after(e, lambda p: sources(p) == {'bias'} and
                  shape(p) == shape(c))),
    Condition("offset_other_same_shape", "another offset in the same shape",
              lambda c, e: m(c).has_positions and ordinary(c) and after(e, lambda p: m(p).has_positions and shape(p)
                  == shape(c) and set(offsets(p).tolist()) != set(offsets(c).tolist()))),
    Condition("decode_two_sequences_in_turn",
              "two sequences step by step in turn: a past that goes on from the call before the last",
              lambda c, e: has(c, 'past') and len(e) >= 2 and steps_on(e[-2], c) and has(e[-1], 'past') and not
                  steps_on(e[-1], c)),
    Condition("nan_then_ordinary", "NaN in a key or value somebody may attend to, then ordinary numbers",
              lambda c, e: ordinary(c) and finite(c) and after(e, lambda p: bad(p, 'keys', np.isnan, 'open') or bad(p,
                  'values', np.isnan, 'open'))),
    Condition("split_then_merged", "split heads, then merged ones",
              lambda c, e: has(c, 'bare') and not has(c, 'split') and ordinary(c) and after(e, lambda p: has(p,
                  'split'))),
    Condition("decode_new_sequence", "a past shorter than the one before, in a batch as large",
              lambda c, e: has(c, 'past') and after(e, lambda p: has(p, 'past') and z(p).past > z(c).past and z(p).b
                  == z(c).b)),
    Condition("growing_20", "20 calls in a row, each with one key more",
              lambda c, e: run_of(c, e, lambda a, b: z(b).lk == z(a).lk + 1) >= 20),
    Condition("past_same_length_other_numbers", "a past of the length of the one before, with other numbers",
              lambda c, e: has(c, 'past') and after(e, lambda p: z(p).past == z(c).past and not same(p, c,
                  'past_keys'))),
    Condition("large_then_ordinary", "scores above 700, then below 50, as many items and queries",
              lambda c, e: ordinary(c) and top(c) < 50 and after(e, lambda p: top(p) > 700 and shape(p)[:2] ==
                  shape(c)[:2])),
    Condition("then_fewer_keys", "a call with fewer keys than the one before",
              lambda c, e: after(e, lambda p: z(p).lk > z(c).lk > 0)),
    Condition("ordinary_then_size_0", "an ordinary call, then one of size 0",
              lambda c, e: not ordinary(c) and after(e, ordinary)),
    Condition("ordinary_then_empty", "an ordinary call, then one of the same shape with rows without a key",
              lambda c, e: bool(empty_rows(c).any()) and after(e, lambda p: shape(p) == shape(c) and not
                  bool(empty_rows(p).any()))),
    Condition("everything_larger", "more items, queries and keys than the one before",
              lambda c, e: after(e, lambda p: all(0 < a < b for a, b in zip(shape(p), shape(c), strict=True)))),
    Condition("equal_three_times", "the same call three times in a row",
              lambda c, e: len(e) >= 2 and all(same_inputs(p, c) for p in e[-2:]) and ordinary(c)),
    Condition("none_after_past", "no past after a call with one",
              lambda c, e: not has(c, 'past') and ordinary(c) and after(e, lambda p: has(p, 'past'))),
    Condition("layout_then_other", "contiguous keys, then transposed or reversed ones of the same shape",
              lambda c, e: after(e, lambda p: contiguous(arr(p, 'keys')) and arr(p, 'keys').shape == arr(c,
                  'keys').shape) and (turned(arr(c, 'keys')) or flipped(arr(c, 'keys')))),
    Condition("after_20_calls", "more than 20 calls of one layer", lambda c, e: len(e) > 20),
    Condition("size_0_then_ordinary", "a call of size 0, then an ordinary one",
              lambda c, e: ordinary(c) and after(e, lambda p: not ordinary(p))),
    Condition("gradients_ten_times", "gradients ten times in a row",
              lambda c, e: run_of(c, e, lambda a, b: a.gradients and b.gradients) >= 10),
    Condition("weights_changed", "weights that have changed since the call before",
              lambda c, e: after(e, lambda p: any(not same(p, c, f'weights:{n}') for n in c.weights))),
    Condition("lens_of_other_integers", "lengths in narrower integers, then in wider ones",
              lambda c, e: has(c, 'lens') and after(e, lambda p: has(p, 'lens') and
                  p.inputs.mask.valid_lens.dtype.itemsize < c.inputs.mask.valid_lens.dtype.itemsize)),
    Condition("step_then_prompt", "a single query, then several",
              lambda c, e: z(c).lq > 1 and after(e, lambda p: z(p).lq == 1)),
    Condition("same_shape_other_numbers", "the shape of the call before, other numbers",
              lambda c, e: ordinary(c) and after(e, lambda p: shape(p) == shape(c) and not same(p, c, 'queries',
                  'keys', 'values'))),
    Condition("causal_then_allowed", "causal, then `allowed` alone in the same shape",
              lambda c, e: sources(c) == {'allowed'} and ordinary(c) and after(e, lambda p: sources(p) == {'causal'}
                  and shape(p) == shape(c))),
    Condition("nine_shapes", "a ninth shape of one layer, or a later one",
              lambda c, e: len({shape(p) for p in (*e, c)}) >= 9),
    Condition("training_evaluation_training", "a training step, an evaluation, a training step",
              lambda c, e: c.training and after(e, lambda p: not p.training) and once(e, lambda p: p.training)),
    Condition("after_20_same_then_other", "20 calls of one shape, then another shape",
              lambda c, e: len(e) >= 20 and len({shape(p) for p in e[-20:]}) == 1 and shape(c) != shape(e[-1]) and
                  ordinary(c)),
    Condition("one_key_more_unrelated", "one key more than the call before, all of them other numbers",
              lambda c, e: after(e, lambda p: z(p).b == z(c).b > 0 and z(p).new + 1 == z(c).new > 1 and not
                  shares_rows(p, c))),
]
