"""Masks: with equal scores weights are uniform over the keys that a query may attend to, so the allowed keys show.

    weights[b, h, i, j] = allowed[b, h, i, j] / sum_k allowed[b, h, i, k]

Each source is met alone, then every two and all five of them. Every row keeps some key in and some key out, so that
neither rows without a key nor the way of excluding keys can show; that comes last, with scores that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import EQUAL_SCORES, NO_BIASES, generic
from conformance.measure.probe import Probe, Problems
from conformance.measure.propose.equivalent_calls import AMONG_MASKS, asked_in
from conformance.measure.propose.masks import of_given, of_sources
from conformance.measure.propose.steps import of_places
from mha_core import AttentionConfig, AttentionMask

EQUAL = {**NO_BIASES, "q_proj.weight": 0.0}
"""Queries are 0 and nothing has a bias."""

MOST_CONFIGS = 3
"""Masks depend on few sizes of a layer: fewer of them are asked for than where numbers are read off."""

Lengths = tuple[int, int]

SMALL, WIDE, SQUARE, LARGE = (3, 5), (4, 7), (4, 4), (6, 11)
"""(Lq, Lk)."""

Rows = Iterable[tuple[Lengths, AttentionMask]]
"""(Lq, Lk) and the mask of each problem."""


def _problems(rows: Callable[[AttentionConfig, int], Rows]) -> Problems:
    """Problems of rows(config, its place in the asker)."""
    return lambda asker: [
        generic(config, query_len=query_len, key_len=key_len, mask=mask, weights=EQUAL)
        for place, config in enumerate(asker.configs[:MOST_CONFIGS])
        for (query_len, key_len), mask in rows(config, place)
    ]


def pattern(shape: tuple[int, ...], seed: int) -> NDArray[np.bool_]:
    """Bool of a shape whose last axis has keys: each row lets in at least two and keeps out at least one."""
    rng = np.random.default_rng([seed, *shape])
    order = rng.permuted(np.broadcast_to(np.arange(shape[-1]), shape), axis=-1)
    counts = rng.integers(2, shape[-1], size=shape[:-1])
    return np.asarray(order < counts[..., None])


def infinite(allowed: NDArray) -> NDArray:
    """A bias that excludes all but the allowed keys."""
    return np.where(allowed, 0.0, -np.inf)


def _lens(rows: Iterable[tuple[Lengths, object]]) -> Rows:
    return [(lengths, AttentionMask(valid_lens=np.array([lens]))) for lengths, lens in rows]


def _lengths(config: AttentionConfig, place: int) -> Rows:
    more = ((WIDE, 3), (WIDE, 5), (LARGE, 9 - 4 * place)) if place < 2 else ()
    return _lens(((SMALL, 2), (SMALL, 4), *more))


def _lengths_per_query(config: AttentionConfig, place: int) -> Rows:
    return _lens(((SMALL, [3, 2, 4]), *(((WIDE, [2, 6, 3, 5]),) if place < 2 else ())))


def _causal(config: AttentionConfig, place: int) -> Rows:
    return [(lengths, AttentionMask(causal=True)) for lengths in (SMALL, SQUARE, LARGE)[: 3 if place < 2 else 1]]


def _offset(config: AttentionConfig, place: int) -> Rows:
    found = [(SMALL, AttentionMask(causal=True, query_offset=1)), (WIDE, AttentionMask(causal=True, query_offset=2))]
    found += [(WIDE, AttentionMask(window=(2, 1), query_offset=n)) for n in (1, 2)]
    return [*found, (LARGE, AttentionMask(causal=True, query_offset=4 - place))][: 5 if place < 2 else 1]


WINDOWS: tuple[tuple[int | None, int | None], ...] = ((2, 1), (1, 3), (0, 2), (1, None), (None, 1))


def _window(config: AttentionConfig, place: int) -> Rows:
    found = [(WIDE, AttentionMask(window=window)) for window in WINDOWS[: (5, 3, 1)[place]]]
    more = [(SQUARE, AttentionMask(window=(1, 0))), (LARGE, AttentionMask(window=(4, 2)))]
    return [*found, *(more if place < 2 else ())]


def _allowed(config: AttentionConfig, place: int) -> Rows:
    heads = config.num_heads
    shapes = [(1, 1, 1, 5), (3, 5), (heads, 3, 5), (1, 1, 3, 5), (1, heads, 3, 5), (5,), (heads, 1, 5)]
    found = [(SMALL, AttentionMask(allowed=pattern(shape, place))) for shape in shapes[: (7, 3, 2)[place]]]
    return [*found, *([(SQUARE, AttentionMask(allowed=pattern((1, heads, 4, 4), 3)))] if place < 2 else [])]


def _infinite_bias(config: AttentionConfig, place: int) -> Rows:
    shapes = [(3, 5), (1, config.num_heads, 3, 5)]
    found = [(SMALL, AttentionMask(bias=infinite(pattern(shape, place)))) for shape in shapes]
    return [*found, *([(SQUARE, AttentionMask(bias=infinite(pattern((1, 1, 4, 4), 3))))] if place < 2 else [])]


def _several(config: AttentionConfig, place: int) -> Rows:
    """Every two sources, and all; with an offset and without. Each takes keys away from every two; some stay."""
    offset = 2 * place
    array = pattern((1, config.num_heads, *WIDE), place)
    last = 2 + offset // 2
    kept = np.arange(WIDE[1]) == np.minimum(np.arange(WIDE[0]), last)[:, None]
    sources: dict[str, Any] = {
        "valid_lens": np.array([last + 1]),
        "allowed": array | kept,
        "bias": infinite(np.roll(array, 1, axis=2) | kept),
        "causal": True,
        "window": (2, 1),
    }
    pairs = [pair for pair in combinations(sources, 2) if place == 0 or {"causal", "window"} & {*pair}]
    some = [*pairs, tuple(sources)] if place < 2 else []
    return [(WIDE, AttentionMask(query_offset=offset, **{name: sources[name] for name in names})) for names in some]


# Several items ------------------------------------------------------------------------------------------------


def _of_items(asker: Asker) -> Sequence[Problem]:
    """Three and five items, by which orders of some of them alone are told apart, each with a mask of its own."""
    found = []
    for config, batch in zip(asker.configs, (3, 5), strict=False):
        query_len, key_len = WIDE
        lens = np.array([5, 2, 3, 6, 4])[:batch]
        of_queries = np.array([[3, 2, 5, 6], [6, 3, 2, 4], [2, 5, 4, 3], [4, 6, 3, 2], [5, 4, 6, 5]])[:batch]
        shapes = [(batch, 1, 1, key_len), (batch, 1, *WIDE), (batch, config.num_heads, *WIDE)]
        masks = [
            AttentionMask(valid_lens=lens),
            AttentionMask(valid_lens=of_queries),
            *(AttentionMask(allowed=pattern(shape, 4)) for shape in shapes),
            AttentionMask(bias=infinite(pattern(shapes[1], 6))),
            AttentionMask(causal=True, query_offset=np.array([2, 0, 1, 4, 3])[:batch]),
            AttentionMask(window=(2, 1), query_offset=np.array([1, 3, 0, 2, 4])[:batch]),
            AttentionMask(valid_lens=lens, causal=True),
        ]
        how: dict[str, Any] = {"batch": batch, "query_len": query_len, "key_len": key_len, "weights": EQUAL}
        found += [generic(config, mask=mask, **how) for mask in masks]
    return found


PROBES = (
    Probe(
        "mask-lengths",
        "Lengths alone, equal scores: weights are uniform over the keys let in.",
        r"a_{hij} = [j < n] / n",
        _problems(_lengths),
        of_sources("valid_lens"),
        unknown="whether lengths of padding are taken as they are given",
    ),
    Probe(
        "mask-causal",
        "causal alone, equal scores.",
        r"a_{hij} = [j \le i] / (i + 1)",
        _problems(_causal),
        of_sources("causal"),
        unknown="whether causal is taken as it is given",
    ),
    Probe(
        "mask-offset",
        "causal and a window, each with a query offset, equal scores.",
        r"a_{hij} \propto [j \le i + p]",
        _problems(_offset),
        of_sources("causal", "window"),
        unknown="where queries with an offset stand",
    ),
    Probe(
        "mask-window",
        "A window alone, equal scores: both sides, one, none of them bounded.",
        r"a_{hij} \propto [i - l \le j \le i + r]",
        _problems(_window),
        of_sources("window"),
        unknown="whether a window is taken as it is given",
    ),
    Probe(
        "mask-lengths-per-query",
        "Lengths of each query, equal scores.",
        r"a_{hij} = [j < n_i] / n_i",
        _problems(_lengths_per_query),
        of_sources("valid_lens"),
        unknown="whether lengths of each query are taken as they are given",
    ),
    Probe(
        "mask-allowed",
        "allowed alone in every shape that broadcasts, equal scores.",
        r"a_{hij} = m_{hij} / \sum_k m_{hik}",
        _problems(_allowed),
        of_sources("allowed"),
        unknown="whether a bool mask is taken as it is given",
    ),
    Probe(
        "mask-infinite-bias",
        "-inf in the additive bias alone, equal scores.",
        r"a_{hij} \propto [b_{hij} > -\infty]",
        _problems(_infinite_bias),
        of_sources("bias"),
        unknown="whether -inf in the bias excludes a key",
    ),
    Probe(
        "mask-sources",
        "Every two sources of a mask, and all of them, equal scores.",
        r"a_{hij} \propto \prod_s m^s_{hij}",
        _problems(_several),
        of_sources("several"),
        unknown="how several sources of a mask are combined",
    ),
    Probe(
        "mask-items",
        "Three and five items, each with a mask of its own from one source, equal scores.",
        r"a_{bhij} = m_{bhij} / \sum_k m_{bhik}",
        _of_items,
        of_given,
        unknown="whether each item of a batch has its own mask",
    ),
    Probe(
        "calls-alike-of-equal-scores",
        "Masks that hide nothing, with equal scores: all as without them.",
        r"o(x, m) = o(x) \quad \text{where} \quad m_{ij} = 1",
        lambda asker: asked_in(AMONG_MASKS, [generic(c, weights=EQUAL_SCORES) for c in asker.configs[:3]]),
        of_places("output", "heads", "values"),
    ),
)
