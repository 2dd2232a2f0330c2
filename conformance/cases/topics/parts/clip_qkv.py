"""Cases of clipped projections: beyond the limit, within it and at it exactly; beside norms and rotary positions."""

from __future__ import annotations

import numpy as np

from conformance.cases.case import Rng
from conformance.cases.parts import bare_case, case
from conformance.cases.problem import Problem
from conformance.cases.topics.parts.rotary import PADDED_PAST, TURNING


def at_the_limit(rng: Rng, problem: Problem) -> Problem:
    """A third of the numbers of queries, keys and values are exactly +-c."""
    limit = problem.config.clip_qkv
    assert limit is not None

    def given(x: np.ndarray) -> np.ndarray:
        return np.where(rng.random(x.shape) < 0.33, np.copysign(limit, x), x)

    i = problem.inputs
    return problem.with_inputs(queries=given(i.queries), keys=given(i.keys), values=given(i.values))


CASES = [
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
        rotary=TURNING,
        query_key_norm={"weight": "per_head", "eps": 0.4},
        clip_qkv=0.6,
        **PADDED_PAST,
    ),
    bare_case(
        "clip-qkv-at-the-limit",
        "a gradient that does not pass, or passes by half, at exactly the limit; heads that come as they are",
        clip_qkv=0.5,
        batch=3,
        split=True,
        key_len=9,
        change=at_the_limit,
    ),
]
"""About half of the numbers are beyond the limit, in every head; biases move them over it."""
