"""Random problems of ordinary sizes with every feature of the definition, none of which a diagnosis has seen."""

import numpy as np

from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights
from mha_core.heads import split_heads


def fresh(number, *, name="fresh"):
    """The problem of this number; equal numbers give equal problems."""
    rng = np.random.default_rng([*name.encode(), number])
    config = _config(rng)
    batch, query_len, key_len = int(rng.integers(2, 4)), int(rng.choice([1, 4, 5, 6])), int(rng.choice([5, 6, 7, 9]))
    if rng.random() < 0.3:
        query_len = key_len
    past_len = int(rng.integers(1, key_len)) if rng.random() < 0.35 else 0
    shape = batch, config.num_heads, query_len, key_len
    shapes = config.head_shapes
    past = {
        f"past_{what}": rng.normal(size=(batch, heads, past_len, width))
        for what, (heads, width) in (("keys", shapes.keys), ("values", shapes.values))
        if past_len
    }
    given = {
        "queries": rng.normal(size=(batch, query_len, config.query_dim)),
        "keys": rng.normal(size=(batch, key_len - past_len, config.key_dim)),
        "values": rng.normal(size=(batch, key_len - past_len, config.value_dim)),
    }
    if not config.projections and rng.random() < 0.5:
        given = {name: split_heads(x, getattr(shapes, name)[0]) for name, x in given.items()}
    inputs = AttentionInputs(
        **given,
        **past,
        mask=_mask(rng, shape, past_len),
        dropout_keep=rng.random(shape) >= config.dropout if config.dropout else None,
    )
    weights = init_weights(config, seed=int(rng.integers(2**31)), bias_scale=1.0)
    return Problem(config, weights, inputs)


def _config(rng):
    heads = int(rng.choice([2, 3, 4, 6]))
    head_dim = int(rng.choice([4, 5, 6, 8]))
    score = str(rng.choice(["scaled_dot", "dot", "additive"], p=[0.8, 0.1, 0.1]))
    options = {
        "head_dim": head_dim,
        "score": score,
        "scale": float(rng.choice([0.3, 0.7, 1.5])) if score == "scaled_dot" and rng.random() < 0.25 else None,
        "softcap": float(rng.choice([0.8, 1.5, 3.0])) if rng.random() < 0.35 else None,
        "dropout": float(rng.choice([0.2, 0.4])) if rng.random() < 0.25 else 0.0,
    }
    if rng.random() < 0.1:
        return AttentionConfig(heads * head_dim, heads, projections=False, **options)
    bias = {name: bool(rng.random() < 0.7) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    if rng.random() < 0.35:  # one width, as most models have it
        bias = bool(rng.random() < 0.7)
        return AttentionConfig(heads * head_dim, heads, bias=bias, **options)
    groups = [count for count in range(1, heads + 1) if heads % count == 0]
    widths = {name: int(rng.integers(5, 14)) for name in ("query_dim", "key_dim", "value_dim", "output_dim")}
    if rng.random() < 0.5:
        widths = dict.fromkeys(widths, 12)
    return AttentionConfig(
        12,
        heads,
        num_kv_heads=int(rng.choice(groups)),
        value_head_dim=int(rng.choice([3, 4, 7])),
        bias=bias,
        **widths,
        **options,
    )


def _mask(rng, shape, past_len):
    batch, heads, query_len, key_len = shape
    options = {"causal": bool(rng.random() < 0.45)}
    if rng.random() < 0.4:
        options["window"] = (int(rng.integers(0, 4)), [None, 0, 1, 2][rng.integers(4)])
    if past_len:
        options["query_offset"] = past_len
    elif rng.random() < 0.3:
        options["query_offset"] = key_len - query_len if rng.random() < 0.5 else rng.integers(-1, 4, size=batch)
    if rng.random() < 0.45:
        per_query = rng.random() < 0.3
        options["valid_lens"] = rng.integers(
            0 if rng.random() < 0.3 else 2, key_len + 1, (batch, query_len)[: 1 + per_query]
        )
    if rng.random() < 0.3:
        axes = [(batch, heads, query_len, key_len), (batch, 1, 1, key_len), (heads, query_len, key_len)][
            rng.integers(3)
        ]
        options["allowed"] = rng.random(axes) < 0.8
    if rng.random() < 0.4:
        axes = [(batch, heads, query_len, key_len), (heads, 1, key_len), (query_len, key_len)][rng.integers(3)]
        bias = rng.normal(size=axes)
        options["bias"] = np.where(rng.random(axes) < 0.15, -np.inf, bias) if rng.random() < 0.4 else bias
    return AttentionMask(**options)
