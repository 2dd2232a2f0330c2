"""Cases of value norm and value scale: grouped heads, a cache, limits of projections, and tiny rows."""

from __future__ import annotations

from conformance.cases.parts import bare_case, case
from conformance.cases.topics.parts.rotary import PADDED_PAST, TURNING

CASES = [
    case(
        "value-norm",
        "no norm, eps outside of the root, a mean that is taken away, a mean over all heads, keys normed too",
        num_heads=6,
        num_kv_heads=3,
        value_norm_eps=0.3,
        softcap=2.0,
        valid_lens=[4, 6],
    ),
    case(
        "value-norm-past",
        "a past that is normed or scaled again, the norm behind the scale, or in front of the limit",
        num_heads=6,
        num_kv_heads=2,
        head_dim=10,
        rotary=TURNING,
        query_key_norm={"weight": "per_head", "eps": 0.4},
        clip_qkv=0.6,
        value_norm_eps=0.2,
        value_scale=0.7,
        **PADDED_PAST,
    ),
    case(
        "value-scale",
        "no scale, one on weights or on scores, on keys too, or left out of the gradient",
        num_heads=4,
        num_kv_heads=2,
        head_dim=10,
        rotary={**TURNING, "interleaved": True, "start": "last"},
        value_scale=-0.6,
        key_len=14,
        past_len=6,
        causal=True,
        query_offset=6,
    ),
    bare_case(
        "value-norm-bare",
        "tiny rows that are divided by their own size, heads that come as they are",
        value_norm_eps=1e-4,
        value_scale=1.5,
        batch=3,
        split=True,
        key_len=9,
        input_scale=0.01,
    ),
]
"""eps is of the size of the mean square: then it shows where it stands."""
