r"""Shown: scores and values read off one by one, and what was done to them, or to a part of them.

A key of 0 has the score 0, which most functions leave as it is, so the others' scores are read against it; and a query
that gives all its weight to one key shows the value there:

    log a_ij - log a_i0 = f(s_ij) - f(0)        o_i = W_o R f(v_i)  where  s_ii - s_ij >= 45
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.candidates.scores.places import SCORES, SIMILARITY, UNSCALED
from conformance.experiments.candidates.steps import PLACES, change_on
from conformance.experiments.changes.fit import one_change
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.experiments.designs import NO_BIASES, changed, generic, selector
from conformance.experiments.readings.queries import read_against_zero, scale_of
from conformance.experiments.readings.values import read_heads
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig

SIZES = ((6, 7), (5, 8), (4, 6), (7, 9))
"""Queries and keys of each layer: enough to tell the places of a part."""

SHORTER = ((3, 4), (8, 5))
"""Calls of the first layers besides, to tell what happens in longer calls only."""

FACTORS = (1.0, 4.0, 0.1)
"""Values so many times as large are read: a limit shows, and a threshold."""

DENSE = 0.15
"""Samples of which fewer elements differ don't tell where the part is that a threshold acts on."""

GAP = 45.0
"""By which the score of a chosen key is above all others."""

MOST_CHANGES = 6


def parts_shown(view: View) -> Iterator[Bug]:
    """Each change of scores or values, or of a part of them, that gives all that is read of them."""
    for change in _changes(_scores(view)):
        yield from (place.changed(change) for place in (SIMILARITY, SCORES))
    for change in _changes(_scores(view, unscaled=True)):
        yield UNSCALED.changed(change)
    for change in _changes(_values(view)):
        yield from (change_on(step, change) for step in ("values", "new_values"))


def _changes(samples: Sequence[Sample]) -> list[Change]:
    """The changes of one whole array, or of a part of it."""
    if not any(sample.differs for sample in samples):
        return []
    ordered = sorted(samples, key=lambda sample: not sample.differs)
    dense = [sample for sample in ordered if not sample.differs or sample.differing.mean() > DENSE]
    with any_numbers:
        found = one_change(ordered)[:MOST_CHANGES]
        if len(dense) < len(ordered) and any(sample.differs for sample in dense):
            found = [*one_change(dense)[:MOST_CHANGES], *found]
    return list({change.slug: change for change in found}.values())


def _calls(view: View) -> Iterator[tuple[AttentionConfig, int, int]]:
    for sizes in (SIZES, SHORTER):
        for config, (query_len, key_len) in zip(view.lab.configs, sizes, strict=False):
            yield config, query_len, key_len


def _sample(measured: NDArray | None, expected: NDArray | None, axes: tuple[str, ...], one: Problem) -> list[Sample]:
    if measured is None or expected is None or measured.shape != expected.shape:
        return []
    return [Sample(measured, expected, axes, Setting(one.config, one.sizes))]


# Scores -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def scores_shown(config: AttentionConfig, query_len: int, key_len: int, zero: int) -> Problem:
    """Random queries, the later ones larger, against random keys, of which key `zero` is 0."""
    plain = generic(config, seed=3, query_len=query_len, key_len=key_len, weights=NO_BIASES)
    keys = np.array(plain.inputs.keys)
    keys[:, zero] = 0.0
    sizes = np.geomspace(0.2, 4.0, query_len)[None, :, None]
    return changed(plain, keys=keys, queries=plain.inputs.queries * sizes)


def _scores(view: View, *, unscaled: bool = False) -> list[Sample]:
    found = []
    for config, query_len, key_len in _calls(view):
        scale = scale_of(config) if unscaled else 1.0
        for zero in (0, key_len - 1):
            one = scores_shown(config, query_len, key_len, zero)
            read = (read_against_zero(answer, one, zero) for answer in (view.got, view.made))
            measured, expected = (None if scores is None else scores / scale for scores in read)
            found += _sample(measured, expected, SIMILARITY.axes, one)
    return found


# Values -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def values_shown(config: AttentionConfig, length: int, size: float) -> Problem | None:
    """Query i gives all its weight to key i: s_ij = c (i j - j^2 / 2), counted from the middle.

    None in a layer with one channel a head, or without projections.

    >>> from conformance.experiments.designs import CONFIGS
    >>> from mha_core import reference
    >>> one = values_shown(CONFIGS[0], 5, 1.0)
    >>> bool(np.allclose(reference.run(one.config, one.weights, one.inputs).weights, np.eye(5)))
    True
    """
    if min(config.head_dim, config.query_dim, config.key_dim) < 2 or not config.projections:
        return None
    root = float(np.sqrt(2.0 * GAP / abs(scale_of(config))))
    places = np.arange(length) - (length - 1) / 2.0
    queries, keys = np.zeros((1, length, config.query_dim)), np.zeros((1, length, config.key_dim))
    queries[0, :, 0], queries[0, :, 1] = root * places, root
    keys[0, :, 0], keys[0, :, 1] = root * places, -0.5 * root * places**2
    weights: dict[str, NDArray | float] = {
        **NO_BIASES,
        "q_proj.weight": np.tile(selector(config.head_dim, config.query_dim), (config.num_heads, 1)),
        "k_proj.weight": np.tile(selector(config.head_dim, config.key_dim), (config.num_kv_heads, 1)),
    }
    return generic(
        config, seed=3, query_len=length, key_len=length, weights=weights, queries=queries, keys=keys, values=size
    )


def _values(view: View) -> list[Sample]:
    found = []
    for config, _, key_len in _calls(view):
        each = config.num_heads // config.num_kv_heads
        for size in FACTORS:
            one = values_shown(config, key_len, size)
            if one is not None:
                read = (read_heads(answer, one) for answer in (view.got, view.made))
                measured, expected = (None if heads is None else heads[:, ::each] for heads in read)
                found += _sample(measured, expected, PLACES["values"].axes, one)
    return found
