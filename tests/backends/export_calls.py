"""Layers and calls of every form, for programs that are made once and run with other sizes."""

import numpy as np

WIDTH, HEADS, GROUPS = 24, 4, 2

LAYERS = {
    "lengths": ({"bias": True}, ("valid_lens",), {}),
    "grouped and normed": ({"num_kv_heads": GROUPS, "query_key_norm": "rms"}, (), {"causal": True}),
    "rotary": ({"rotary": {"base": 50.0}}, (), {"causal": True, "query_offset": 2, "window": (3, 0)}),
    "rotary up to": (
        {"rotary": {"max_positions": 64, "interleaved": True}},
        ("positions",),
        {"return_weights": True},
    ),
    "capped": ({"softcap": 5.0}, ("bias",), {}),
    "additive": ({"score": "additive", "score_dim": 10}, ("allowed",), {}),
    "decoding": (
        {"num_kv_heads": GROUPS, "rotary": {"rule": {"rope_type": "linear", "factor": 2.0}}},
        ("past_keys", "past_values"),
        {"causal": True, "query_offset": 4, "return_present": True},
    ),
}
"""Name -> options of a layer, the arrays of its calls, and what else they are given."""


def arguments(name, sizes):
    """The arrays of a call of B, Lq, Lk and Lp, by name."""
    batch, query_len, key_len, past_len = sizes
    rng = np.random.default_rng(batch)
    past = (batch, GROUPS, past_len, WIDTH // HEADS)
    arrays = {
        "queries": rng.normal(size=(batch, query_len, WIDTH)),
        "keys": rng.normal(size=(batch, key_len, WIDTH)),
        "values": rng.normal(size=(batch, key_len, WIDTH)),
        "valid_lens": rng.integers(1, key_len + 1, batch),
        "bias": rng.normal(size=(batch, HEADS, query_len, key_len)),
        "allowed": rng.random((batch, 1, query_len, key_len)) > 0.4,
        "positions": (rng.integers(0, 60, query_len), rng.integers(0, 60, (batch, key_len))),
        "past_keys": rng.normal(size=past),
        "past_values": rng.normal(size=past),
    }
    return {key: arrays[key] for key in ("queries", "keys", "values", *LAYERS[name][1])}
