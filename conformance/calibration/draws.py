"""Random problems of every kind that a correct implementation must pass, each replayable by two numbers.

Problem `index` of a seed belongs to layer `index // DRAWS_PER_LAYER`: problems of one layer share the
config, the weights, every size and the kinds of mask, so that a framework that compiles per shape
compiles once for them. Data is Gaussian in only some of them: equal, nearly equal, same-signed,
cancelling, repeated and sparse numbers are where errors are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights
from mha_core.call.call import FLOATS
from mha_core.config import PROJECTIONS
from mha_core.dtypes import check_dtype
from mha_core.heads import split_heads
from mha_core.reference import pipeline as reference
from mha_core.weights import Weights

DRAWS_PER_LAYER = 8

LARGEST = {"float16": 2.0**13}
"""Nothing that a formulation may leave behind lies above it: the bounds hold while nothing overflows."""

MOST_WORK = 400_000
"""Multiplications of the weighted sum, at most: the bounds hold an array of that size."""

Rng = np.random.Generator
Shape = tuple[int, ...]


# Numbers ------------------------------------------------------------------------------------------


def _repeated_rows(rng: Rng, shape: Shape) -> NDArray:
    return np.broadcast_to(rng.normal(size=shape[-1:]), shape)


def _cancelling(rng: Rng, shape: Shape) -> NDArray:
    """+c, -c, +c, ... and a thousandth of noise."""
    signs = 1.0 - 2.0 * (np.arange(shape[-1]) % 2)
    return signs * (rng.normal() + 1e-3 * rng.normal(size=shape))


def _loud_item(rng: Rng, shape: Shape) -> NDArray:
    x = rng.normal(size=shape)
    x[: 1 if shape[0] else 0] *= 100.0
    return x


STYLES: Mapping[str, Callable[[Rng, Shape], NDArray]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "positive": lambda rng, shape: np.abs(rng.normal(size=shape)),
    "uniform": lambda rng, shape: rng.uniform(0.5, 1.0, size=shape),
    "constant": lambda rng, shape: np.full(shape, rng.normal()),
    "ones": lambda rng, shape: np.ones(shape),
    "ramp": lambda rng, shape: np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape) + rng.normal(),
    "repeated rows": _repeated_rows,
    "powers of two": lambda rng, shape: rng.choice([-1.0, 1.0], size=shape) * 2.0 ** rng.integers(-6, 4, size=shape),
    "nearly equal": lambda rng, shape: rng.normal() + 1e-4 * rng.normal(size=shape),
    "cancelling": _cancelling,
    "two values": lambda rng, shape: rng.choice(rng.normal(size=2), size=shape),
    "sparse": lambda rng, shape: rng.normal(size=shape) * (rng.random(shape) < 0.1),
    "heavy tails": lambda rng, shape: rng.standard_t(2, size=shape),
    "loud item": _loud_item,
}
"""Name -> numbers of about unit size."""


def _style(rng: Rng) -> str:
    """Gaussian in four of ten."""
    return "normal" if rng.random() < 0.4 else str(rng.choice(list(STYLES)))


def _size(rng: Rng, most: int) -> int:
    """1..most, each order of magnitude as likely as the next."""
    return int(np.floor(np.exp(rng.uniform(0.0, np.log(most + 1.0)))))


# Layers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layer:
    """What the problems of one layer share: config, weights, lengths, and the kinds of mask.

    `masks` names what is there: sources of AttentionMask, with "2" for the larger of two shapes.
    Of the key_len keys, `past_len` are of the past; `split` inputs are heads already.
    """

    number: int
    config: AttentionConfig
    weights: Weights
    batch: int
    query_len: int
    key_len: int
    masks: frozenset[str]
    dropout: bool
    past_len: int = 0
    split: bool = False

    @property
    def shape(self) -> Shape:
        """(B, H, Lq, Lk)."""
        return self.batch, self.config.num_heads, self.query_len, self.key_len


def draw_layer(seed: int, number: int) -> Layer:
    """Layer `number` of a seed; the same one each time."""
    rng = np.random.default_rng([seed, number, 0])
    while True:
        config, lengths = _config(rng), _lengths(rng)
        work = np.prod([config.num_heads, *lengths, max(config.value_head_dim, config.score_dim or 0)])
        if work <= MOST_WORK:
            break
    # A stream of its own, so that layers without these three are what they would be if none had them.
    extra = np.random.default_rng([seed, number, 2])
    config = _extended(extra, config)
    has_past = extra.random() < 0.15
    return Layer(
        number,
        config,
        _weights(rng, config),
        *lengths,
        masks=_mask_kinds(rng),
        dropout=config.dropout > 0.0,
        past_len=int(extra.integers(1, lengths[2] + 1)) if has_past else 0,
        split=not config.projections and extra.random() < 0.5,
    )


def _config(rng: Rng) -> AttentionConfig:
    heads = int(rng.choice([1, 2, 3, 4, 6, 8]))
    groups = [g for g in range(1, heads + 1) if heads % g == 0]
    score = str(rng.choice(["scaled_dot", "dot", "additive"], p=[0.7, 0.1, 0.2]))
    choices: dict[str, Any] = {}
    if score == "additive":
        choices["score_dim"] = _size(rng, 16)
    elif score == "scaled_dot" and rng.random() < 0.2:
        choices["scale"] = float(np.exp(rng.uniform(-4.0, 1.0)))
    widths: dict[str, Any] = {
        f"{name}_dim": _size(rng, 64) for name in ("head", "value_head", "query", "key", "value", "output")
    }
    return AttentionConfig(
        heads,
        heads,
        num_kv_heads=int(rng.choice(groups)),
        bias={name: bool(rng.random() < 0.6) for name in PROJECTIONS},
        score=score,  # type: ignore[arg-type]  # one of the three
        dropout=float(rng.choice([0.0, 0.1, 0.5], p=[0.85, 0.1, 0.05])),
        **widths,
        **choices,
    )


def _extended(rng: Rng, config: AttentionConfig) -> AttentionConfig:
    """With a softcap in about 15 of 100, from far below to far above the scores; in about 5, without projections."""
    capped, bare = rng.random() < 0.15, rng.random() < 0.05
    limit = float(np.exp(rng.uniform(np.log(0.01), np.log(1000.0))))
    if capped:
        config = replace(config, softcap=limit)
    if bare:
        widths = dict.fromkeys(("query_dim", "key_dim", "value_dim", "output_dim"))
        config = replace(config, projections=False, bias=False, **widths)  # type: ignore[arg-type]  # they are all widths
    return config


def _lengths(rng: Rng) -> tuple[int, int, int]:
    """B, Lq, Lk: mostly short; sometimes many keys, or many queries."""
    kind = rng.random()
    if kind < 0.1:
        return 1, _size(rng, 4), int(rng.integers(128, 513))
    if kind < 0.2:
        return int(rng.integers(1, 9)), int(rng.integers(32, 129)), _size(rng, 12)
    return int(rng.integers(1, 5)), _size(rng, 24), _size(rng, 32)


def _weights(rng: Rng, config: AttentionConfig) -> Weights:
    drawn = init_weights(config, seed=int(rng.integers(2**31)), bias_scale=float(rng.choice([0.1, 1.0, 1.0, 30.0])))
    scale = float(np.exp(rng.uniform(np.log(0.03), np.log(20.0)))) if rng.random() < 0.5 else 1.0
    style = _style(rng)
    weights = {}
    for name, array in drawn.items():
        if style != "normal" and array.ndim == 2:
            array = STYLES[style](rng, array.shape) / np.sqrt(array.shape[1])
        weights[name] = scale * array
    return weights


def _mask_kinds(rng: Rng) -> frozenset[str]:
    if rng.random() < 0.25:
        return frozenset()
    odds = {"valid_lens": 0.3, "allowed": 0.25, "bias": 0.35, "causal": 0.3, "window": 0.15, "lone": 0.05}
    odds |= {"large bias": 0.1, "excluding bias": 0.1}
    kinds = {name for name, chance in odds.items() if rng.random() < chance}
    return frozenset(f"{name} 2" if rng.random() < 0.5 else name for name in kinds)


# Problems -----------------------------------------------------------------------------------------


def draw_problem(seed: int, index: int, dtype: str, layer: Layer | None = None) -> Problem:
    """Problem `index` of a seed, in float64; the same one each time.

    Args:
        seed, index: not negative.
        dtype: that it is meant for. Numbers shrink until nothing overflows in it.
        layer: `draw_layer(seed, index // DRAWS_PER_LAYER)`, if at hand.

    >>> problem = draw_problem(seed=0, index=3, dtype="float32")
    >>> again = draw_problem(seed=0, index=3, dtype="float32")
    >>> bool((problem.inputs.queries == again.inputs.queries).all())
    True
    """
    check_dtype(dtype)
    layer = layer or draw_layer(seed, index // DRAWS_PER_LAYER)
    rng = np.random.default_rng([seed, index, 1])
    problem = _problem(rng, layer)
    while dtype in LARGEST and _largest(problem.rounded(dtype)) > LARGEST[dtype]:
        problem = _shrunk(problem)
    return problem


def _problem(rng: Rng, layer: Layer) -> Problem:
    config = layer.config
    scale = float(np.exp(rng.uniform(np.log(0.03), np.log(20.0)))) if rng.random() < 0.5 else 1.0
    new_len = layer.key_len - layer.past_len
    shapes: dict[str, Shape] = {
        "queries": (layer.batch, layer.query_len, config.query_dim),
        "keys": (layer.batch, new_len, config.key_dim),
        "values": (layer.batch, new_len, config.value_dim),
        "cotangent": (layer.batch, layer.query_len, config.output_dim),
    }
    heads = config.head_shapes
    if layer.past_len:
        shapes["past_keys"] = (layer.batch, heads.keys[0], layer.past_len, heads.keys[1])
        shapes["past_values"] = (layer.batch, heads.values[0], layer.past_len, heads.values[1])
    one_style = _style(rng) if rng.random() < 0.5 else None
    arrays = {name: STYLES[one_style or _style(rng)](rng, shape) for name, shape in shapes.items()}
    for name in arrays.keys() - {"cotangent"}:
        arrays[name] = scale * arrays[name]
    if config.softcap is not None and rng.random() < 0.5:  # between c and 1 / c, small gradients may become 0
        arrays["cotangent"] = np.exp(rng.uniform(np.log(1e-4), 0.0)) * arrays["cotangent"]
    if layer.split:
        arrays |= {name: split_heads(arrays[name], shape[0]) for name, shape in heads._asdict().items()}
    return Problem(
        config,
        layer.weights,
        AttentionInputs(
            **arrays,
            mask=_mask(rng, layer),
            dropout_keep=rng.random(layer.shape) >= config.dropout if layer.dropout else None,
        ),
    )


def _mask(rng: Rng, layer: Layer) -> AttentionMask:
    batch, heads, query_len, key_len = layer.shape
    sources: dict[str, object] = {}
    allowed, bias = [], []
    for kind in sorted(layer.masks):
        larger = kind.endswith(" 2")
        if kind.startswith("valid_lens"):
            shape: Shape = (batch, query_len) if larger else (batch,)
            sources["valid_lens"] = rng.integers(0, key_len + 1, size=shape)
        elif kind.startswith("allowed"):
            shape = (batch, heads, query_len, key_len) if larger else (1, query_len, key_len)
            allowed.append(rng.random(shape) < rng.choice([0.3, 0.7, 0.95]))
        elif kind.startswith("lone"):
            shape = (batch, 1, query_len, 1) if larger else (query_len, 1)
            allowed.append(np.arange(key_len) == rng.integers(key_len, size=shape))
        elif kind.startswith("causal"):
            sources["causal"] = True
            sources["query_offset"] = (
                rng.integers(-2, key_len + 1, size=batch) if larger else layer.past_len or max(key_len - query_len, 0)
            )
        elif kind.startswith("window"):
            sources["window"] = (3, 2) if larger else (None, 4)
        elif kind.startswith("large bias"):  # the same for a row: no weight may notice it
            shape = (batch, heads, query_len, 1) if larger else (query_len, 1)
            bias.append(rng.choice([-1e3, 1e3]) * np.ones(shape))
        elif kind.startswith("excluding bias"):
            shape = (batch, 1, query_len, key_len) if larger else (1, key_len)
            bias.append(np.where(rng.random(shape) < 0.3, -np.inf, 0.0))
        else:
            shape = (batch, heads, query_len, key_len) if larger else (heads, 1, key_len)
            bias.append(STYLES[_style(rng)](rng, shape))
    if allowed:
        sources["allowed"] = np.logical_and.reduce(np.broadcast_arrays(*allowed)) if len(allowed) > 1 else allowed[0]
    if bias:
        sources["bias"] = sum(bias[1:], bias[0])
    return AttentionMask(**sources)  # type: ignore[arg-type]  # each source by its name


def _largest(problem: Problem) -> float:
    """The largest magnitude of any array that an implementation may store on the way."""
    state = reference.run_state(problem.config, problem.weights, problem.inputs)
    arrays: list[NDArray] = []
    for found in state.arrays.values():
        arrays += list(found.values()) if isinstance(found, dict) else [found]
    scale = min(abs(problem.config.softmax_scale), 1.0)
    unscaled = [array / scale for array in (state["similarity"], state["d_queries"], state["d_keys"])]
    if problem.config.softcap is not None:  # c tanh(x / c) backwards, factor by factor
        unscaled.append(problem.config.softcap * state["d_scores"])
    finite = [float(np.abs(array).max(initial=0.0)) for array in (*arrays, *unscaled) if array is not None]
    return max(finite, default=0.0)


def _shrunk(problem: Problem) -> Problem:
    """Half of every input; the additive bias too, which alone could overflow."""
    i = problem.inputs
    arrays = {name: getattr(i, name) for name in (*FLOATS, "cotangent")}
    half = replace(
        i,
        mask=i.mask.map_arrays(lambda name, array: 0.5 * array if name == "bias" else array),
        **{name: 0.5 * array for name, array in arrays.items() if array is not None},
    )
    weights = {name: 0.7 * array for name, array in problem.weights.items()}
    return Problem(problem.config, weights, half)
