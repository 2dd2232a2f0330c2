"""Other softmaxes in a part of the weights alone: some heads, items, queries or keys, or calls of some sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.weights.bugs import FIX
from conformance.experiments.changes.sample import Setting
from conformance.experiments.changes.where import Part, conditions_of, parts_of
from conformance.experiments.measured import PREFIX, around
from conformance.experiments.readings.softmax import Weighed
from conformance.zoo.bug import Bug, OnTop
from mha_core.reference.state import State, Step

MOST = 8
"""Bugs that are tried in each part."""


def in_parts(samples: Sequence[Weighed], found: Callable[[Sequence[Weighed]], Sequence[Bug]]) -> Iterator[Bug]:
    """What `found` gives for the part in which samples differ, there alone."""
    arrays = [one.sample for one in samples]
    for parts in parts_of(arrays):
        flags = [parts[0].flags(one.sample.expected.shape, one.sample.setting) for one in samples]
        bugs = found([one.within(flag) for one, flag in zip(samples, flags, strict=True)])
        yield from (at_part(bug, part) for bug in bugs[:MOST] for part in parts)
        if bugs:
            return
    conditions = list(islice(conditions_of(arrays), MOST))
    if conditions:
        bugs = found([one for one in samples if one.sample.differs])
        yield from (at_part(bug, part) for bug in bugs[:MOST] for part in conditions)


def at_part(bug: Bug, part: Part) -> Bug:
    """A bug of the weights in one part, and nothing elsewhere."""
    inner = bug.forward["weights"]
    assert isinstance(inner, OnTop)

    def change(state: State, beneath: Step) -> NDArray:
        right = beneath(state)
        flags = part.flags(right.shape, Setting(state.config, state.sizes))
        return np.where(flags, inner.change(state, beneath), right) if flags.any() else right

    slug = f"{bug.id.removeprefix(PREFIX)}-at-{part.slug}"
    return around("weights", slug, change, f"{bug.sentence.removesuffix('.')}, at {part.words} only.", FIX)
