"""Designs: problems whose numbers are chosen so that what a step does can be read off."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
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
    _all_different(11, 5, 5, 4, 6, 10, 7, 9, 8),
    AttentionConfig(12, 4, query_dim=9, key_dim=7, value_dim=10, bias=True),
    AttentionConfig(10, 2, query_dim=7, key_dim=9, value_dim=8, bias=True),
    *(AttentionConfig(*widths, bias=bias) for bias in (True, False) for widths in ((15, 3), (8, 2), (12, 4))),
    *(AttentionConfig(width, 1) for width in (4, 7, 9)),
)
"""Layers to be asked as, the richest first: no two sizes of one are equal unless the layer has no argument for it."""

MANY_HEADS = _all_different(13, 12, 12, 3, 2, 9, 7, 10, 11)
"""A layer of more heads than those: what each head has of its own is read in it."""

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
        cotangent=rng.normal(size=(batch, query_len, config.output_dim)),
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
    """A problem of random numbers; the same arguments give the same numbers.

    Args:
        config: the layer.
        seed, batch, query_len, key_len: of the problem without changes.
        mask: its mask. Default: none.
        weights: name -> an array in place of the random one, or a factor on it. Names that it lacks don't count.
        inputs: fields of AttentionInputs in place of random ones; a number is a factor on the random array.

    >>> generic(CONFIGS[0], weights={"q_proj.weight": 0.0}).weights["q_proj.weight"].any().item()
    False
    """
    problem = _generic(config, seed, batch, query_len, key_len)
    return changed(problem, weights, mask=AttentionMask() if mask is None else mask, **inputs)


def in_turn(configs: Sequence[AttentionConfig], sizes: Sequence[tuple[int, int, int]], **how: Any) -> list[Problem]:
    """A call of each (batch, query length, key length), each of the next layer, over and over again."""
    return [
        generic(configs[place % len(configs)], batch=batch, query_len=query_len, key_len=key_len, **how)
        for place, (batch, query_len, key_len) in enumerate(sizes if configs else ())
    ]


def changed(problem: Problem, weights: Mapping[str, NDArray | float] | None = None, **inputs: Any) -> Problem:
    """The problem with other weights and inputs; as for `generic`."""
    new = dict(problem.weights)
    for name, value in (weights or {}).items():
        if name in new:
            new[name] = value * new[name] if isinstance(value, float) else np.asarray(value, np.float64)
    given = {
        name: value * getattr(problem.inputs, name) if isinstance(value, float) else value
        for name, value in inputs.items()
    }
    return replace(problem, weights=new, inputs=replace(problem.inputs, **given))


def resized(problem: Problem, batch: int, query_len: int, key_len: int) -> Problem:
    """The nearest problem of other sizes: rows that are too many are left out, those that lack are made of the others.

    Items are repeated, so that nothing befalls them that does not befall one of them alone. Positions that lack are the
    others times MORE, unless all are alike: rows that are 0 or of equal channels stay so, and no two are equal by that.

    >>> resized(generic(CONFIGS[0], values=1.0), 2, 3, 7).sizes[:3]
    (2, 3, 7)
    """
    inputs, mask, sizes = problem.inputs, problem.inputs.mask, problem.sizes
    if sizes[:3] == (batch, query_len, key_len) or not all(sizes[:3]) or sizes.past_len == sizes.key_len:
        return problem
    new_keys = max(key_len - sizes.past_len, 0)
    lengths = {"queries": query_len, "cotangent": query_len, "keys": new_keys, "values": new_keys}
    given: dict[str, Any] = {
        name: _longer(_cycled(array, 0, batch), length)
        for name, length in lengths.items()
        if (array := getattr(inputs, name)) is not None
    }
    for name in ("past_keys", "past_values"):
        if (array := getattr(inputs, name)) is not None:
            given[name] = _cycled(np.asarray(array)[:, :, :key_len], 0, batch)
    if inputs.dropout_keep is not None:
        keep = _cycled(np.asarray(inputs.dropout_keep), 0, batch)
        given["dropout_keep"] = _cycled(_cycled(keep, -2, query_len), -1, key_len)
    sources: dict[str, Any] = {
        name: _of_mask(array, batch, query_len, key_len)
        for name in ("allowed", "bias")
        if (array := getattr(mask, name)) is not None
    }
    if mask.valid_lens is not None:
        lens = np.where(mask.valid_lens == sizes.key_len, key_len, np.minimum(mask.valid_lens, key_len))
        sources["valid_lens"] = _cycled(lens if lens.ndim == 1 else _cycled(lens, 1, query_len), 0, batch)
    if np.ndim(mask.query_offset):
        sources["query_offset"] = _cycled(np.asarray(mask.query_offset), 0, batch)
    return changed(problem, mask=replace(mask, **sources), **given)


MORE = -0.7
"""What the rows that are made of others are multiplied by, once more each time round."""


def _cycled(array: NDArray, axis: int, size: int) -> NDArray:
    """As many along an axis, over and over again."""
    found: NDArray = np.take(array, np.arange(size) % max(array.shape[axis], 1), axis=axis)
    return found


def _longer(array: NDArray, length: int) -> NDArray:
    """(..., length, channels): as long along its positions."""
    before = array.shape[-2]
    found = _cycled(array, -2, length)
    if before < 2 or np.array_equal(array, np.broadcast_to(array[..., :1, :], array.shape)):
        return found
    return found * (MORE ** (np.arange(length) // before))[:, None]


def _of_mask(array: NDArray, batch: int, query_len: int, key_len: int) -> NDArray:
    """(..., Lq, Lk) of other sizes; axes of one number for all stay so."""
    for axis, size in ((-1, key_len), (-2, query_len), (-4, batch)):
        if array.ndim >= -axis and array.shape[axis] > 1:
            array = _cycled(array, axis, size)
    return array


NO_BIASES: Mapping[str, float] = {f"{name}.bias": 0.0 for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
"""`weights` for `generic`: every bias of a projection is 0."""

EQUAL_SCORES: Mapping[str, float] = {"q_proj.weight": 0.0, "q_proj.bias": 0.0}
"""`weights` for `generic`: queries are 0, so every score of a dot product is 0 and weights are uniform."""


HIGHEST_SCORE = 600.0
"""Of a chosen key, against 0 for one at a right angle to it: others get no weight, also if scores are a tenth."""


@lru_cache(maxsize=64)
def each_key_chosen(config: AttentionConfig, length: int) -> Problem:
    """As many queries as keys, each with the direction of its key in a plane: query i has all its weight on key i."""
    angles = 2.0 * np.pi * np.arange(length) / length
    root = float(np.sqrt(HIGHEST_SCORE / (config.softmax_scale * (1.0 - np.cos(angles[1])))))
    places = root * np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def passing(heads: int, width: int) -> NDArray:
        return np.tile(np.eye(config.head_dim, width), (heads, 1))

    def rows(width: int) -> NDArray:
        found = np.zeros((1, length, width))
        found[0, :, :2] = places
        return found

    weights: dict[str, NDArray | float] = {
        **NO_BIASES,
        "q_proj.weight": passing(config.num_heads, config.query_dim),
        "k_proj.weight": passing(config.num_kv_heads, config.key_dim),
    }
    queries, keys = rows(config.query_dim), rows(config.key_dim)
    return generic(config, query_len=length, key_len=length, weights=weights, queries=queries, keys=keys)
