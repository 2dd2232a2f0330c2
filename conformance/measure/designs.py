"""Designs: problems whose numbers are chosen so that what a step does can be read off."""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights

_SIZES = ("num_kv_heads", "head_dim", "value_head_dim", "query_dim", "key_dim", "value_dim", "output_dim")


def _all_different(embed_dim: int, heads: int, *others: int) -> AttentionConfig:
    sizes: dict[str, Any] = dict(zip(_SIZES, others, strict=True))
    return AttentionConfig(embed_dim, heads, bias=True, **sizes)


CONFIGS: tuple[AttentionConfig, ...] = (
    _all_different(13, 4, 2, 3, 6, 9, 7, 10, 11),
    _all_different(10, 6, 3, 2, 7, 8, 11, 5, 9),
    _all_different(14, 3, 3, 5, 4, 7, 13, 8, 10),
    AttentionConfig(12, 4, query_dim=9, key_dim=7, value_dim=10, bias=True),
    AttentionConfig(10, 2, query_dim=7, key_dim=9, value_dim=8, bias=True),
    *(AttentionConfig(*widths, bias=bias) for bias in (True, False) for widths in ((15, 3), (8, 2), (12, 4))),
    AttentionConfig(7, 1),
)
"""Layers to be asked as, the richest first: no two sizes of one are equal unless the layer has no argument for it."""

MANY_HEADS = _all_different(13, 12, 12, 3, 2, 9, 7, 10, 11)
"""A layer of more heads than those: what each head has of its own is read in it."""

ONE_WIDTH = AttentionConfig(12, 4, bias=True)  # A layer as most are: of one width, with as many key heads as heads

BARE = tuple(  # layers whose inputs are the heads
    AttentionConfig(width, heads, num_kv_heads=groups, head_dim=d, value_head_dim=dv, projections=False)
    for width, heads, groups, d, dv in ((12, 4, 2, 3, 5), (10, 2, 2, 5, 3))
)

BATCH, QUERY_LEN, KEY_LEN = 1, 3, 5
"""Sizes of a problem unless it says others: a batch of one, so that what items do to each other has its own probe."""


@lru_cache(maxsize=4096)
def _generic(config: AttentionConfig, seed: int, batch: int, query_len: int, key_len: int) -> Problem:
    rng = np.random.default_rng([zlib.crc32(repr(config).encode()), seed, batch, query_len, key_len])
    weights = init_weights(config, seed=int(rng.integers(2**31)), bias_scale=1.0)
    inputs = AttentionInputs(
        queries=rng.normal(size=(batch, query_len, config.query_dim)),
        keys=rng.normal(size=(batch, key_len, config.key_dim)),
        values=rng.normal(size=(batch, key_len, config.value_dim)),
    )
    return Problem(config, weights, inputs)


def generic(
    config: AttentionConfig,
    *,
    seed: int = 0,
    batch: int = BATCH,
    query_len: int = QUERY_LEN,
    key_len: int = KEY_LEN,
    mask: AttentionMask | None = None,
    weights: Mapping[str, NDArray | float] | None = None,
    **inputs: Any,
) -> Problem:
    """Return a problem (a layer and one call) of random numbers; the same arguments give the same numbers.

    Args:
        config: the layer's config.
        seed, batch, query_len, key_len: the seed and the sizes.
        mask: the call's mask. Default: none.
        weights: name -> an array in place of the random one, or a factor on it. Names that the layer lacks are ignored.
        inputs: fields of AttentionInputs in place of random ones; a number is a factor on the random array.

    >>> generic(CONFIGS[0], weights={"q_proj.weight": 0.0}).weights["q_proj.weight"].any().item()
    False
    """
    problem = _generic(config, seed, batch, query_len, key_len)
    return changed(problem, weights, mask=AttentionMask() if mask is None else mask, **inputs)


def changed(problem: Problem, weights: Mapping[str, NDArray | float] | None = None, **inputs: Any) -> Problem:
    """Return the problem with other weights and inputs, each an array or, as in `generic`, a factor."""
    new = dict(problem.weights)
    for name, value in (weights or {}).items():
        if name in new:
            new[name] = value * new[name] if isinstance(value, float) else np.asarray(value, np.float64)
    given = {
        name: value * getattr(problem.inputs, name) if isinstance(value, float) else value
        for name, value in inputs.items()
    }
    return replace(problem, weights=new, inputs=replace(problem.inputs, **given))


def differentiated(problem: Problem) -> Problem:
    """Return the problem with a cotangent, which asks for gradients."""
    shape = (*problem.inputs.queries.shape[:2], problem.config.output_dim)
    return changed(problem, cotangent=np.random.default_rng(0).normal(size=shape))


NO_BIASES: Mapping[str, float] = {f"{name}.bias": 0.0 for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
"""`weights` for `generic`: every bias of a projection is 0."""
