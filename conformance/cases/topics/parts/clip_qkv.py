"""Cases of clipped projections: beyond the limit, within it and at it exactly; beside norms and rotary positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.case import Case, Rng
from conformance.cases.parts import case, poison_past
from conformance.cases.problem import Problem
from conformance.cases.topics.parts.rotary import placed
from mha_core import AttentionConfig

OF_HEADS = "without projections the widths are those of the heads"


def at_the_limit(rng: Rng, problem: Problem) -> Problem:
    """A third of the numbers of queries, keys and values are exactly +-c."""
    limit = problem.config.clip_qkv
    assert limit is not None

    def given(x: np.ndarray) -> np.ndarray:
        return np.where(rng.random(x.shape) < 0.33, np.copysign(limit, x), x)

    i = problem.inputs
    inputs = replace(i, queries=given(i.queries), keys=given(i.keys), values=given(i.values))
    return replace(problem, inputs=inputs)


def cases() -> list[Case]:
    """The cases of this topic, in the order of `mha cases`.

    About half of the numbers are beyond the limit, in every head; biases move them over it.
    """
    turning: dict[str, Any] = {"width": 6, "base": 20.0}
    return [
        case(
            "clip-qkv",
            "no limit, one for positive numbers alone, for queries and keys alone, in front of the bias, of the scores",
            num_heads=6,
            num_kv_heads=3,
            clip_qkv=0.8,
            softcap=2.0,
            valid_lens=[4, 6],
        ),
        case(
            "clip-qkv-rotary",
            "the limit behind the norm, behind the rotation or on the past, a gradient that passes beyond it",
            num_heads=6,
            num_kv_heads=2,
            head_dim=10,
            rotary=turning,
            query_key_norm={"weight": "per_head", "eps": 0.4},
            clip_qkv=0.6,
            batch=4,
            key_len=15,
            past_len=8,
            positions=placed,
            valid_lens=[15, 11, 6, 14],
            allowed=np.array([True, False, True, True, True])[:, None],
            change=poison_past,
        ),
        case(
            "clip-qkv-at-the-limit",
            "a gradient that does not pass, or passes by half, at exactly the limit; heads that come as they are",
            AttentionConfig(
                *(66, 6),
                num_kv_heads=2,
                head_dim=11,
                value_head_dim=13,
                projections=False,
                clip_qkv=0.5,
            ),
            batch=3,
            split=True,
            key_len=9,
            same_sizes=OF_HEADS,
            change=at_the_limit,
        ),
    ]
