"""The parts of attention between projection and scores: which step follows which, and what is known of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from numpy.typing import NDArray

from conformance.calibration import by_part
from conformance.calibration.by_part import query_key_norm, rotary
from conformance.calibration.by_part.run import Run, Step
from conformance.cases.choices import Space
from conformance.discovery import members
from mha_core.reference.state import State

STEPS: tuple[Callable[[Run, str], Step | None], ...] = (
    query_key_norm.before,
    rotary.rotation,
    query_key_norm.after,
)
"""In their order, (run, side) -> the step on that side, "queries", "keys" or "values"; None where there is none."""


class Parts:
    """The parts of one run: forward side by side, and then backward.

    Attributes:
        gradients: those of the weights of parts, by name, after `backward`.
    """

    def __init__(self, run: Run) -> None:
        made = {side: [make(run, side) for make in STEPS] for side in ("queries", "keys", "values")}
        self.steps = {side: [step for step in steps if step is not None] for side, steps in made.items()}
        self.gradients: dict[str, NDArray] = {}

    def forward(self, side: str, x: NDArray) -> NDArray:
        """(B, heads, L, width): what was projected, through every step; stored."""
        for step in self.steps[side]:
            x = step.forward(x)
        return x

    def backward(self, side: str, gradient: NDArray) -> NDArray:
        """The gradient (B, heads, L, width) of what was projected."""
        for step in reversed(self.steps[side]):
            gradient = step.backward(gradient)
            self.gradients |= getattr(step, "gradients", {})
        return gradient


SPACE_OF_PARTS: Space = dict(chain(*(getattr(part, "SPACE", {}).items() for part in members(by_part))))
"""The SPACE of every part."""


def ways_of(formulation: str) -> Mapping[str, str]:
    """Choice -> the way that a formulation goes, where that is not the plain one.

    >>> ways_of("packed")
    {}
    """
    tables = (getattr(part, "WAYS", {}) for part in members(by_part))
    choices = {choice: ways for table in tables for choice, ways in table.items()}
    found = ((choice, way) for choice, ways in choices.items() for way, of in ways.items() if formulation in of.split())
    return dict(found)


def between(state: State) -> Sequence[NDArray]:
    """What some way of a part leaves in between, beside the steps of the reference."""
    return [array for part in members(by_part) if hasattr(part, "between") for array in part.between(state)]
