"""Shown: what was done to queries, keys and scores of plain calls, each read by itself.

A key of 0 has the score 0, so that scores show but for what is the same in all of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from weakref import WeakKeyDictionary

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.candidates.scores.features import UNCAPPED, of_size
from conformance.experiments.candidates.scores.patterns import with_patterns
from conformance.experiments.candidates.scores.places import CAPPED, SIMILARITY, UNSCALED
from conformance.experiments.candidates.scores.places import SCORES as SCORES_AND_BIAS
from conformance.experiments.candidates.scores.sides import (
    anchored,
    changes_of,
    gauged,
    of_side,
)
from conformance.experiments.changes.sample import Sample
from conformance.experiments.designs import NO_BIASES, changed, generic
from conformance.experiments.lab import Lab
from conformance.experiments.solving.solved import samples_of
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig

LENGTHS = ((6, 11), (8, 3), (4, 7), (9, 4))
"""Queries and keys of the layers' calls in which scores are read: of all kinds, few keys and many."""

MOST_OF_BOTH = 4
"""Changes of one side that are tried together with one of the other side."""

SCORES = ("item", "head", "query", "key")

Candidate = Bug | tuple[Bug, ...]


MOST_MODELS = 4
"""Models of one size whose scores are read at one probe: those of a beam are mostly the same in other words."""

_turns: WeakKeyDictionary[Lab, dict[tuple[int, int], int]] = WeakKeyDictionary()


def _has_turn(view: View) -> bool:
    """Whether a model is one of the first MOST_MODELS of its size at a probe."""
    turns = _turns.setdefault(view.lab, {})
    key = id(view.problems[0]) if view.problems else 0, len(view.model)
    turns[key] = turns.get(key, 0) + 1
    return turns[key] <= MOST_MODELS


def up_to_scores(view: View) -> Iterator[Candidate]:
    """Every change of an array up to the scores that is read off calls without biases and masks."""
    if not _has_turn(view):
        return
    yield from of_size(view)
    sides = [list(of_side(view, side)) for side in (0, 1)]
    for bugs in sides:
        yield from bugs
    yield from product(*(bugs[:MOST_OF_BOTH] for bugs in sides))
    yield from _of_scores(view)


@lru_cache(maxsize=64)
def _with_zero(config: AttentionConfig, query_len: int, key_len: int, zero: int) -> Problem:
    """Random queries, the later ones larger, against random keys, of which key `zero` is 0."""
    plain = generic(config, seed=3, query_len=query_len, key_len=key_len, weights=NO_BIASES)
    keys = np.array(plain.inputs.keys)
    keys[:, zero] = 0.0
    sizes = np.geomspace(0.2, 4.0, query_len)[None, :, None]
    return changed(plain, keys=keys, queries=plain.inputs.queries * sizes)


def _of_scores(view: View) -> Iterator[Bug]:
    """The changes of scores that are read against the score of a key of 0, first or last of all."""
    for first in (True, False):
        samples: list[Sample] = []
        known: list[Sample] = []
        for config, (query_len, key_len) in zip(view.lab.configs, LENGTHS, strict=False):
            zero = 0 if first else key_len - 1
            problems = view.lab.nearest([_with_zero(config, query_len, key_len, zero)])
            read = samples_of(view, problems, "similarity", SCORES, -1)
            samples += read
            known += [anchored(sample, zero, -1) for sample in read]
        found = [one for one in changes_of(known) or gauged(samples, -1, SCORES) if not one.slug.startswith("times-")]
        for change in found:
            yield from (place.changed(change) for place in (SIMILARITY, CAPPED, SCORES_AND_BIAS, UNCAPPED))
        for change in changes_of([_without_scale(sample) for sample in known]):
            if not change.slug.startswith("times-"):  # a factor does the same there
                yield UNSCALED.changed(change)
        for place in (SIMILARITY, SCORES_AND_BIAS):
            yield from with_patterns(place, samples)
        if found:
            return


def _without_scale(sample: Sample) -> Sample:
    scale = sample.setting.config.softmax_scale or 1.0
    return replace(sample, measured=sample.measured / scale, expected=sample.expected / scale)
