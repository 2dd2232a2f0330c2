"""Problem: one layer and one call of it, with everything that a run needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.arguments import CallSizes
from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.heads import split_heads
from mha_core.weights import Weights, check_weights, rounded_weights


@dataclass(frozen=True, eq=False)
class Problem:
    """A config, weights and inputs that fit it; for trained weights also what the original implementation computed.

    Args:
        config, weights, inputs: the layer and the call.
        recorded: stage -> the array that the original implementation gave for these inputs.

    Attributes:
        sizes: B, Lq, Lk and Lp of the call.

    Raises:
        SpecError: the weights or the inputs do not fit the config. They are not checked again.
    """

    config: AttentionConfig
    weights: Weights
    inputs: AttentionInputs
    recorded: Mapping[str, NDArray] = field(default_factory=dict)
    sizes: CallSizes = field(init=False)

    def __post_init__(self) -> None:
        check_weights(self.config, self.weights)
        object.__setattr__(self, "sizes", self.inputs.check(self.config))  # the dataclass is frozen

    def rounded(self, dtype: str) -> Self:
        """Return the problem with weights and inputs rounded to `dtype`, as layer and reference get it."""
        weights = rounded_weights(self.config, self.weights, dtype)
        return replace(self, weights=weights, inputs=self.inputs.rounded(dtype))

    def with_inputs(self, **changes: Any) -> Self:
        """Return this problem with `changes` (name -> array or setting) in its inputs."""
        return replace(self, inputs=replace(self.inputs, **changes))

    def allowed(self) -> NDArray[np.bool_]:
        """Bool (B, H, Lq, Lk): which keys each query may attend to."""
        return allowed_keys(self.inputs.mask, self.sizes, self.config.num_heads)

    def padding(self) -> NDArray[np.bool_]:
        """Bool (B, Lk): which keys no query may attend to."""
        return padding_keys(self.inputs.mask, self.sizes)


def split_inputs(inputs: AttentionInputs, config: AttentionConfig) -> AttentionInputs:
    """Return inputs (B, L, heads * width) of a layer without projections, split into heads (B, heads, L, width)."""
    heads: dict[str, Any] = {
        name: split_heads(getattr(inputs, name), count) for name, (count, _) in config.head_shapes._asdict().items()
    }
    return replace(inputs, **heads)
