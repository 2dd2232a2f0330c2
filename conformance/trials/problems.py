"""Random problems of the trials, in which faults must act and claims are judged.

They have no size of 0 and no NaN, and lengths leave every query a key. Features that a fault needs are asked for; the
others are drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.cases.problem import Problem
from conformance.trials.faults import Dice
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights

FEATURES = {
    "additive": 0.15,
    "dot": 0.1,
    "scale": 0.3,
    "softcap": 0.25,
    "dropout": 0.3,
    "past": 0.2,
    "lens": 0.35,
    "lens per query": 0.2,
    "allowed": 0.25,
    "bias": 0.3,
    "bias excludes": 0.4,
    "causal": 0.3,
    "window": 0.25,
    "offset": 0.6,
    "grouped": 0.4,
    "biases": 0.7,
    "square": 0.15,
    "long": 0.15,
    "bare": 0.05,
}
"""Feature -> the share of problems that have it, unless it is asked for."""


def draw_problem(
    dice: Dice,
    needs: tuple[str, ...] = (),
    config: AttentionConfig | None = None,
    sizes: tuple[tuple[int, ...] | None, ...] = (None, None, None),
) -> Problem:
    """One problem.

    Args:
        dice: what it is drawn with.
        needs: features that it must have: keys of FEATURES, or "scaled", "not grouped", "not additive",
            "as many queries".
        config: its config; features that this config rules out are left out. Default: drawn.
        sizes: the batches, query lengths and key lengths to choose from; None for any.

    >>> problem = draw_problem(Dice("example"), ("lens", "past"))
    >>> problem.inputs.mask.valid_lens is not None, problem.inputs.past_keys is not None
    (True, True)
    """
    has = {name: name in needs or dice.chance(share) for name, share in FEATURES.items()}
    has["grouped"] &= "not grouped" not in needs
    has["additive"] &= "not additive" not in needs
    has["past"] &= "as many queries" not in needs
    if config is None:
        config = _config(dice, has, needs)
    else:
        has["dropout"] = config.dropout > 0.0
    rng = np.random.default_rng(dice.seed())
    batch, query_len = dice.number(2, 4), dice.number(3, 7)
    key_len = dice.number(18, 30) if has["long"] else dice.number(4, 9)
    drawn = (batch, query_len, key_len)
    batch, query_len, key_len = (
        size if taken is None else dice.one_of(taken) for size, taken in zip(drawn, sizes, strict=True)
    )
    past_len = dice.number(1, key_len - 2) if has["past"] else 0
    if "as many queries" in needs:
        query_len = key_len
    full = (batch, config.num_heads, query_len, key_len)
    new = key_len - past_len
    inputs = AttentionInputs(
        queries=rng.normal(size=(batch, query_len, config.query_dim)),
        keys=rng.normal(size=(batch, new, config.key_dim)),
        values=rng.normal(size=(batch, new, config.value_dim)),
        mask=_mask(dice, rng, has, full),
        dropout_keep=rng.random(full) >= config.dropout if has["dropout"] else None,
        cotangent=rng.normal(size=(batch, query_len, config.output_dim)),
        past_keys=rng.normal(size=(batch, config.num_kv_heads, past_len, config.head_dim)) if past_len else None,
        past_values=rng.normal(size=(batch, config.num_kv_heads, past_len, config.value_head_dim))
        if past_len
        else None,
    )
    weights = init_weights(config, seed=dice.seed(), bias_scale=1.0)
    louder = dice.one_of((1.0, 1.0, 1.5))
    return Problem(config, {name: louder * array for name, array in weights.items()}, inputs)


def _config(dice: Dice, has: dict[str, bool], needs: tuple[str, ...]) -> AttentionConfig:
    groups = dice.one_of((1, 2, 3)) if has["grouped"] else dice.one_of((2, 3, 4))
    heads = groups * dice.one_of((2, 3)) if has["grouped"] else groups
    head_dim = dice.number(2, 6)
    score = "additive" if has["additive"] and not {"dot", "scale", "scaled"} & set(needs) else "scaled_dot"
    if score == "scaled_dot" and has["dot"] and not {"scale", "scaled"} & set(needs):
        score = "dot"
    options: dict[str, Any] = {
        "num_kv_heads": groups,
        "head_dim": head_dim,
        "score": score,
        "dropout": 0.3 if has["dropout"] else 0.0,
        "softcap": dice.one_of((0.7, 1.5, 4.0)) if has["softcap"] else None,
        "scale": dice.one_of((0.5, 1.7, -0.8)) if has["scale"] and score == "scaled_dot" else None,
    }
    if has["bare"] and not {"biases", "square"} & set(needs):
        return AttentionConfig(heads * head_dim, heads, value_head_dim=dice.number(2, 6), projections=False, **options)
    if has["square"]:
        return AttentionConfig(heads * head_dim, heads, bias=has["biases"], **options)
    widths = [dice.number(4, 13) for _ in range(4)]
    for name, width in zip(("query_dim", "key_dim", "value_dim", "output_dim"), widths, strict=True):
        options[name] = width
    bias = {f"{name}_proj": has["biases"] and (bool(needs) or dice.chance(0.8)) for name in ("q", "k", "v", "out")}
    options["value_head_dim"] = dice.number(2, 6)
    return AttentionConfig(heads * head_dim, heads, bias=bias, **options)


def _mask(dice: Dice, rng: np.random.Generator, has: dict[str, bool], full: tuple[int, int, int, int]) -> AttentionMask:
    batch, heads, query_len, key_len = full
    lens = allowed = bias = window = None
    if has["lens"]:
        lens = rng.integers(1, key_len + 1, size=(batch, query_len) if has["lens per query"] else (batch,))
    if has["allowed"]:
        shape = dice.one_of((full, (batch, 1, query_len, key_len), (heads, query_len, key_len), (batch, 1, 1, key_len)))
        allowed = rng.random(shape) < 0.7
    if has["bias"]:
        shape = dice.one_of((full, (batch, 1, query_len, key_len), (heads, query_len, key_len), (query_len, key_len)))
        bias = rng.normal(size=shape)
        if has["bias excludes"]:
            bias = np.where(rng.random(shape) < 0.2, -np.inf, bias)
    if has["window"]:
        window = dice.one_of(((1, 2), (2, 0), (3, 1), (2, None), (None, 1)))
    offset: Any = 0
    if (has["causal"] or has["window"]) and has["offset"]:
        offset = rng.integers(0, 5, size=batch) if dice.chance(0.4) else dice.number(1, 4)
    return AttentionMask(
        valid_lens=lens, allowed=allowed, bias=bias, causal=has["causal"], window=window, query_offset=offset
    )
