"""Cases with one width for all inputs: for layers that need it, and for bugs that other sizes turn into an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.case import Case, Rng
from conformance.cases.parts import (
    SQUARE,
    SQUARE_REASON,
    MakeMask,
    allowed_per_head,
    bias_per_head,
    bias_that_excludes,
    fixed,
    poison_padding,
)
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionMask


def cases() -> list[Case]:
    return [*_twins(), *_for_other_layers()]


def one_tensor(rng: Rng, problem: Problem) -> Problem:
    """The problem with one array as queries, keys and values: self-attention."""
    x = problem.inputs.queries
    return replace(problem, inputs=replace(problem.inputs, keys=x, values=x))


def _twins() -> list[Case]:
    """Cases like those of other files, with one width for all inputs."""
    twins: list[tuple[str, str, dict[str, Any], MakeMask | None]] = [
        ("no-bias", "a bias where there is none", {"bias": False}, None),
        ("lens-per-query", "lengths of another axis", {}, lens_per_query_square),
        ("causal", "a causal mask of the other triangle", {}, fixed(causal=True)),
        ("window", "the sides of a window exchanged", {}, fixed(window=(2, 1), query_offset=1)),
        ("allowed-per-head", "a mask transposed", {}, allowed_per_head),
        ("bias-per-head", "a bias transposed", {}, bias_per_head),
        ("dot", "an unscaled score that is scaled", {"score": "dot"}, None),
        ("scale", "a given scale ignored", {"scale": 0.5}, None),
        ("grouped", "key heads tiled instead of repeated", {"num_heads": 6, "num_kv_heads": 3, "head_dim": 13}, None),
        ("additive", "the additive score's matrices exchanged", {"score": "additive", "score_dim": 13}, None),
    ]
    cases = [
        Case(
            f"square-{name}",
            catches,
            replace(SQUARE, **sizes),
            batch=4,
            query_len=7,
            mask=mask,
            same_sizes=SQUARE_REASON,
        )
        for name, catches, sizes, mask in twins
    ]
    dropped = replace(SQUARE, dropout=0.3)
    mask = fixed(valid_lens=np.array([3, 7, 5, 0]))
    return [
        *cases,
        Case(
            "square-dropout",
            "a keep-mask transposed",
            dropped,
            batch=4,
            query_len=7,
            mask=mask,
            dropout=True,
            same_sizes=SQUARE_REASON,
        ),
        Case(
            "square-dropout-off",
            "dropout that acts outside training",
            dropped,
            batch=4,
            query_len=7,
            mask=mask,
            same_sizes=SQUARE_REASON,
        ),
    ]


def lens_per_query_square(rng: Rng, case: Case) -> AttentionMask:
    return AttentionMask(valid_lens=rng.integers(case.key_len + 1, size=(case.batch, case.query_len)))


def _for_other_layers() -> list[Case]:
    """Cases that frameworks' own layers can express: one width, and a bias in every projection."""
    lens = np.array([2, 4, 7, 1])
    return [
        Case(
            "square-self-attention",
            "a fused path that only one tensor for queries, keys and values takes; its empty rows",
            AttentionConfig(44, 4, bias=True),
            batch=5,
            query_len=7,
            mask=fixed(valid_lens=np.array([0, 1, 3, 6, 7])),
            change=one_tensor,
            same_sizes=SQUARE_REASON,
        ),
        Case(
            "square-widths",
            "key and value widths exchanged, or taken for the embedding's",
            AttentionConfig(39, 3, key_dim=19, value_dim=23, bias=True),
            mask=fixed(valid_lens=np.array([3, 6])),
            same_sizes=SQUARE_REASON,
        ),
        *(
            Case(id, catches, SQUARE, batch=4, query_len=7, mask=mask, change=change, same_sizes=SQUARE_REASON)
            for id, catches, mask, change in (
                (
                    "square-causal-padding",
                    "one of two masks dropped when both are given",
                    fixed(valid_lens=lens, causal=True),
                    None,
                ),
                ("square-bias-excludes", "-inf in the bias that turns into NaN", bias_that_excludes, None),
                ("square-nan-in-padding", "padding that leaks: 0 * NaN is NaN", fixed(valid_lens=lens), poison_padding),
            )
        ),
    ]
