"""Cases of the query scale by position: both rules, given factors, and where queries are taken to stand."""

from __future__ import annotations

from typing import Any

from conformance.cases.case import Case, Rng
from conformance.cases.parts import bare_case, case, poison_past
from conformance.cases.topics.parts.rotary import placed
from mha_core import RotaryInputs


def given_factors(rng: Rng, case: Case) -> RotaryInputs:
    """A factor of each query of each item, from -1.5 to 2.5; one is exactly 1."""
    factors = rng.uniform(-1.5, 2.5, size=(case.batch, case.query_len))
    factors[:, 0] = 1.0
    return RotaryInputs(query_scale=factors)


LLAMA4: dict[str, Any] = {"rule": "llama4", "beta": 0.7, "length": 3}
MINISTRAL3: dict[str, Any] = {"rule": "ministral3", "beta": 0.4, "length": 4}

CASES = [
    case(
        "query-scale",
        "no scale, one of keys, an offset that is ignored, a position without the 1 that Llama 4 adds",
        query_scale=LLAMA4,
        causal=True,
        query_offset=[3, 1],
    ),
    case(
        "query-scale-positions",
        "positions with gaps that are counted instead, a position plus 1 where Ministral 3 adds nothing",
        num_heads=6,
        num_kv_heads=2,
        head_dim=10,
        rotary={"width": 6, "base": 20.0},
        query_key_norm={"order": "after", "eps": 0.4},
        query_scale=MINISTRAL3,
        batch=4,
        key_len=15,
        past_len=7,
        positions=placed,
        valid_lens=[15, 11, 6, 14],
        change=poison_past,
    ),
    case(
        "query-scale-past",
        "a scale of keys or of the past, one before the norm, jumps that are one position late behind a cache",
        num_heads=4,
        num_kv_heads=2,
        head_dim=11,
        query_key_norm={"kind": "layer", "eps": 0.2},
        query_scale={**LLAMA4, "beta": -0.3},
        batch=3,
        key_len=16,
        past_len=9,
        causal=True,
        query_offset=[9, 8, 6],
    ),
    case(
        "query-scale-given",
        "given factors that are ignored, or taken for those of one item; a scale behind the softcap and the bias",
        query_scale=True,
        positions=given_factors,
        softcap=2.0,
        valid_lens=[6, 4],
    ),
    bare_case(
        "query-scale-bare",
        "heads that come as they are, and are not scaled; the additive score's queries without their factors",
        embed_dim=72,
        head_dim=12,
        score="additive",
        score_dim=5,
        query_scale={**MINISTRAL3, "length": 2},
        batch=3,
        query_len=4,
        key_len=8,
        split=True,
        causal=True,
        query_offset=1,
    ),
]
