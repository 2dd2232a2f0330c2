r"""What calls may have besides: dropout, many items, other lengths, a past.

Dropout:  the weights after dropout over those before it are kept_ij / a_ij = keep_ij / (1 - p).
A past:   where query i may attend to key i alone the heads are the values, of the past and new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import changed, generic, in_turn
from conformance.measure.probe import Probe, Problems
from conformance.measure.probes.items import of_several
from conformance.measure.propose.lengths import of_large, of_lengths, some_of_sweep
from conformance.measure.propose.steps import of_places
from mha_core import AttentionConfig, AttentionMask

# Dropout ------------------------------------------------------------------------------------------------------

RATES = (0.25, 0.4, 0.3, 0.15)
"""Of each layer that is asked another one, so that what depends on it can be told."""


@lru_cache(maxsize=64)
def _dropped(
    config: AttentionConfig, place: int, batch: int, query_len: int, key_len: int, *, training: bool
) -> Problem:
    rate = RATES[place % len(RATES)]
    config = replace(config, dropout=rate)
    shape = (batch, config.num_heads, query_len, key_len)
    keep = np.random.default_rng([place, *shape]).random(shape) >= max(rate, 0.3) if training else None
    return generic(config, seed=11, batch=batch, query_len=query_len, key_len=key_len, dropout_keep=keep)


def _training(asker: Asker) -> Sequence[Problem]:
    rows = [_dropped(config, place, 1, 3, 5, training=True) for place, config in enumerate(asker.configs)]
    return [*rows, *(_dropped(config, place, 1, 4, 4, training=True) for place, config in enumerate(asker.configs[:2]))]


def _training_items(asker: Asker) -> Sequence[Problem]:
    return [
        _dropped(config, place, (4, 3, 5, 2)[place % 4], 3, 5, training=True)
        for place, config in enumerate(asker.configs)
    ]


# Many items ---------------------------------------------------------------------------------------------------

MANY = (6, 7, 8, 9, 16, 17)


@lru_cache(maxsize=64)
def _repeated(config: AttentionConfig) -> Problem:
    """Three items, all of them the first."""
    problem = generic(config, batch=3)
    given = problem.inputs
    queries, keys, values = (np.repeat(one[:1], 3, 0) for one in (given.queries, given.keys, given.values))
    return changed(problem, queries=queries, keys=keys, values=values)


@lru_cache(maxsize=64)
def _with_lengths(config: AttentionConfig, batch: int) -> Problem:
    lens = 1 + np.arange(batch) % 4
    return generic(config, batch=batch, query_len=2, key_len=4, mask=AttentionMask(valid_lens=lens))


def _many(asker: Asker) -> Sequence[Problem]:
    configs = asker.configs
    some = in_turn(configs, [(batch, 2, 3) for batch in MANY])
    return [_repeated(configs[0]), *some, *map(_with_lengths, configs[:2] * 2, (5, 8))] if configs else []


# Lengths ------------------------------------------------------------------------------------------------------

MEDIUM = ((17, 33), (33, 15), (31, 32), (3, 65), (65, 5), (64, 63))
LARGE = ((2, 129), (130, 2), (2, 257), (257, 2), (2, 515), (515, 2))

EQUAL = ((2, 4), (2, 7), (2, 17), (7, 3))
GENERIC = ((2, 4), (2, 6), (2, 7), (2, 8), (2, 9), (2, 13), (2, 33), (4, 3), (7, 3), (9, 3), (33, 3), (5, 5), (8, 8))
"""Of the sweep, what every subject is asked; all of it if these show anything."""


def _of_sizes(sizes: Sequence[tuple[int, int]]) -> Problems:
    return lambda asker: in_turn(asker.configs, [(1, *lengths) for lengths in sizes])


# A past -------------------------------------------------------------------------------------------------------

PASTS = ((3, 4), (4, 3), (2, 4), (5, 2))
"""(past, new) keys of each layer's calls."""


@lru_cache(maxsize=256)
def _with_past(config: AttentionConfig, past: int, new: int, batch: int = 1) -> Problem:
    """A problem of random numbers with a past, and as many queries as keys."""
    problem = generic(config, batch=batch, query_len=past + new, key_len=new)
    rng = np.random.default_rng([past, new, batch, config.head_dim, config.value_head_dim])
    of_each = (batch, config.num_kv_heads, past)
    return changed(
        problem,
        past_keys=rng.normal(size=(*of_each, config.head_dim)),
        past_values=rng.normal(size=(*of_each, config.value_head_dim)),
    )


@lru_cache(maxsize=256)
def _own_key(config: AttentionConfig, past: int, new: int) -> Problem:
    """Query i attends to key i alone, so that nothing of the keys can show."""
    return changed(_with_past(config, past, new), mask=AttentionMask(allowed=np.eye(past + new, dtype=bool)))


@lru_cache(maxsize=256)
def _causal(config: AttentionConfig, past: int, new: int) -> Problem:
    """New queries behind a past, which see it and one another up to themselves."""
    return changed(_with_past(config, past, new), mask=AttentionMask(causal=True, query_offset=past - 1))


