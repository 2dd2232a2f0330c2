r"""Queries, keys and scores as they really are, read off a subject's weights, and what relates them to the right ones.

Scores follow from log weights up to a number per row. With more keys than channels they are so many equations for each
query, and with as many queries as channels for each key, of which all may be off by one row:

    q'_i = \arg\min_q |S'_i - c\, q\, \bar K^\top|,   \bar k'_j = \arg\min_k |\bar S'_j - c\, k\, Q^\top|

S' less its mean over the keys, and \bar K the keys less theirs. If nothing is left, the change is one of that side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.candidates.scores.places import (
    ADDED,
    CAPPED,
    HEADS,
    INPUTS,
    KEYS,
    SIMILARITY,
    WEIGHTS,
    setting_of,
)
from conformance.experiments.candidates.scores.places import SCORES as SCORES_AND_BIAS
from conformance.experiments.candidates.scores.target import Target
from conformance.experiments.candidates.steps import read_otherwise
from conformance.experiments.changes.fit import gives, singles
from conformance.experiments.changes.sample import Change, Sample
from conformance.experiments.changes.where import part_changes
from conformance.experiments.designs import NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.linear import pseudo_inverse
from conformance.experiments.view import View
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core import AttentionConfig
from mha_core.call.masks import additive_bias
from mha_core.reference.state import State

LENGTHS = ((6, 11), (11, 6), (5, 22), (22, 5))
"""Queries and keys of the layers' calls: enough for several places of each kind, and for the equations."""

LEFT = 1e-7
"""What the equations may leave, relative to the scores."""

MOST = 12
"""Changes of one array that are proposed."""

ARRAY = ("item", "head", "position", "channel")
SCORES = ("item", "head", "query", "key")


@lru_cache(maxsize=64)
def _longer(config: AttentionConfig, query_len: int, key_len: int) -> Problem:
    return generic(
        config,
        query_len=max(query_len, config.head_dim),
        key_len=max(key_len, config.head_dim + 1),
        weights=NO_BIASES,
    )


def longer(lab: Lab) -> Sequence[Problem]:
    """A call of each layer with more queries and keys than it has channels, without biases and masks."""
    return lab.nearest([_longer(config, *LENGTHS[place % len(LENGTHS)]) for place, config in enumerate(lab.configs)])


def read_arrays(view: View) -> Iterator[Bug]:
    """Every change of queries, of keys or of scores that is read off calls without biases and masks."""
    read = []
    for problem in longer(view.lab):
        target = Target(view, problem)
        if target.measured is None or not target.is_plain or not np.isfinite(target.measured).all():
            return
        read.append(target)
    if not any(not target.is_given_by() for target in read):
        return
    yield from _of_queries(read)
    yield from _of_keys(read)
    yield from _of_scores(read)


def _sample(target: Target, measured: NDArray, expected: NDArray, axes: tuple[str, ...]) -> Sample:
    size = float(np.abs(expected).max(initial=0.0))
    unit = max(1e-12, 100.0 * target.view.lab.unit)
    return Sample(measured, expected, axes, target.setting, unit=unit, least=1e-9 * size)


def _centred(array: NDArray, axis: int) -> NDArray:
    found: NDArray = array - array.mean(axis=axis, keepdims=True)
    return found


def _solved(target: Target, known: NDArray, wanted: NDArray) -> NDArray | None:
    """(B, H, n, d): x with x @ known^T = wanted (B, H, n, m), or None if that leaves anything."""
    if known.shape[-2] < known.shape[-1]:
        return None
    found: NDArray = wanted @ pseudo_inverse(known).swapaxes(-1, -2)
    left = np.abs(found @ known.swapaxes(-1, -2) - wanted).max(initial=0.0)
    return found if left <= max(LEFT, 1e4 * target.view.lab.unit) * target.size else None


def _changes(samples: Sequence[Sample]) -> Iterator[Change]:
    if any(sample.differs for sample in samples):
        with any_numbers:
            ordered = sorted(samples, key=lambda sample: not sample.differs)
            found = singles(ordered) or [one for one in part_changes(ordered, singles) if gives(one, ordered)]
        # Another order and a factor on top of it are two faults, as where values are fitted.
        yield from [one for one in found if not one.slug.startswith("0-of-it-")][:MOST]


# Queries ----------------------------------------------------------------------------------------------


def _of_queries(read: Sequence[Target]) -> Iterator[Bug]:
    samples = []
    for target in read:
        keys = _centred(target.state.heads_of("keys"), -2) * target.state.config.softmax_scale
        assert target.measured is not None
        queries = _solved(target, keys, target.measured)
        if queries is None:
            return
        samples.append(_sample(target, queries, target.state["queries"], ARRAY))
    for change in _changes(samples):
        yield HEADS[0].changed(change)
        yield from _before(change, 0)


def _before(change: Change, side: int) -> Iterator[Bug]:
    """The same before the projection: of the matrix' rows, split into heads, or of the positions of the input."""
    yield WEIGHTS[side].bug(f"split-{change.slug}", _of_rows(change, side), f"the definition's {change.words}")
    yield INPUTS[side].bug(f"as-{change.slug}", _of_input(change), f"the definition's {change.words}")


