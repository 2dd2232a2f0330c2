"""Masks with scores that differ: what excluded keys have, rows without a key, padding, and where NaN goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import NO_BIASES, generic
from conformance.measure.evidence import Evidence
from conformance.measure.probe import Probe
from conformance.measure.probes.masks import MOST_CONFIGS, SMALL, WIDE, infinite, pattern
from conformance.measure.propose.extremes import empty_row_bugs, nan_bugs, padding_bugs
from conformance.measure.propose.steps import Candidate, at_places
from conformance.measure.read.weights import read_weights
from conformance.measure.softmax.exclusion import excluded
from mha_core import AttentionConfig, AttentionMask


def _masked(asker: Asker) -> Sequence[Problem]:
    return [
        generic(config, seed=1, mask=mask)
        for config in asker.configs[:MOST_CONFIGS]
        for mask in (
            AttentionMask(causal=True),
            AttentionMask(valid_lens=np.array([3])),
            AttentionMask(allowed=pattern((1, config.num_heads, *SMALL), 7)),
        )
    ]


def _biased(config: AttentionConfig) -> Iterator[Problem]:
    numbers = np.random.default_rng(6).normal(size=(1, config.num_heads, *SMALL))
    bias = np.where(np.abs(numbers) < 0.2, 0.0, numbers)
    some = np.where(pattern(bias.shape, 8), bias, -np.inf)
    for given in ({"causal": True, "bias": bias}, {"bias": some}, {"bias": some, "valid_lens": np.array([4])}):
        yield generic(config, mask=AttentionMask(**given))


def _excluded_or_biased(evidence: Evidence) -> Iterator[Candidate]:
    """Also what becomes of the additive bias beside another source of the mask."""
    yield from at_places(evidence, list(evidence.differing()), ("bias", "scores"))
    yield from excluded(evidence)


LARGEST = (30.0, 3e3, 3e4, 3e6, 3e9, 3e12)
"""T of the problems: each is between constants in use."""


@lru_cache(maxsize=512)
def _steep(config: AttentionConfig, size: float, query_len: int = WIDE[0], key_len: int = WIDE[1]) -> Problem:
    """A causal problem in which key j scores size * (j - Lk), for every query and head."""
    weights: dict[str, NDArray | float] = {**NO_BIASES}
    for name, heads, width in (
        ("q_proj", config.num_heads, config.query_dim),
        ("k_proj", config.num_kv_heads, config.key_dim),
    ):
        array = np.zeros((heads * config.head_dim, width))
        array[:: config.head_dim, 0] = 1.0
        weights[f"{name}.weight"] = array
    how: dict[str, Any] = {"query_len": query_len, "key_len": key_len}
    plain = generic(config, **how)
    queries, keys = plain.inputs.queries.copy(), plain.inputs.keys.copy()
    queries[..., 0] = size / config.softmax_scale
    keys[..., 0] = np.arange(key_len) - key_len
    return generic(config, mask=AttentionMask(causal=True), weights=weights, queries=queries, keys=keys, **how)


def _steep_calls(asker: Asker) -> Sequence[Problem]:
    """Each T; and where the answers turn wrong between two, the T at which the excluded key's weight can be read."""
    found = []
    for place, config in enumerate(config for config in asker.configs[:2] if config.projections):
        sizes = [size for size in LARGEST if _is_held(asker, config, size)]
        found += [_steep(config, size) for size in (sizes if place == 0 else sizes[1::2])]
        edge = _edge(asker, config, sizes) if place == 0 else None
        found += [] if edge is None else [edge]
    return found


def _is_held(asker: Asker, config: AttentionConfig, size: float) -> bool:
    """Whether the dtype has numbers for queries, and products with keys, of such scores: else right layers give NaN."""
    largest = float(np.finfo(np.float16).max) if asker.precision.storage == "float16" else np.inf
    return size * WIDE[1] / min(1.0, config.softmax_scale) <= largest


READABLE, STEPS, MOST_STEPS = 1e-6, 8, 50
"""The weight from which on one is read; halvings of the exponent's range, and with those of the range itself."""


def _edge(asker: Asker, config: AttentionConfig, sizes: Sequence[float]) -> Problem | None:
    """The problem with two keys, of which causal lets in one, in which both have a weight; None if there is none.

    Key 0, which is let in, scores -2 T, and key 1 -T: log w_1 - log w_0 = c + 2 T if c stands in place of excluded
    scores, c + T if it is added to them.
    """
    problems = [_steep(config, size) for size in sizes]
    if not sizes or all(asker.output(problem) is None or asker.is_right(problem) for problem in problems):
        return None
    low, high = 1.0, sizes[-1]
    for step in range(MOST_STEPS):
        middle = (low * high) ** 0.5 if step < STEPS else (low + high) / 2
        problem = _steep(config, middle, 1, 2)
        weights = read_weights(asker.output, problem)
        if weights is None or not np.isfinite(weights).all():
            return None
        if float(np.abs(weights).min()) > READABLE:
            return problem
        low, high = (middle, high) if np.all(np.abs(weights[..., 1]) < weights[..., 0]) else (low, middle)
    return None


