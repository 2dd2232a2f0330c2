"""The table of cases. Sizes are pairwise different unless a case says why not."""

from __future__ import annotations

from functools import cache

import numpy as np

from conformance.cases.blocks import block_cases
from conformance.cases.case import Case
from conformance.cases.decoding import decoding_cases
from conformance.cases.parts import (
    SQUARE,
    SQUARE_REASON,
    allowed_per_head,
    allowed_per_item,
    bias_per_head,
    bias_that_excludes,
    every_source,
    fixed,
    infinity_in_open_value,
    lone_open_key,
    loud_item,
    nan_in_open_key,
    poison_padding,
    prime_config,
    same_signs,
    shifted_scores,
    views,
)
from conformance.cases.select import select_by_id
from conformance.cases.square import square_cases
from conformance.cases.trained import trained_cases
from mha_core import AttentionConfig


def _sizes_and_heads() -> list[Case]:
    return [
        Case(
            "ragged-square",
            "most mistakes: padded queries, an empty item, wrong axes that equal sizes let through",
            SQUARE,
            batch=5,
            query_len=7,
            mask=fixed(valid_lens=np.array([0, 1, 3, 6, 7])),
            same_sizes=SQUARE_REASON,
        ),
        Case("prime", "a wrong axis, size or transposition anywhere", prime_config()),
        Case("no-bias", "a bias that is added though there is none", prime_config(bias=False)),
        Case(
            "no-key-bias",
            "one bias flag for all projections",
            prime_config(bias={"q_proj": True, "v_proj": True, "out_proj": True}),
        ),
        Case(
            "grouped-heads",
            "key heads tiled instead of repeated; group gradients not summed",
            prime_config(num_heads=6, num_kv_heads=3),
            mask=fixed(valid_lens=np.array([4, 6])),
        ),
        Case("multi-query", "one key head for all query heads", prime_config(num_heads=6, num_kv_heads=1)),
    ]


def _masks() -> list[Case]:
    return [
        Case(
            "valid-lens",
            "lengths off by one, ignored, or counted from the right",
            prime_config(),
            mask=fixed(valid_lens=np.array([3, 6])),
        ),
        Case(
            "valid-lens-per-query",
            "(B, Lq) lengths read as (B,)",
            prime_config(),
            mask=fixed(valid_lens=np.array([[1, 2, 3, 4, 5], [7, 0, 6, 2, 3]])),
        ),
        Case("causal", "the diagonal off by one, keys from the future", prime_config(), mask=fixed(causal=True)),
        Case(
            "causal-more-queries",
            "top-left alignment read as bottom-right when Lq > Lk",
            prime_config(),
            query_len=8,
            key_len=5,
            mask=fixed(causal=True),
        ),
        Case(
            "causal-bottom-right",
            "query_offset ignored, or with the wrong sign",
            prime_config(),
            mask=fixed(causal=True, query_offset=2),
        ),
        Case(
            "causal-bottom-right-more-queries",
            "rows before the first key, which have nothing to attend to",
            prime_config(),
            query_len=8,
            key_len=5,
            mask=fixed(causal=True, query_offset=-3),
        ),
        Case(
            "causal-padding",
            "one of two masks dropped when both are given",
            prime_config(),
            mask=fixed(valid_lens=np.array([2, 4]), causal=True),
        ),
        Case(
            "causal-offset-per-item",
            "one query_offset applied to the whole batch",
            prime_config(),
            mask=fixed(causal=True, query_offset=np.array([1, -2])),
        ),
        Case("window", "a window off by one, or one-sided", prime_config(), mask=fixed(window=(2, 1))),
        Case(
            "window-causal",
            "a window that forgets the offset, or replaces the causal mask",
            prime_config(),
            mask=fixed(window=(1, None), causal=True, query_offset=2),
        ),
        Case("allowed", "polarity: True read as masked", prime_config(), mask=allowed_per_item),
        Case("allowed-per-head", "a mask per head shared by all heads", prime_config(), mask=allowed_per_head),
        Case(
            "bias-per-head", "an additive bias scaled, dropped, or shared by heads", prime_config(), mask=bias_per_head
        ),
        Case(
            "bias-excludes",
            "-inf in the bias that turns into NaN, forward or backward",
            prime_config(),
            mask=bias_that_excludes,
        ),
        Case("every-source", "sources that are not combined with AND", prime_config(), mask=every_source),
    ]


