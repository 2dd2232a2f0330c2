"""Ranking: of models that explain the same, the ones to follow first."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.experiments.changes.expressions import SIZES
from conformance.experiments.measured import is_measured
from conformance.zoo.bug import Bug

Model = tuple[Bug, ...]


def distinct(models: Sequence[Model]) -> list[Model]:
    """The models, each set of bugs once: those of few bugs, of bugs on file and of short numbers first.

    What changes other steps comes before a further change of the same ones: later probes can tell steps apart.
    """
    found: dict[frozenset[str], Model] = {}
    for model in models:
        found.setdefault(frozenset(bug.id for bug in model), model)
    ranked = sorted(found.values(), key=_length)
    turns: dict[tuple[object, ...], int] = {}
    places: list[tuple[int, int, int]] = []
    for model in ranked:
        kind = len(model), *(bug.steps for bug in model)
        turns[kind] = turns.get(kind, 0) + 1
        places.append((len(model), turns[kind], len(places)))
    return [ranked[place] for *_, place in sorted(places)]


def _length(model: Model) -> tuple[int, int, int, str]:
    """How long the description of a model is: its bugs, those that are not on file, their numbers and sizes.

    A size counts as three digits: a number that was the same everywhere is rather 0.25 than 1 / (a size that was 4).
    """
    names = "+".join(bug.id for bug in model)
    digits = sum(character.isdigit() for character in names)
    sizes = sum(names.count(name.replace(" ", "")) for name in SIZES)
    return len(model), sum(map(is_measured, model)), digits + 3 * sizes, names
