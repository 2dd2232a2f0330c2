"""Fault: one thing that is wrong with a layer, with its truth; and Dice, from which faults are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from numpy.typing import NDArray

from conformance.trials.changes import Change
from conformance.trials.layer import View
from conformance.trials.points import POINTS

T = TypeVar("T")

BACKWARD = "gradients"
"""The stage of a fault that changes gradients only, as `conformance.zoo.bug.GRADIENTS`."""


OF_PADDING = ("valid_lens", "lens", "allow")
"""Points that decide what is padding. Padding becomes 0, so a change there shows in the keys first."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Args:
        kind: what it is called in tables, such as "factor".
        changes: (point, what is done there), in the order in which they act.
        words: what is wrong. Default: made from the changes.
        also: further right answers to "which stage is wrong first?", besides the stage of its first point.
        needs: features without which it does nothing: words of `conformance.trials.problems`.
        roundoff: the unit roundoff of a fault that rounds numbers.

    >>> from conformance.trials.changes import Factor
    >>> fault = Fault("factor", (("raw", Factor("0.9", lambda view: 0.9)),))
    >>> fault.words, fault.stages
    ('the scores before the scale: times 0.9', frozenset({'scores'}))
    """

    kind: str
    changes: tuple[tuple[str, Change], ...]
    words: str = ""
    also: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    roundoff: float = 0.0
    stages: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        points = [point for point, _ in self.changes]
        if not self.words:
            said = "; ".join(f"{words_of(point)}: {change.words}" for point, change in self.changes)
            object.__setattr__(self, "words", said)  # the dataclass is frozen
        first = BACKWARD if points[0] not in POINTS else POINTS[points[0]].stage
        padding = ("keys",) if points[0] in OF_PADDING else ()
        object.__setattr__(self, "stages", frozenset((first, *padding, *self.also)))

    @property
    def family(self) -> str:
        """Its kind, and where."""
        return f"{self.kind}: {words_of(self.changes[0][0])}"

    @property
    def is_backward(self) -> bool:
        return self.stages == {BACKWARD}

    def hooks(self) -> Iterator[tuple[str, Callable[[NDArray, View], NDArray]]]:
        """(point, hook) of every change."""
        for point, change in self.changes:
            yield point, _hook(point, change)


def _hook(point: str, change: Change) -> Callable[[NDArray, View], NDArray]:
    def hook(array: NDArray, view: View) -> NDArray:
        return change(array, point, view) if array.size else array

    return hook


def words_of(point: str) -> str:
    """A point in words; that of a gradient is its name."""
    return POINTS[point].words if point in POINTS else f"gradient {point}"


class Dice:
    """Random draws that depend on the seed alone. It uses random() alone, which Python promises to keep."""

    def __init__(self, *seed: int | str) -> None:
        self._rng = Random("/".join(map(str, seed)))

    def one_of(self, options: Sequence[T]) -> T:
        return options[int(self._rng.random() * len(options))]

    def number(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self._rng.random() * (high - low + 1))

    def chance(self, share: float) -> bool:
        return self._rng.random() < share

    def real(self, low: float, high: float) -> float:
        """A number of three digits, which words give exactly."""
        return float(f"{low + (high - low) * self._rng.random():.3g}")

    def seed(self) -> int:
        return self.number(0, 2**31 - 1)