@lru_cache(maxsize=256)
def _padded(config: AttentionConfig, past: int, new: int, batch: int) -> Problem:
    """Lengths within the past and beyond it."""
    lens = np.array([past - 1, past + 1, past + new, 1][:batch])
    return changed(_with_past(config, past, new, batch), mask=AttentionMask(valid_lens=lens))


def _pasts(made: Callable[[AttentionConfig, int, int], Problem], most: int = 4) -> Problems:
    """A call of each of so many layers; and one with a past of one key, so that a limit is not put above that."""

    def problems(asker: Asker) -> Sequence[Problem]:
        calls = zip(asker.configs[:most], PASTS, strict=False)
        return [*(made(config, *lengths) for config, lengths in calls), *(made(c, 1, 3) for c in asker.configs[:1])]

    return problems


def _pasts_of_items(asker: Asker) -> Sequence[Problem]:
    some = list(zip(asker.configs, PASTS, (2, 3, 4), strict=False))
    found = [_with_past(config, *lengths, batch) for config, lengths, batch in some]
    return found + [_padded(config, *lengths, batch) for config, lengths, batch in some[1:]]


OF_VALUES = ("past_values", "projected_values", "values", "values read")
OF_KEYS = ("past_keys", "new_keys", "keys", "keys read")
OF_SUMS = ("kept_weights", "heads", "output", "similarity", "queries")

PROBES = (
    Probe(
        "dropout-evaluation",
        "A layer with a rate of dropout, and no keep-mask: nothing may be dropped.",
        r"kept_{ij} = a_{ij}",
        lambda asker: [_dropped(config, place, 1, 3, 5, training=False) for place, config in enumerate(asker.configs)],
        of_places("kept_weights", "scores"),
    ),
    Probe(
        "dropout",
        "A given keep-mask, one item: which weights are dropped, by what the others are multiplied.",
        r"kept_{ij} / a_{ij} = keep_{ij} / (1 - p)",
        _training,
        of_places("dropout", "kept_weights", "weights"),
        unknown="dropout in training",
    ),
    Probe(
        "dropout-items",
        "A given keep-mask, two to five items.",
        r"kept_{bij} / a_{bij} = keep_{bij} / (1 - p)",
        _training_items,
        of_places("dropout", "kept_weights"),
    ),
    Probe(
        "batches",
        "Batches of 6 to 17 items, one with lengths of their own, and one of equal items: all must be as if alone.",
        r"o_b(x_1, \ldots, x_B) = o(x_b)",
        _many,
        of_several,
        unknown="what batches of more than 5 items give",
    ),
    Probe(
        "lengths",
        "Calls of 1 to 33 queries and keys, with equal and with generic scores: what lengths alone bring about.",
        r"\{(L_q, L_k) : o \ne o'\}, \quad \{i : o_i \ne o'_i\}",
        lambda asker: some_of_sweep(asker.configs, EQUAL, GENERIC),
        of_lengths,
        everywhere="last",
        unknown="what other lengths give",
    ),
    Probe(
        "lengths-of-dozens",
        "Calls of up to 65 queries and keys: blocks of 16, 32 and 64 begin and end within them.",
        r"\{(L_q, L_k) : o \ne o'\}",
        _of_sizes(MEDIUM),
        of_large,
        unknown="what lengths of dozens give",
    ),
    Probe(
        "lengths-of-hundreds",
        "Calls of up to 515 queries or keys: blocks of 128, 256 and 512 begin and end within them.",
        r"\{(L_q, L_k) : o \ne o'\}",
        _of_sizes(LARGE),
        of_large,
        unknown="what lengths of hundreds give",
    ),
    Probe(
        "past-values",
        "A past, and a mask by which each query attends to one key alone: its value is the head's, of a past or not.",
        r"o_i = W_o R v_i + b_o, \quad v = (v^{past}, W_v x + b_v)",
        _pasts(_own_key),
        of_places(*OF_VALUES),
    ),
    Probe(
        "past",
        "A past and generic scores: past keys and values in front of the new ones.",
        r"\log a_{ij} - \log a_{il} = c\, q_i^\top (k_j - k_l), \quad k = (k^{past}, W_k x + b_k)",
        _pasts(_with_past),
        of_places(*OF_KEYS, *OF_VALUES, *OF_SUMS),
        unknown="what a past does",
    ),
    Probe(
        "past-of-items",
        "Two to four items, each with a past of its own, also with lengths.",
        r"k_b = (k^{past}_b, W_k x_b + b_k), \quad v_b = (v^{past}_b, W_v x_b + b_v)",
        _pasts_of_items,
        of_places(*OF_KEYS, *OF_VALUES),
        unknown="whether each item has its own past",
    ),
    Probe(
        "past-and-causal",
        "A past and a causal mask whose offset is its length.",
        r"m_{ij} = [j \le i + o]",
        _pasts(_causal, 3),
        of_places(*OF_KEYS, *OF_VALUES),
    ),
)