def _of_rows(change: Change, side: int) -> Callable[[State, NDArray], NDArray]:
    def apply(state: State, matrix: NDArray) -> NDArray:
        heads = state.config.num_kv_heads if side else state.config.num_heads
        split = matrix.reshape(heads, -1, matrix.shape[1]).swapaxes(1, 2)[None]
        changed = change.apply(split, ARRAY, setting_of(state))
        if changed.shape != split.shape:
            raise DoesNotApply("the matrix has another shape then")
        return changed[0].swapaxes(1, 2).reshape(matrix.shape)

    return apply


def _of_input(change: Change) -> Callable[[State, NDArray], NDArray]:
    def apply(state: State, x: NDArray) -> NDArray:
        changed = change.apply(x[:, None], ARRAY, setting_of(state))
        if changed.shape != (len(x), 1, *x.shape[1:]):
            raise DoesNotApply("the input has another shape then")
        return changed[:, 0]

    return apply


# Keys -------------------------------------------------------------------------------------------------

Gauge = Callable[[NDArray, NDArray], tuple[NDArray, NDArray]]
"""(measured, expected), each up to a number that is the same along an axis, now last -> both, comparable."""


def _first_alike(measured: NDArray, expected: NDArray) -> tuple[NDArray, NDArray]:
    return measured + (expected - measured)[..., :1], expected


def _last_alike(measured: NDArray, expected: NDArray) -> tuple[NDArray, NDArray]:
    return measured + (expected - measured)[..., -1:], expected


def _mean_alike(measured: NDArray, expected: NDArray) -> tuple[NDArray, NDArray]:
    return measured + (expected - measured).mean(axis=-1, keepdims=True), expected


def _less_their_means(measured: NDArray, expected: NDArray) -> tuple[NDArray, NDArray]:
    return _centred(measured, -1), _centred(expected, -1)


GAUGES: tuple[Gauge, ...] = (_less_their_means, _mean_alike, _first_alike, _last_alike)
"""What is not known may be: of no account (all along the axis change alike), or as it is where the axis begins or ends,
or such that all along the axis are there, in another order."""


def _gauged(read: Sequence[tuple[Target, NDArray, NDArray]], axis: int, axes: tuple[str, ...]) -> Iterator[Change]:
    """The changes that some gauge shows, of arrays that are known up to a number along an axis."""
    seen: set[str] = set()
    for gauge in GAUGES:
        samples = []
        for target, measured, expected in read:
            m, e = gauge(np.moveaxis(measured, axis, -1), np.moveaxis(expected, axis, -1))
            samples.append(_sample(target, np.moveaxis(m, -1, axis), np.moveaxis(e, -1, axis), axes))
        for change in _changes(samples):
            if change.slug not in seen:
                seen.add(change.slug)
                yield change


def _of_keys(read: Sequence[Target]) -> Iterator[Bug]:
    found, whole = [], True
    for target in read:
        queries = target.state["queries"] * target.state.config.softmax_scale
        assert target.measured is not None
        keys = _solved(target, queries, target.measured.swapaxes(-1, -2))
        if keys is None:
            return
        expected = target.state.heads_of("keys")
        found.append((target, keys, expected))
        groups = keys.reshape(keys.shape[0], target.state.config.num_kv_heads, -1, *keys.shape[2:])
        whole &= bool(np.allclose(groups, groups[:, :, :1], rtol=1e-6, atol=1e-7 * target.size))
    if whole:
        own = []
        for target, keys, _ in found:
            each = target.state.config.num_heads // target.state.config.num_kv_heads
            own.append((target, keys[:, ::each], target.state["new_keys"]))
        for change in _gauged(own, -2, ARRAY):
            yield HEADS[1].changed(change)
            yield KEYS.changed(change)
            yield from _before(change, 1)
    if not whole or any(t.state.config.num_heads > t.state.config.num_kv_heads for t in read):
        for change in _gauged(found, -2, ARRAY):
            yield read_otherwise("keys", change)


# Scores -----------------------------------------------------------------------------------------------


def _of_scores(read: Sequence[Target]) -> Iterator[Bug]:
    found = [(target, target.measured, target.state["similarity"]) for target in read if target.measured is not None]
    for change in _gauged(found, -1, SCORES):
        for place in (SIMILARITY, CAPPED, SCORES_AND_BIAS):
            yield place.changed(change)


def read_bias(view: View, problems: Iterable[Problem]) -> Iterator[Bug]:
    """Every change of the additive bias that is read off what scores are besides those before it."""
    found, differs = [], False
    for problem in problems:
        target = Target(view, problem)
        if problem.inputs.mask.bias is None or target.measured is None or not target.is_plain:
            continue
        state = target.state
        bias = np.broadcast_to(additive_bias(state.inputs.mask), state["capped"].shape)
        rest = target.measured - _centred(state["capped"], -1)
        if np.isfinite(rest).all():
            found.append((target, rest, np.array(bias)))
            differs |= not target.is_given_by()
    if differs:
        for change in _gauged(found, -1, SCORES):
            yield ADDED.changed(change)
