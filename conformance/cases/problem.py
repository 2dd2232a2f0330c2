"""Problem: one layer and one call of it, with everything that a run needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.dtypes import round_to
from mha_core.weights import Weights, check_weights


@dataclass(frozen=True, eq=False)
class Problem:
    """A config, weights and inputs; and, for trained weights, what the original implementation computed.

    `recorded` maps a stage to the array that the original implementation gave for these inputs.
    """

    config: AttentionConfig
    weights: Weights
    inputs: AttentionInputs
    recorded: Mapping[str, NDArray] = field(default_factory=dict)

    def rounded(self, dtype: str) -> Problem:
        """The same problem with weights and inputs rounded to `dtype`, so that every subject and the
        reference start from the same numbers.
        """
        weights = {name: round_to(array, dtype) for name, array in self.weights.items()}
        return replace(self, weights=check_weights(self.config, weights), inputs=self.inputs.rounded(dtype))

    def allowed(self) -> NDArray[np.bool_]:
        """Bool (B, H, Lq, Lk): which keys each query may attend to."""
        return allowed_keys(self.inputs.mask, self.inputs.check(self.config), self.config.num_heads)

    def padding(self) -> NDArray[np.bool_]:
        """Bool (B, Lk): which keys nobody may attend to."""
        return padding_keys(self.inputs.mask, self.inputs.check(self.config))
