"""Several sources combined wrongly: some dropped where others are given, joined by OR, only one of them counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial, reduce
from itertools import chain, combinations, permutations

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.masks.sources import FIXES, SOURCES, array_of, given, with_array, without
from conformance.experiments.measured import around
from conformance.zoo.bug import Bug
from mha_core.reference.state import State, Step


@cache
def combined_bugs() -> tuple[Bug, ...]:
    """Every way of combining sources wrongly."""
    return tuple(chain(_dropped(), _joined(), _only_one(), _numbers()))


def _dropped() -> Iterator[Bug]:
    """A source dropped where some others are given, or none of the others."""
    for source, words in SOURCES.items():
        others = [other for other in SOURCES if other != source]
        for size in range(1, len(others) + 1):
            for some in combinations(others, size):
                named = " or ".join(SOURCES[other] for other in some)
                yield _where(
                    f"{source}-dropped-with-{'-'.join(some)}",
                    f"{words} is ignored where {named} is given too.",
                    partial(_dropped_with, source, some),
                )
        for other in others:
            yield _where(
                f"{source}-only-with-{other}",
                f"{words} is ignored unless {SOURCES[other]} is given too.",
                partial(_dropped_without, source, other),
            )


def _dropped_with(source: str, some: tuple[str, ...], state: State, here: set[str]) -> State:
    return without(state, source) if source in here and here & set(some) else state


def _dropped_without(source: str, other: str, state: State, here: set[str]) -> State:
    return state if other in here else without(state, source)


def _none_of(least: int, state: State, here: set[str]) -> State:
    return without(state, *here) if len(here) >= least else state


def _where(slug: str, sentence: str, change: Callable[[State, set[str]], State]) -> Bug:
    def changed(state: State, beneath: Step) -> NDArray:
        result: NDArray = beneath(change(state, set(given(state.inputs.mask))))
        return result

    slug = slug.replace("_", "-")
    return around("allowed", f"sources-{slug}", changed, sentence[0].upper() + sentence[1:], FIXES["all"])


JOINS = (
    ("or", "are combined with OR", np.logical_or),
    ("xor", "are combined with XOR", np.logical_xor),
)


def _joined() -> Iterator[Bug]:
    """Two or more sources joined by another operation than AND."""
    for size in range(2, len(SOURCES) + 1):
        for some in combinations(SOURCES, size):
            for slug, words, join in JOINS:
                names = " and ".join(SOURCES[source] for source in some)

                def change(state: State, here: set[str], some: tuple[str, ...] = some, join: np.ufunc = join) -> State:
                    both = [source for source in some if source in here]
                    if len(both) < 2:
                        return state
                    array = reduce(join, [array_of(state, source) for source in both])
                    return with_array(without(state, *both), both[0], array)

                yield _where(f"{slug}-{'-'.join(some)}", f"{names} {words}, not AND.", change)


def _only_one() -> Iterator[Bug]:
    """Only one of those that are given counts: the first in some order."""
    found: set[tuple[str, ...]] = set()
    for order in permutations(SOURCES, 3):
        rest = tuple(source for source in SOURCES if source not in order)
        for whole in ((*order, *rest), (*rest, *order), (*rest[::-1], *order)):
            if whole in found:
                continue
            found.add(whole)

            def change(state: State, here: set[str], whole: tuple[str, ...] = whole) -> State:
                kept = next((source for source in whole if source in here), "")
                return without(state, *(source for source in here if source != kept))

            names = ", ".join(SOURCES[source] for source in whole)
            yield _where(
                f"first-of-{'-'.join(whole)}", f"Of several sources only one counts, the first of: {names}.", change
            )


def _numbers() -> Iterator[Bug]:
    """Dropped by how many sources there are."""
    for least in (2, 3, 4):
        yield _where(
            f"none-of-{least}",
            f"The whole mask is ignored where {least} or more sources are given.",
            partial(_none_of, least),
        )
