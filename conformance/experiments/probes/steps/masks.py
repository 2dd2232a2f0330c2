"""Masks with equal scores: which keys have a weight, for each source alone and with each other.

Queries are 0, so all scores are equal and a row's weights are uniform over the keys that it may attend to:

    weights[b, h, i, j] = allowed[b, h, i, j] / sum_k allowed[b, h, i, k]

so that the allowed set is read off each source alone, then off every two and all five of them. Every row keeps some key
in and some key out, so that neither rows without a key nor the way of excluding keys can show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.designs import NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.masks.candidates import proposals
from conformance.experiments.probe import Probe
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, AttentionMask

EQUAL = {**NO_BIASES, "q_proj.weight": 0.0}
"""Queries are 0 and nothing has a bias."""

Masks = Callable[[AttentionConfig, int], Sequence[tuple[tuple[int, int], AttentionMask]]]
"""(config, its place in the lab) -> ((Lq, Lk), mask) of its problems."""

MOST_CONFIGS = 3
"""Masks depend on few sizes of a layer: fewer of them are asked for than where numbers are read off."""

SMALL, WIDE, SQUARE, LARGE = (3, 5), (4, 7), (4, 4), (6, 11)
"""(Lq, Lk)."""


def _problems(masks: Masks) -> Callable[[Lab], list[Problem]]:
    def problems(lab: Lab) -> list[Problem]:
        return [
            generic(config, query_len=query_len, key_len=key_len, mask=mask, weights=EQUAL)
            for place, config in enumerate(lab.configs[:MOST_CONFIGS])
            for (query_len, key_len), mask in masks(config, place)
        ]

    return problems


def pattern(shape: tuple[int, ...], seed: int) -> NDArray[np.bool_]:
    """Bool of a shape whose last axis has keys: each row lets in at least two and keeps out at least one."""
    rng = np.random.default_rng([seed, *shape])
    order = rng.permuted(np.broadcast_to(np.arange(shape[-1]), shape), axis=-1)
    counts = rng.integers(2, shape[-1], size=shape[:-1])
    return np.asarray(order < counts[..., None])


def _bias(shape: tuple[int, ...], seed: int) -> NDArray[np.float64]:
    return np.where(pattern(shape, seed), 0.0, -np.inf)


def _lengths(config: AttentionConfig, place: int) -> list[tuple[tuple[int, int], AttentionMask]]:
    found = [(SMALL, AttentionMask(valid_lens=np.array([2]))), (SMALL, AttentionMask(valid_lens=np.array([4])))]
    if place < 2:
        found += [(WIDE, AttentionMask(valid_lens=np.array([n]))) for n in (3, 5)]
        found.append((LARGE, AttentionMask(valid_lens=np.array([9 - 4 * place]))))
    return found


def _lengths_per_query(config: AttentionConfig, place: int) -> list[tuple[tuple[int, int], AttentionMask]]:
    found = [(SMALL, AttentionMask(valid_lens=np.array([[3, 2, 4]])))]
    if place < 2:
        found.append((WIDE, AttentionMask(valid_lens=np.array([[2, 6, 3, 5]]))))
    return found


def _causal(config: AttentionConfig, place: int) -> list[tuple[tuple[int, int], AttentionMask]]:
    found = [(SMALL, AttentionMask(causal=True))]
    if place < 2:
        found += [(SQUARE, AttentionMask(causal=True)), (LARGE, AttentionMask(causal=True))]
    return found


def _offset(config: AttentionConfig, place: int) -> list[tuple[tuple[int, int], AttentionMask]]:
    found = [(SMALL, AttentionMask(causal=True, query_offset=1))]
    if place < 2:
        found += [(WIDE, AttentionMask(causal=True, query_offset=2))]
        found += [(WIDE, AttentionMask(window=(2, 1), query_offset=n)) for n in (1, 2)]
        found += [(LARGE, AttentionMask(causal=True, query_offset=4 - place))]
    return found


WINDOWS: tuple[tuple[int | None, int | None], ...] = ((2, 1), (1, 3), (0, 2), (1, None), (None, 1))


def _window(config: AttentionConfig, place: int) -> list[tuple[tuple[int, int], AttentionMask]]:
    found = [(WIDE, AttentionMask(window=window)) for window in WINDOWS[: (5, 3, 1)[place]]]
    return (
        [*found, (SQUARE, AttentionMask(window=(1, 0))), (LARGE, AttentionMask(window=(4, 2)))] if place < 2 else found
    )


def _allowed(config: AttentionConfig, place: int) -> list[tuple[tuple[int, int], AttentionMask]]:
    heads = config.num_heads
    shapes = [(1, 1, 1, 5), (3, 5), (heads, 3, 5), (1, 1, 3, 5), (1, heads, 3, 5), (5,), (heads, 1, 5)]
    found = [(SMALL, AttentionMask(allowed=pattern(shape, place))) for shape in shapes[: (7, 3, 2)[place]]]
    return [*found, (SQUARE, AttentionMask(allowed=pattern((1, heads, 4, 4), 3)))] if place < 2 else found


def _infinite_bias(config: AttentionConfig, place: int) -> list[tuple[tuple[int, int], AttentionMask]]:
    shapes = [(3, 5), (1, config.num_heads, 3, 5)]
    found = [(SMALL, AttentionMask(bias=_bias(shape, place))) for shape in shapes]
    return [*found, (SQUARE, AttentionMask(bias=_bias((1, 1, 4, 4), 3)))] if place < 2 else found


def several(config: AttentionConfig, offset: int, seed: int) -> dict[str, object]:
    """Every source for (Lq, Lk) = WIDE; each takes keys away from every two, and key min(i, 2 or 3) stays in row i."""
    array = pattern((1, config.num_heads, *WIDE), seed)
    last = 2 + offset // 2
    kept = np.arange(WIDE[1]) == np.minimum(np.arange(WIDE[0]), last)[:, None]
    return {
        "valid_lens": np.array([last + 1]),
        "allowed": array | kept,
        "bias": np.where(np.roll(array, 1, axis=2) | kept, 0.0, -np.inf),
        "causal": True,
        "window": (2, 1),
    }


def _several(config: AttentionConfig, place: int) -> list[tuple[tuple[int, int], AttentionMask]]:
    """Every two sources, and all; with an offset and without."""
    if place > 1:
        return []
    offset = 2 * place
    sources = several(config, offset, place)
    pairs = list(combinations(sources, 2))
    some = [*(pairs if place == 0 else [pair for pair in pairs if {"causal", "window"} & {*pair}]), tuple(sources)]
    return [
        (WIDE, AttentionMask(query_offset=offset, **{name: sources[name] for name in names}))  # type: ignore[arg-type]
        for names in some
    ]


def _measured(*sources: str) -> Callable[[View], Iterator[Bug]]:
    return lambda view: proposals(view, sources)


PROBES = (
    Probe(
        "mask-lengths",
        "Lengths alone, equal scores: weights are uniform over the keys let in.",
        r"a_{hij} = [j < n] / n",
        _problems(_lengths),
        _measured("valid_lens"),
        unknown="whether lengths of padding are taken as they are given",
    ),
    Probe(
        "mask-causal",
        "causal alone, equal scores.",
        r"a_{hij} = [j \le i] / (i + 1)",
        _problems(_causal),
        _measured("causal"),
        unknown="whether causal is taken as it is given",
    ),
    Probe(
        "mask-offset",
        "causal and a window, each with a query offset, equal scores.",
        r"a_{hij} \propto [j \le i + p]",
        _problems(_offset),
        _measured("offset", "causal", "window"),
        unknown="where queries with an offset stand",
    ),
    Probe(
        "mask-window",
        "A window alone, equal scores: both sides, one, none of them bounded.",
        r"a_{hij} \propto [i - l \le j \le i + r]",
        _problems(_window),
        _measured("window"),
        unknown="whether a window is taken as it is given",
    ),
    Probe(
        "mask-lengths-per-query",
        "Lengths of each query, equal scores.",
        r"a_{hij} = [j < n_i] / n_i",
        _problems(_lengths_per_query),
        _measured("valid_lens"),
        unknown="whether lengths of each query are taken as they are given",
    ),
    Probe(
        "mask-allowed",
        "allowed alone in every shape that broadcasts, equal scores.",
        r"a_{hij} = m_{hij} / \sum_k m_{hik}",
        _problems(_allowed),
        _measured("allowed"),
        unknown="whether a bool mask is taken as it is given",
    ),
    Probe(
        "mask-infinite-bias",
        "-inf in the additive bias alone, equal scores.",
        r"a_{hij} \propto [b_{hij} > -\infty]",
        _problems(_infinite_bias),
        _measured("bias"),
        unknown="whether -inf in the bias excludes a key",
    ),
    Probe(
        "mask-sources",
        "Every two sources of a mask, and all of them, equal scores.",
        r"a_{hij} \propto \prod_s m^s_{hij}",
        _problems(_several),
        _measured("several"),
        unknown="how several sources of a mask are combined",
    ),
)
