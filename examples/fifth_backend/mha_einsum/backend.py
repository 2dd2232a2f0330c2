"""The contract: NumPy in, einsum, NumPy out."""

import numpy as np
from mha_parity.core import AttentionConfig, AttentionInputs, Trace
from mha_parity.core.backend import Backend, Run
from mha_parity.core.weights import Weights

from mha_einsum.attention import attend


class EinsumBackend(Backend):
    """Multi-head attention in einsum, behind the contract."""

    name = "einsum"

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def devices(self) -> tuple[str, ...]:
        return ("cpu",)

    def dtypes(self, device: str) -> tuple[str, ...]:
        return ("float64", "float32")

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            return attend(config, weights, inputs)

        return run
