"""The weights and the bias of queries and keys, read off whole, beside those of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.scores.places import BIASES, WEIGHTS, Place
from conformance.experiments.changes.fit import fit
from conformance.experiments.changes.sample import Sample, Setting
from conformance.experiments.designs import generic
from conformance.experiments.lab import Lab
from conformance.experiments.readings.queries import read_key_weight, read_query_bias, read_query_weight
from conformance.experiments.readings.weights import Answer
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig

Read = Callable[[Answer, AttentionConfig], NDArray | None]

OF_WEIGHTS: tuple[tuple[Place, Read], ...] = ((WEIGHTS[0], read_query_weight), (WEIGHTS[1], read_key_weight))
OF_BIASES: tuple[tuple[Place, Read], ...] = ((BIASES[0], read_query_bias),)

MOST = 8
"""Most changes of one parameter."""

ERROR = 1e4
"""Roundoffs that a number may be off: it is the difference of two logarithms."""

_read: WeakKeyDictionary[Lab, dict[tuple[str, ...], list[Bug]]] = WeakKeyDictionary()


def weights_read(view: View) -> list[Bug]:
    """The changes of q_proj.weight and k_proj.weight that were read off in every layer."""
    return _known(view, OF_WEIGHTS)


def bias_read(view: View) -> list[Bug]:
    """The changes of q_proj.bias that were read off in every layer."""
    return _known(view, OF_BIASES)


def _known(view: View, places: tuple[tuple[Place, Read], ...]) -> list[Bug]:
    known = _read.setdefault(view.lab, {})
    key = (places[0][0].parameter, *(bug.id for bug in view.model))
    if key not in known:
        known[key] = [bug for place, read in places for bug in _changes(view, place, read)]
    return known[key]


def _changes(view: View, place: Place, read: Read) -> Iterator[Bug]:
    samples = []
    for config in view.lab.configs:
        measured = read(view.got, config)
        expected = None if measured is None else read(view.made, config)
        if measured is None or expected is None or measured.shape != expected.shape:
            continue
        setting = Setting(config, _sizes(config).sizes)
        samples.append(Sample(measured, expected, place.axes, setting, unit=ERROR / 1000.0 * view.lab.unit))
    if samples and all(np.isfinite(sample.measured).all() for sample in samples):
        with np.errstate(all="ignore"):
            yield from (place.changed(change) for change in fit(samples)[:MOST])


def _sizes(config: AttentionConfig) -> Problem:
    return generic(config)
