"""Ranking: of models that a probe cannot tell apart, which are followed first, and which of them are said."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.measure.faults import is_measured
from conformance.measure.grammar.expressions import SIZES
from conformance.zoo.bug import GRADIENTS, Bug

ORDER = ("output", "heads", "scores", "weights", "values", "keys", "queries", GRADIENTS)
"""The stages in the order in which something is rather said of them."""

_SPACES = {name: ("", "-") if " " in name else ("",) for name in SIZES}
"""Of the name of each size: what stands for its spaces in ids, of expressions and of orders."""


def preference(bugs: Sequence[Bug]) -> tuple[int, int, list[int], int, str]:
    """Of descriptions that nothing tells apart, the one with the smallest is said.

    What is on file has a name that others know. Of numbers that were measured the shorter is likelier; a size counts as
    three digits: what was the same everywhere is rather 0.25 than 1 / (a size that was 4). What was measured is said of
    a late stage, which is true of the earlier ones as well: a factor of the queries is one of the scores, and not the
    other way round.
    """
    made = [bug for bug in bugs if is_measured(bug)]
    names = "+".join(bug.id for bug in bugs)
    digits = sum(character.isdigit() for bug in made for character in bug.id)
    sizes = sum(bug.id.count(name.replace(" ", space)) for bug in made for name in SIZES for space in _SPACES[name])
    stages = sorted(ORDER.index(bug.stage) for bug in made)
    return len(made), digits + 3 * sizes, stages, len(names), names


def distinct(models: Sequence[tuple[Bug, ...]]) -> list[tuple[Bug, ...]]:
    """The models, each set of bugs once: those of few bugs first, then those whose bugs are preferred.

    Where the choice is open for several bugs of a model, each alternative of one stands with the best of the others,
    before alternatives are combined; and what changes other steps comes before a further change of the same ones,
    because later probes can tell steps apart.
    """
    found: dict[frozenset[str], tuple[Bug, ...]] = {}
    for model in models:
        found.setdefault(frozenset(bug.id for bug in model), model)
    slots: dict[tuple[int, int], dict[str, Bug]] = {}
    for model in found.values():
        for place, bug in enumerate(model):
            slots.setdefault((len(model), place), {})[bug.id] = bug
    ranks = {slot: _ranks(list(bugs.values())) for slot, bugs in slots.items()}

    def cost(model: tuple[Bug, ...]) -> tuple[int, int, tuple[int, int, list[int], int, str]]:
        places = (ranks[len(model), place][bug.id] for place, bug in enumerate(model))
        return len(model), sum(places), preference(model)

    return sorted(found.values(), key=cost)


def _ranks(bugs: Sequence[Bug]) -> dict[str, int]:
    """The place of each of some alternatives: the first one of each set of steps, then the second ones, and so on."""
    turns: dict[frozenset[str], int] = {}
    places: list[tuple[int, int, str]] = []
    for bug in sorted(bugs, key=lambda bug: preference((bug,))):
        turns[bug.steps] = turns.get(bug.steps, 0) + 1
        places.append((turns[bug.steps], len(places), bug.id))
    return {id: rank for rank, (_, _, id) in enumerate(sorted(places))}
