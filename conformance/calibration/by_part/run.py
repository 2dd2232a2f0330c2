"""What a part of one run of a formulation is made of, and what it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from numpy.typing import NDArray

from conformance.calibration.arithmetic import Arithmetic
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.sizes import CallSizes
from mha_core.weights import Weights


class Run(NamedTuple):
    """How, and of what: the ways of parts by choice; config, weights as they are held, inputs and sizes."""

    ways: Mapping[str, str]
    a: Arithmetic
    config: AttentionConfig
    weights: Weights
    inputs: AttentionInputs
    sizes: CallSizes


class Step(Protocol):
    """One part on one side, "queries", "keys" or "values": forward, and then backward.

    A part with weights has their gradients by name in `gradients`, after `backward`.
    """

    def forward(self, x: NDArray) -> NDArray:
        """(B, heads, L, width) -> the same, stored."""

    def backward(self, gradient: NDArray) -> NDArray:
        """The gradient of x, from that of what became of it, stored."""
