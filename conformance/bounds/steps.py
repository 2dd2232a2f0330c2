"""`Bounds`, the argument of every bound: the reference's run, the rules of rounding, the bounds of earlier steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from conformance.bounds.bounded import Bounded, Rounding
from mha_core.heads import repeat_kv_heads
from mha_core.reference.state import State

Found = TypeVar("Found")


@dataclass
class Bounds:
    """The argument of the bound of a step, as a State is that of a step of the reference.

    Attributes:
        state: the arrays that the reference computed, of every step.
        rounding: how errors add up.
        steps: the bounds of earlier steps, by the step's name; `bounds[name]` reads it. Most are a Bounded; where
            the step gives None, or a dict of gradients, so is its bound None, or a dict of Bounded.
    """

    state: State
    rounding: Rounding
    steps: dict[str, Any] = field(default_factory=dict)
    _found: dict[Callable[[Bounds], Any], Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.steps[name]

    def heads_of(self, name: str) -> Bounded:
        """The bound of `keys` or `values` with each head repeated for the query heads that read it."""
        return self[name].map(lambda array: repeat_kv_heads(array, self.state.config.num_heads))

    def once(self, compute: Callable[[Bounds], Found]) -> Found:
        """The result of `compute(self)`, which is kept, so that steps that share it compute it once."""
        if compute not in self._found:
            self._found[compute] = compute(self)
        return self._found[compute]


Bound = Callable[[Bounds], Any]
"""The bound of one step, made of the bounds of the steps before it."""