def _scores_and_dropout() -> list[Case]:
    return [
        Case(
            "dropout",
            "weights dropped without rescaling, or shared by heads",
            prime_config(dropout=0.3),
            batch=4,
            mask=fixed(valid_lens=np.array([3, 7, 5, 0])),
            dropout=True,
        ),
        Case(
            "dropout-off",
            "dropout that acts, or rescales, outside training",
            prime_config(dropout=0.3),
            mask=fixed(valid_lens=np.array([3, 7])),
        ),
        Case("dot", "an unscaled score that is scaled all the same", prime_config(score="dot")),
        Case("scale", "a given scale ignored", prime_config(scale=0.5)),
        Case(
            "additive",
            "the additive score's matrices exchanged, or its tanh left out",
            prime_config(score="additive", score_dim=8),
            mask=fixed(valid_lens=np.array([5, 0])),
        ),
        Case(
            "additive-grouped",
            "grouped heads under an additive score",
            prime_config(num_heads=6, num_kv_heads=3, score="additive", score_dim=8),
        ),
    ]


def _magnitudes() -> list[Case]:
    return [
        Case("weights-x4", "a softmax that loses precision at large scores", prime_config(), weight_scale=4.0),
        Case(
            "weights-x20-inputs-x3",
            "a softmax without its maximum subtracted: exp overflows",
            prime_config(),
            weight_scale=20.0,
            input_scale=3.0,
        ),
        Case("inputs-x0.03", "an absolute constant where a relative one belongs", prime_config(), input_scale=0.03),
        Case(
            "denormal-inputs",
            "numbers below the smallest normal one of float32, which may be flushed to 0 but not blown up",
            prime_config(),
            input_scale=1e-39,
        ),
        Case("scores-shifted", "a maximum clamped at 0", prime_config(), mask=shifted_scores),
        Case("lone-open-key", "a finite fill value instead of exclusion", prime_config(), mask=lone_open_key),
        Case(
            "one-loud-item",
            "a maximum taken over the whole tensor instead of each row",
            prime_config(),
            batch=4,
            change=loud_item,
        ),
        Case(
            "long",
            "errors that pile up in long sums",
            AttentionConfig(11, 1, bias=True, value_head_dim=13, query_dim=17, key_dim=19, value_dim=23, output_dim=29),
            query_len=3,
            key_len=4096,
            change=same_signs,
            expensive=True,
        ),
    ]


def _edges() -> list[Case]:
    tiny = "a size of 1 or 0 is what this case is about"
    return [
        Case("one-item", "a batch axis squeezed away", prime_config(), batch=1, mask=fixed(causal=True)),
        Case("one-head", "a head axis squeezed away", prime_config(num_heads=1, bias=True), mask=fixed(causal=True)),
        Case("one-query", "a query axis squeezed away", prime_config(), query_len=1, mask=allowed_per_head),
        Case(
            "one-key",
            "a key axis squeezed away; a softmax over one key is 1",
            prime_config(),
            key_len=1,
            mask=fixed(valid_lens=np.array([1, 0])),
        ),
        Case("head-dim-1", "a channel axis squeezed away", prime_config(head_dim=1), mask=fixed(causal=True)),
        Case("no-items", "B = 0", prime_config(), batch=0, mask=fixed(causal=True), trivial_mask=tiny),
        Case("no-queries", "Lq = 0", prime_config(), query_len=0, mask=fixed(causal=True), trivial_mask=tiny),
        Case(
            "no-keys",
            "Lk = 0: every row is empty",
            prime_config(),
            key_len=0,
            mask=fixed(causal=True),
            trivial_mask=tiny,
        ),
        Case("views", "strides ignored, or a caller's array written to", prime_config(), change=views),
        Case(
            "nan-in-padding",
            "padding that leaks: 0 * NaN is NaN",
            prime_config(),
            mask=fixed(valid_lens=np.array([4, 0])),
            change=poison_padding,
        ),
        Case(
            "nan-in-disallowed",
            "padding given through allowed instead of valid_lens",
            prime_config(),
            mask=fixed(allowed=np.array([True, True, False, True, True, False, True]), causal=True),
            change=poison_padding,
        ),
        Case(
            "nan-in-open-key",
            "a NaN hidden by nan_to_num, or spread to other items",
            prime_config(),
            mask=fixed(causal=True),
            change=nan_in_open_key,
        ),
        Case(
            "infinity-in-open-value",
            "an infinity clipped to a large number",
            prime_config(),
            mask=fixed(causal=True),
            change=infinity_in_open_value,
        ),
    ]


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case: trained weights first, then by topic."""
    return (
        *trained_cases(),
        *_sizes_and_heads(),
        *_masks(),
        *_scores_and_dropout(),
        *square_cases(),
        *_magnitudes(),
        *_edges(),
        *decoding_cases(),
        *block_cases(),
    )


def select(patterns: tuple[str, ...]) -> list[Case]:
    """The cases whose id matches one of the patterns (shell wildcards); all of them if there is none.

    >>> [case.id for case in select(("one-*y",))]
    ['one-query', 'one-key']
    >>> select(("primes",))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: case 'primes' is not known; `mha cases` lists them
    """
    return select_by_id(all_cases(), patterns, "case {} is not known; `mha cases` lists them")
