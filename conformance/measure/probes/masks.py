"""Masks: with equal scores weights are uniform over the keys that a query may attend to, so the allowed keys show.

    weights[b, h, i, j] = allowed[b, h, i, j] / sum_k allowed[b, h, i, k]

Each source is met alone, then every two and all five of them. Every row keeps some key in and some key out, so that
neither rows without a key nor the way of excluding keys can show; that comes last, with scores that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import EQUAL_SCORES, NO_BIASES, generic
from conformance.measure.evidence import Evidence
from conformance.measure.probe import Probe, Problems
from conformance.measure.propose.equivalent_calls import AMONG_MASKS, asked_in
from conformance.measure.propose.extremes import empty_row_bugs, excluded, nan_bugs, padding_bugs
from conformance.measure.propose.masks import of_given, of_sources
from conformance.measure.propose.steps import Candidate, at_places
from conformance.measure.read.weights import read_weights
from mha_core import AttentionConfig, AttentionMask

EQUAL = {**NO_BIASES, "q_proj.weight": 0.0}
"""Queries are 0 and nothing has a bias."""

MOST_CONFIGS = 3
"""Masks depend on few sizes of a layer: fewer of them are asked for than where numbers are read off."""

Lengths = tuple[int, int]

SMALL, WIDE, SQUARE, LARGE = (3, 5), (4, 7), (4, 4), (6, 11)
"""(Lq, Lk)."""

Masks = Callable[[AttentionConfig, int], Sequence[tuple[Lengths, AttentionMask]]]
"""(config, its place in the asker) -> ((Lq, Lk), mask) of its problems."""


def _problems(masks: Masks) -> Problems:
    return lambda asker: [
        generic(config, query_len=query_len, key_len=key_len, mask=mask, weights=EQUAL)
        for place, config in enumerate(asker.configs[:MOST_CONFIGS])
        for (query_len, key_len), mask in masks(config, place)
    ]


def pattern(shape: tuple[int, ...], seed: int) -> NDArray[np.bool_]:
    """Bool of a shape whose last axis has keys: each row lets in at least two and keeps out at least one."""
    rng = np.random.default_rng([seed, *shape])
    order = rng.permuted(np.broadcast_to(np.arange(shape[-1]), shape), axis=-1)
    counts = rng.integers(2, shape[-1], size=shape[:-1])
    return np.asarray(order < counts[..., None])


def _infinite(allowed: NDArray) -> NDArray:
    return np.where(allowed, 0.0, -np.inf)


Rows = list[tuple[Lengths, AttentionMask]]


def _lengths(config: AttentionConfig, place: int) -> Rows:
    found = [(SMALL, n) for n in (2, 4)] + ([(WIDE, 3), (WIDE, 5), (LARGE, 9 - 4 * place)] if place < 2 else [])
    return [(lengths, AttentionMask(valid_lens=np.array([n]))) for lengths, n in found]


def _lengths_per_query(config: AttentionConfig, place: int) -> Rows:
    found = [(SMALL, [3, 2, 4])] + ([(WIDE, [2, 6, 3, 5])] if place < 2 else [])
    return [(lengths, AttentionMask(valid_lens=np.array([lens]))) for lengths, lens in found]


def _causal(config: AttentionConfig, place: int) -> Rows:
    return [(lengths, AttentionMask(causal=True)) for lengths in (SMALL, SQUARE, LARGE)[: 3 if place < 2 else 1]]


def _offset(config: AttentionConfig, place: int) -> Rows:
    found = [(SMALL, AttentionMask(causal=True, query_offset=1))]
    if place < 2:
        found.append((WIDE, AttentionMask(causal=True, query_offset=2)))
        found += [(WIDE, AttentionMask(window=(2, 1), query_offset=n)) for n in (1, 2)]
        found.append((LARGE, AttentionMask(causal=True, query_offset=4 - place)))
    return found


WINDOWS: tuple[tuple[int | None, int | None], ...] = ((2, 1), (1, 3), (0, 2), (1, None), (None, 1))


def _window(config: AttentionConfig, place: int) -> Rows:
    found = [(WIDE, AttentionMask(window=window)) for window in WINDOWS[: (5, 3, 1)[place]]]
    more = [(SQUARE, AttentionMask(window=(1, 0))), (LARGE, AttentionMask(window=(4, 2)))]
    return [*found, *(more if place < 2 else ())]


def _allowed(config: AttentionConfig, place: int) -> Rows:
    heads = config.num_heads
    shapes = [(1, 1, 1, 5), (3, 5), (heads, 3, 5), (1, 1, 3, 5), (1, heads, 3, 5), (5,), (heads, 1, 5)]
    found = [(SMALL, AttentionMask(allowed=pattern(shape, place))) for shape in shapes[: (7, 3, 2)[place]]]
    square = [(SQUARE, AttentionMask(allowed=pattern((1, heads, 4, 4), 3)))]
    return [*found, *(square if place < 2 else ())]


def _infinite_bias(config: AttentionConfig, place: int) -> Rows:
    shapes = [(3, 5), (1, config.num_heads, 3, 5)]
    found = [(SMALL, AttentionMask(bias=_infinite(pattern(shape, place)))) for shape in shapes]
    square = [(SQUARE, AttentionMask(bias=_infinite(pattern((1, 1, 4, 4), 3))))]
    return [*found, *(square if place < 2 else ())]


def _several(config: AttentionConfig, place: int) -> Rows:
    """Every two sources, and all; with an offset and without. Each takes keys away from every two; some stay."""
    if place > 1:
        return []
    offset = 2 * place
    array = pattern((1, config.num_heads, *WIDE), place)
    last = 2 + offset // 2
    kept = np.arange(WIDE[1]) == np.minimum(np.arange(WIDE[0]), last)[:, None]
    sources: dict[str, Any] = {
        "valid_lens": np.array([last + 1]),
        "allowed": array | kept,
        "bias": _infinite(np.roll(array, 1, axis=2) | kept),
        "causal": True,
        "window": (2, 1),
    }
    pairs = list(combinations(sources, 2))
    some = [*(pairs if place == 0 else [pair for pair in pairs if {"causal", "window"} & {*pair}]), tuple(sources)]
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
            AttentionMask(bias=_infinite(pattern(shapes[1], 6))),
            AttentionMask(causal=True, query_offset=np.array([2, 0, 1, 4, 3])[:batch]),
            AttentionMask(window=(2, 1), query_offset=np.array([1, 3, 0, 2, 4])[:batch]),
            AttentionMask(valid_lens=lens, causal=True),
        ]
        how: dict[str, Any] = {"batch": batch, "query_len": query_len, "key_len": key_len, "weights": EQUAL}
        found += [generic(config, mask=mask, **how) for mask in masks]
    return found


def _alike(asker: Asker) -> Sequence[Problem]:
    return asked_in(AMONG_MASKS, [generic(config, weights=EQUAL_SCORES) for config in asker.configs[:3]])


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
        _alike,
        circumstances=AMONG_MASKS,
    ),
)

# With scores that differ --------------------------------------------------------------------------------------


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


def _masked_and_biased(asker: Asker) -> Sequence[Problem]:
    found = []
    for config in asker.configs[:2]:
        numbers = np.random.default_rng(6).normal(size=(1, config.num_heads, *SMALL))
        bias = np.where(np.abs(numbers) < 0.2, 0.0, numbers)
        found.append(generic(config, mask=AttentionMask(causal=True, bias=bias)))
        bias = np.where(pattern(bias.shape, 8), bias, -np.inf)
        found.append(generic(config, mask=AttentionMask(bias=bias)))
        found.append(generic(config, mask=AttentionMask(bias=bias, valid_lens=np.array([4]))))
    return found


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


WITH_SCORES = (
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
        _masked_and_biased,
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
        AttentionMask(bias=_infinite(_row_out(SMALL))),
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


def _open_nan(asker: Asker) -> Sequence[Problem]:
    def with_nan(array: NDArray, *index: int) -> NDArray:
        found = array.copy()
        found[index] = np.nan
        return found

    found = []
    for config in asker.configs[:2]:
        given = generic(config).inputs
        found.append(generic(config, queries=with_nan(given.queries, 0, 1, 2)))
        found.append(generic(config, keys=with_nan(given.keys, 0, 3, 1)))
        found.append(generic(config, values=with_nan(given.values, 0, 3, 1)))
        found.append(generic(config, keys=with_nan(given.keys, 0, 2, 1), mask=AttentionMask(causal=True)))
    return found


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
        _open_nan,
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
