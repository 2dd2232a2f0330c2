"""Softcaps with another number than the one that is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.scores.families import Family
from conformance.experiments.candidates.scores.places import Place
from mha_core.reference.state import State

CAPS: tuple[tuple[str, str, Callable[[float, float], float], tuple[float, ...]], ...] = (
    ("other-c", "c' = {}", lambda c, a: a, (1.0, 3.0, 0.4)),
    ("times-c", "c' = c times {}", lambda c, a: c * a, (1.5, 3.0, 0.6)),
    ("plus-c", "c' = c plus {}", lambda c, a: c + a, (0.3, 1.0, -0.2)),
    ("at-least-c", "c', the larger one of c and {}", max, (2.0, 5.0, 10.0)),
    ("at-most-c", "c', the smaller one of c and {}", min, (0.5, 0.1, 1.0)),
)
"""(slug, words after "c' * tanh(score / c') with", (c, number) -> c', starts)."""

EVEN = ("other-c", "times-c")
"""Those in which the negative of a number makes c' negative, which does what c' does."""


def caps(place: Place) -> Iterator[Family]:
    """The softcap with c' in place of c, at a place after the softcap."""
    for slug, words, other, starts in CAPS:

        def apply(state: State, array: NDArray, a: float, other: Callable[[float, float], float] = other) -> NDArray:
            c = other(state.config.softcap or 0.0, a)
            return np.asarray(c * np.tanh(state["similarity"] / c) if c else array * np.nan)

        even = slug in EVEN
        yield Family(place, slug, apply, f"c' * tanh(score / c') with {words}", neutral=None, starts=starts, even=even)
    yield Family(
        place,
        "inside",
        lambda state, array, a: state.config.softcap * np.tanh(a * state["similarity"]),
        "c * tanh({} * score)",
        neutral=None,
        starts=(1.0, 0.3),
    )
