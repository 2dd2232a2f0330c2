"""`State`, the argument of every step of the reference: the problem, and the arrays of the steps before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from mha_core.call.arguments import CallSizes
from mha_core.call.inputs import AttentionInputs
from mha_core.config import AttentionConfig
from mha_core.heads import repeat_kv_heads
from mha_core.weights import Weights


@dataclass
class State:
    """A run of the reference: the layer, the call, and the result of each step so far.

    Attributes:
        config, inputs, sizes: the layer and the call. Inputs that are split into heads are merged here.
        parameters: name -> W or b of the layer, float64. (The step `weights` holds the attention weights.)
        is_split: whether the caller gave inputs that are split into heads.
        arrays: step -> its result, of the steps that have run; `state[name]` reads it.
    """

    config: AttentionConfig
    parameters: Weights
    inputs: AttentionInputs
    sizes: CallSizes
    is_split: bool = False
    arrays: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def copy(self) -> State:
        """Return a copy with a dict of arrays of its own; the arrays themselves are shared."""
        return State(self.config, self.parameters, self.inputs, self.sizes, self.is_split, dict(self.arrays))

    def heads_of(self, name: str) -> NDArray:
        """Return the stage `keys` or `values` with each head repeated for all query heads that read it."""
        return repeat_kv_heads(self[name], self.config.num_heads)


Step = Callable[[State], Any]
"""A step: State with the arrays of earlier steps -> its own array, or gradients by name."""