PROBES = (
    Probe(
        "masked-scores",
        "One source of a mask, generic queries and keys: what excluded keys have, and what the allowed ones share.",
        r"\log a_{ie} - \log a_{ia} = c - s_{ia}",
        _masked,
        excluded,
    ),
    Probe(
        "masked-scores-with-bias",
        "An additive bias beside another source of the mask, and -inf in it.",
        r"a_{ij} \propto m_{ij} \exp(s_{ij} + b_{ij})",
        lambda asker: [problem for config in asker.configs[:2] for problem in _biased(config)],
        _excluded_or_biased,
    ),
    Probe(
        "excluded-large",
        "Causal rows whose allowed keys score far below the excluded ones: a constant in place of -inf shows.",
        r"s_{ij} = T (j - L_k), \quad T = 30 \ldots 3 \cdot 10^{12}",
        _steep_calls,
        excluded,
    ),
)

# Extremes -----------------------------------------------------------------------------------------------------


def _row_out(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """True but for query 1."""
    array = np.ones((*shape[:-2], *SMALL), np.bool_)
    array[..., 1, :] = False
    return array


def _empty_masks(config: AttentionConfig) -> list[AttentionMask]:
    last = np.broadcast_to(np.arange(SMALL[1]) >= 3, SMALL)
    some = _row_out((1, config.num_heads, *SMALL))
    some[:, ::2, 1] = True
    return [
        AttentionMask(valid_lens=np.array([0])),
        AttentionMask(valid_lens=np.array([[2, 0, 4]])),
        AttentionMask(allowed=_row_out(SMALL)),
        AttentionMask(allowed=some),
        AttentionMask(allowed=np.zeros((1, 1, 1, SMALL[1]), np.bool_)),
        AttentionMask(bias=infinite(_row_out(SMALL))),
        AttentionMask(causal=True, query_offset=-1),
        AttentionMask(window=(1, 0), query_offset=-1),
        AttentionMask(valid_lens=np.array([3]), allowed=last),
        AttentionMask(causal=True, allowed=last),
    ]


def _empty_rows(asker: Asker) -> Sequence[Problem]:
    """The first layer with all masks, the second with each third."""
    some = zip(asker.configs, (1, 3), strict=False)
    return [generic(config, mask=mask) for config, step in some for mask in _empty_masks(config)[::step]]


def _padding(asker: Asker) -> Sequence[Problem]:
    found = []
    outside = np.arange(SMALL[1]) >= 3
    masks = (AttentionMask(valid_lens=np.array([3])), AttentionMask(allowed=~outside[None, None, None]))
    for place, config in enumerate(asker.configs[:2]):
        given = generic(config).inputs
        for number in (np.nan, np.inf, 1e30) if place == 0 else (np.nan,):
            keys, values = (np.where(outside[:, None], number, one) for one in (given.keys, given.values))
            for mask in masks:
                found += [generic(config, mask=mask, keys=keys), generic(config, mask=mask, values=values)]
    return found


def _one_nan(config: AttentionConfig) -> Iterator[Problem]:
    for name, row, channel, causal in (
        ("queries", 1, 2, False),
        ("keys", 3, 1, False),
        ("values", 3, 1, False),
        ("keys", 2, 1, True),
    ):
        array = getattr(generic(config).inputs, name).copy()
        array[0, row, channel] = np.nan
        yield generic(config, mask=AttentionMask(causal=causal), **{name: array})


EXTREMES = (
    Probe(
        "empty-rows",
        "Rows without an allowed key, by each source and by two together.",
        r"o_i = b_o",
        _empty_rows,
        lambda evidence: empty_row_bugs(),
        unknown="what a row without an allowed key gives",
    ),
    Probe(
        "padding",
        "NaN, infinities and 1e30 in padded keys, then in padded values: none of it reaches anything.",
        r"o(x) = o(x') \text{ if } x_j = x'_j \text{ for all } j < n",
        _padding,
        lambda evidence: padding_bugs(),
        unknown="whether padding that is no number reaches the output",
    ),
    Probe(
        "open-nan",
        "One NaN in a query, a key or a value, where attention is allowed, and in keys that causal rows do not see.",
        r"o_i = \mathrm{NaN} \Leftrightarrow \text{ query } i \text{ may attend to it}",
        lambda asker: [problem for config in asker.configs[:2] for problem in _one_nan(config)],
        lambda evidence: nan_bugs(),
        unknown="where NaN goes",
    ),
    Probe(
        "no-keys",
        "No key at all.",
        r"o_i = b_o",
        lambda asker: [generic(config, key_len=0) for config in asker.configs[:2]],
        lambda evidence: empty_row_bugs(),
        unknown="what a call without keys gives",
    ),
)
