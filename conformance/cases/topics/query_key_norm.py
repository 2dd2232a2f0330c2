"""Cases of the query-key norm: kinds, scopes, weights, and its order beside rotary positions."""

from __future__ import annotations

from conformance.cases.parts import OF_HEADS, bare_case, case
from conformance.cases.topics.rotary import LLAMA3, PADDED_PAST, TURNING, YARN, far_apart, given_tables
from mha_core import AttentionConfig

CASES = [
    case(
        "query-key-norm",
        "no norm, eps outside of the root, the weight of queries for keys, a mean over other axes",
        num_heads=6,
        num_kv_heads=3,
        query_key_norm={"eps": 0.3},
        softcap=2.0,
        batch=7,
        valid_lens=[4, 6, 7, 2, 5, 1, 3],
        same_sizes="as many items as keys: lengths can be taken for those of keys",
    ),
    case(
        "query-key-norm-before",
        "the norm behind the rotation, its weights of other heads, a past that is normed or turned again",
        num_heads=6,
        num_kv_heads=2,
        head_dim=10,
        rotary=TURNING,
        query_key_norm={"weight": "per_head", "eps": 0.4},
        **PADDED_PAST,
    ),
    case(
        "query-key-norm-after",
        "the norm in front of the rotation, 1 + weight read as the weight, the product in another order",
        num_heads=4,
        num_kv_heads=2,
        head_dim=10,
        rotary={**TURNING, "interleaved": True, "start": "last"},
        query_key_norm={"order": "after", "offset": 1, "eps": 0.4},
        positions=given_tables,
        valid_lens=[7, 4],
    ),
    case(
        "query-key-norm-layer",
        "a mean that is not taken away, a bias that is lost, beside channels that turn",
        num_heads=6,
        num_kv_heads=3,
        rotary={"width": 8, "base": 5000.0, "rule": LLAMA3},
        query_key_norm={"kind": "layer", "scope": "all", "weight": "per_head", "bias": True, "eps": 0.2},
        key_len=15,
        past_len=8,
        positions=far_apart,
        causal=True,
        query_offset=8,
    ),
    case(
        "query-key-norm-all",
        "a mean over each head where it is over all of a token",
        num_heads=6,
        num_kv_heads=3,
        head_dim=8,
        rotary={"base": 5000.0, "rule": YARN},
        query_key_norm={"scope": "all", "order": "after", "weight": "per_head", "offset": 1, "eps": 0.2},
        query_len=9,
        positions=far_apart,
    ),
    bare_case(
        "query-key-norm-bare",
        "a norm without weights that is left out, tiny rows that are divided by their own size",
        query_key_norm={"kind": "layer", "weight": "none", "eps": 1e-4},
        batch=3,
        query_len=3,
        split=True,
        key_len=9,
        valid_lens=[9, 4, 6],
        input_scale=0.01,
        same_sizes="as many items as queries: lengths can be taken for those of queries",
    ),
    case(
        "query-key-norm-half-precision",
        "wrong gradients of its weights and biases, for which the bounds of half precision leave room elsewhere",
        AttentionConfig(
            *(8, 2),
            head_dim=4,
            value_head_dim=7,
            projections=False,
            scale=0.25,
            rotary={"base": 20.0},
            query_key_norm={"kind": "layer", "weight": "per_head", "bias": True, "eps": 0.2},
        ),
        batch=1,
        query_len=1,
        key_len=3,
        weight_scale=0.3,
        same_sizes=OF_HEADS,
    ),
]
"""eps is of the size of the mean square: then it shows where it stands."""
