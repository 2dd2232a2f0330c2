"""Cases with one width for all inputs: for layers that need it, and for bugs that other sizes turn into an error."""

from typing import Any

import numpy as np

from conformance.cases.case import Case, Rng
from conformance.cases.parts import (
    SQUARE_REASON,
    allowed_per_head,
    bias_per_head,
    bias_that_excludes,
    case,
    number_in_open,
    poison_padding,
    square_case,
)
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionMask

LENS = [2, 4, 7, 1]


def one_tensor(rng: Rng, problem: Problem) -> Problem:
    """Return the problem with one array as queries, keys and values: self-attention."""
    return problem.with_inputs(keys=problem.inputs.queries, values=problem.inputs.queries)


def lens_per_query_square(rng: Rng, case: Case) -> AttentionMask:
    return AttentionMask(valid_lens=rng.integers(case.key_len + 1, size=(case.batch, case.query_len)))


DROPPED: dict[str, Any] = {"dropout": 0.3, "valid_lens": [3, 7, 5, 0]}

CASES = [
    square_case("square-no-bias", "a bias where there is none", bias=False),
    square_case("square-lens-per-query", "lengths of another axis", mask=lens_per_query_square),
    square_case("square-causal", "a causal mask of the other triangle", causal=True),
    square_case("square-window", "the sides of a window exchanged", window=(2, 1), query_offset=1),
    square_case("square-allowed-per-head", "a mask transposed", mask=allowed_per_head),
    square_case("square-bias-per-head", "a bias transposed", mask=bias_per_head),
    square_case("square-dot", "an unscaled score that is scaled", score="dot"),
    square_case("square-scale", "a given scale ignored", scale=0.5),
    square_case("square-grouped", "key heads tiled instead of repeated", num_heads=6, num_kv_heads=3, head_dim=13),
    square_case("square-additive", "the additive score's matrices exchanged", score="additive", score_dim=13),
    square_case("square-dropout", "a keep-mask transposed", **DROPPED, training=True),
    square_case("square-dropout-off", "dropout that acts outside training", **DROPPED),
    square_case(
        "square-self-attention",
        "a fused path that only one tensor for queries, keys and values takes; its empty rows",
        AttentionConfig(44, 4, bias=True),
        batch=5,
        valid_lens=[0, 1, 3, 6, 7],
        change=one_tensor,
    ),
    case(
        "square-widths",
        "key and value widths exchanged, or taken for the embedding's",
        AttentionConfig(39, 3, key_dim=19, value_dim=23, bias=True),
        valid_lens=[3, 6],
        same_sizes=SQUARE_REASON,
    ),
    square_case("square-causal-padding", "one of two masks dropped when both are given", valid_lens=LENS, causal=True),
    square_case("square-bias-excludes", "-inf in the bias that turns into NaN", mask=bias_that_excludes),
    square_case("square-nan-in-padding", "padding that leaks: 0 * NaN is NaN", valid_lens=LENS, change=poison_padding),
    square_case(
        "square-nan-in-query",
        "a NaN hidden by nan_to_num in self-attention",
        trivial_mask="layers give NaN to the excluded keys of a row that is NaN",
        change=number_in_open("queries", np.nan),
    ),
]
"""Cases like those of other files, with one width; then those that only frameworks' own layers need."""
