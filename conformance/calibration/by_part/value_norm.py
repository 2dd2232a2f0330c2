"""The norm and the scale of values, in every way."""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import NDArray

from conformance.calibration.by_part.query_key_norm import Norm
from conformance.calibration.by_part.run import Run
from conformance.calibration.odds import spread
from conformance.cases.choices import Space
from mha_core.parts.value_norm import norm_of

SPACE: Space = {
    "value norm": (*(None,) * 120, *spread(1e-8, 1.0)),
    "value scale": (*(None,) * 200, *spread(0.1, 10.0), -0.7, -3.0),
}

WAYS: Mapping[str, Mapping[str, str]] = {
    "value_scale": {"wide": "scale-on-queries bias-last packed", "folded": "scale-on-keys reversed chain-rule"},
}
"""The scale as the storage dtype has it, as the accumulator's has it, or folded into the norm."""


def values_of(run: Run, side: str) -> Values | None:
    """The norm and the scale of "values"."""
    has_any = (run.config.value_norm_eps, run.config.value_scale) != (None, None)
    return Values(run) if side == "values" and has_any else None


class Values:
    """The norm and the scale of values x (B, G, L, dv), forward and then backward."""

    def __init__(self, run: Run) -> None:
        self.a, self.way = run.a, run.ways.get("value_scale")
        eps, scale = run.config.value_norm_eps, run.config.value_scale
        self.norm = None if eps is None else Norm(run, norm_of(eps))
        self.scale = None
        if scale is not None:
            self.scale = run.a.wide.type(scale) if self.way else run.a.hold(scale)

    def forward(self, x: NDArray) -> NDArray:
        """X normed and scaled, stored."""
        a, normed = self.a, x if self.norm is None else self.norm.forward(x)
        if self.scale is None:
            return normed
        if self.norm is not None and self.way == "folded":  # into the factor; nothing is stored in between
            return a.store(x * (self.norm.factor * self.scale))
        return a.store(normed * self.scale)

    def backward(self, gradient: NDArray) -> NDArray:
        """The gradient of x."""
        if self.scale is not None:
            gradient = self.a.store(gradient * self.scale)
        return gradient if self.norm is None else self.norm.backward(gradient)
