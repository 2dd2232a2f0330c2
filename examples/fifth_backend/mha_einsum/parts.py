"""The parts of attention between the projections and the scores; the arithmetic is mha_parity.core's NumPy."""

import numpy as np
from mha_parity.core import AttentionConfig, AttentionInputs
from mha_parity.core.call.arguments import CallSizes
from mha_parity.core.call.rotary import tables_of_call
from mha_parity.core.parts.query_key_norm import Normed, norm, norm_back
from mha_parity.core.parts.rotary import Table, rotate, rotate_back
from mha_parity.core.weights import Weights
from numpy.typing import NDArray


class Parts:
    """The norm and the turn of one call: `forward` keeps what `backward` needs. Sides are "q" and "k"."""

    def __init__(self, config: AttentionConfig, weights: Weights, inputs: AttentionInputs, sizes: CallSizes) -> None:
        self.norm, self.rotary, self.weights = config.query_key_norm, config.rotary, weights
        self.normed: dict[str, Normed] = {}
        self.tables: dict[str, Table] = {}
        if self.rotary is not None:
            made = tables_of_call(self.rotary, inputs.rotary, inputs.mask.query_offset, sizes)
            dtype = inputs.queries.dtype
            self.tables = {
                side: Table(*(array.astype(dtype) for array in table)) for side, table in zip("qk", made, strict=True)
            }

    def forward(self, side: str, x: NDArray) -> NDArray:
        """(B, heads, L, d): normed and turned in the layer's order."""
        for order in ("before", "after"):
            if self.norm is not None and self.norm.order == order:
                parameters = (self.weights.get(f"{side}_norm.{kind}") for kind in ("weight", "bias"))
                self.normed[side] = norm(x, self.norm, *parameters)
                x = self.normed[side].result
            if self.rotary is not None and order == "before":
                x = rotate(x, self.tables[side], self.rotary)
        return x

    def backward(self, side: str, d: NDArray, found: dict[str, NDArray]) -> NDArray:
        """The gradient of what `forward` was given; those of weights and biases go into `found`."""
        for order in ("after", "before"):
            if self.rotary is not None and order == "before":
                d = rotate_back(d, self.tables[side], self.rotary)
            if self.norm is not None and self.norm.order == order:
                gradients = norm_back(d, self.normed[side], self.norm)
                d = gradients.x
                own = {"weight": gradients.weight, "bias": gradients.bias}
                found.update({f"{side}_norm.{kind}": np.asarray(x) for kind, x in own.items() if x is not None})
        return d
