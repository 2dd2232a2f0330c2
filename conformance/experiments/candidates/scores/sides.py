"""Sides: what was done to the inputs, weights and heads of queries, or of keys: all are solved for in plain calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.candidates.fitted import is_one
from conformance.experiments.candidates.scores.places import HEADS, INPUTS, KEYS, WEIGHTS, setting_of
from conformance.experiments.candidates.steps import read_otherwise
from conformance.experiments.changes.fit import gives, singles
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.experiments.changes.where import part_changes
from conformance.experiments.designs import NO_BIASES, changed, generic
from conformance.experiments.lab import Lab
from conformance.experiments.solving.solved import samples_of
from conformance.experiments.view import View
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core import AttentionConfig
from mha_core.reference.state import State

LENGTHS = ((6, 11), (11, 6), (5, 22), (22, 5))
"""Queries and keys of the layers' calls: enough for several places of each kind, and for the equations."""

SHOWN = (7, 6, 9, 8)
"""Queries, or keys, of the layers' calls that show them."""

MOST = 12
"""Changes of one array that are proposed."""

ARRAY = ("item", "head", "position", "channel")


def changes_of(samples: Sequence[Sample]) -> list[Change]:
    """The changes of one array, or of a part of it, that give all samples; the simplest first."""
    if not any(sample.differs for sample in samples):
        return []
    with any_numbers:
        ordered = sorted(samples, key=lambda sample: not sample.differs)
        found = singles(ordered) or [one for one in part_changes(ordered, singles) if gives(one, ordered)]
    # Another order and a factor on top of it are two faults, as where values are fitted.
    return [one for one in found if is_one(one)][:MOST]


# Weights, inputs and heads of one side ----------------------------------------------------------------


@lru_cache(maxsize=64)
def _shown(config: AttentionConfig, side: int, length: int) -> Problem:
    """So many queries, or keys of which the first is 0, against one more of the other side than it has channels."""
    lengths = (config.head_dim + 1, length) if side else (length, config.head_dim + 1)
    problem = generic(config, query_len=lengths[0], key_len=lengths[1], weights=NO_BIASES)
    return changed(problem, keys=_first_is_zero(problem.inputs.keys)) if side else problem


def _first_is_zero(rows: NDArray) -> NDArray:
    return np.concatenate([np.zeros_like(rows[:, :1]), rows[:, 1:]], axis=1)


def of_side(view: View, side: int) -> Iterator[Bug]:
    """Every change of queries, or of keys, of their inputs, and of the weight that they are projected with."""
    calls = zip(view.lab.configs, SHOWN, strict=False)
    problems = view.lab.nearest([_shown(config, side, length) for config, length in calls])
    gauge = -2 if side else None
    heads = samples_of(view, problems, "keys read" if side else "queries", ARRAY, gauge)
    if not any(sample.differs for sample in heads):
        return
    inputs = samples_of(view, problems, INPUTS[side].step, INPUTS[side].axes, gauge)
    weights = samples_of(view, problems, WEIGHTS[side].parameter, WEIGHTS[side].axes)
    if side:  # key 0 is 0, whatever is done to it
        inputs, heads = ([anchored(sample, 0, -2) for sample in samples] for samples in (inputs, heads))
    for change in changes_of(weights):
        yield WEIGHTS[side].changed(change)
    for change in changes_of(inputs):
        yield INPUTS[side].changed(change)
    yield from _of_heads(side, heads)


def anchored(sample: Sample, index: int, axis: int) -> Sample:
    """The sample as it is if one place of an axis is as expected; that counts as not measured."""
    there = np.take(sample.expected - sample.measured, [index], axis)
    return but_one(replace(sample, measured=sample.measured + there), index, axis)


def but_one(sample: Sample, index: int, axis: int) -> Sample:
    """The sample without one place of an axis: that counts as not measured."""
    places = np.arange(sample.expected.shape[axis]).reshape([-1] + [1] * (-axis - 1))
    return sample.within(np.broadcast_to(places != index, sample.expected.shape))


def _of_heads(side: int, samples: Sequence[Sample]) -> Iterator[Bug]:
    """The changes of queries, or of keys: of all key heads, or of what each query head reads."""
    if not side:
        for change in changes_of(samples):
            yield HEADS[0].changed(change)
            yield from _before(change, 0)
        return
    own = [_of_groups(sample) for sample in samples]
    whole = [one for one in own if one is not None]
    if samples and len(whole) == len(samples):
        for change in _of_keys(whole):
            yield HEADS[1].changed(change)
            yield KEYS.changed(change)
            yield from _before(change, 1)
    if len(whole) < len(samples) or any(_is_grouped(sample.setting) for sample in samples):
        for change in _of_keys(samples):
            yield read_otherwise("keys", change)


def _of_keys(samples: Sequence[Sample]) -> list[Change]:
    return changes_of(samples) or list(gauged(samples, -2, ARRAY))


def _is_grouped(setting: Setting) -> bool:
    return setting.config.num_heads > setting.config.num_kv_heads


def _of_groups(sample: Sample) -> Sample | None:
    """The sample with one head for each key head, if all query heads of a group read the same."""
    groups = sample.setting.config.num_kv_heads
    split = sample.measured.reshape(len(sample.measured), groups, -1, *sample.measured.shape[2:])
    if not np.allclose(split, split[:, :, :1], rtol=1e-6, atol=sample.tolerance, equal_nan=True):
        return None
    each = sample.setting.config.num_heads // groups
    return replace(sample, measured=split[:, :, 0], expected=sample.expected[:, ::each])


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


def centred(array: NDArray, axis: int) -> NDArray:
    found: NDArray = array - array.mean(axis=axis, keepdims=True)
    return found


Gauge = Callable[[NDArray, NDArray], tuple[NDArray, NDArray]]
"""(measured, expected), each up to a number that is the same along an axis, now last -> both, comparable."""


def _first_alike(measured: NDArray, expected: NDArray) -> tuple[NDArray, NDArray]:
    return measured + (expected - measured)[..., :1], expected


def _last_alike(measured: NDArray, expected: NDArray) -> tuple[NDArray, NDArray]:
    return measured + (expected - measured)[..., -1:], expected


def _mean_alike(measured: NDArray, expected: NDArray) -> tuple[NDArray, NDArray]:
    return measured + (expected - measured).mean(axis=-1, keepdims=True), expected


def _less_their_means(measured: NDArray, expected: NDArray) -> tuple[NDArray, NDArray]:
    return centred(measured, -1), centred(expected, -1)


GAUGES: tuple[Gauge, ...] = (_less_their_means, _mean_alike, _first_alike, _last_alike)
"""What is not known may be: of no account (all along the axis change alike), or as it is where the axis begins or ends,
or such that all along the axis are there, in another order."""


def gauged(samples: Sequence[Sample], axis: int, axes: tuple[str, ...]) -> Iterator[Change]:
    """The changes that some gauge shows, of arrays that are known up to a number along an axis."""
    seen: set[str] = set()
    for gauge in GAUGES:
        gauged = []
        for one in samples:
            m, e = gauge(np.moveaxis(one.measured, axis, -1), np.moveaxis(one.expected, axis, -1))
            gauged.append(replace(one, measured=np.moveaxis(m, -1, axis), expected=np.moveaxis(e, -1, axis), axes=axes))
        for change in changes_of(gauged):
            if change.slug not in seen:
                seen.add(change.slug)
                yield change
