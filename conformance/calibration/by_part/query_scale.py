"""The query scale by position, in every way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.calibration.by_part.run import Run
from conformance.calibration.odds import spread
from conformance.cases.choices import Made, Space
from conformance.cases.drawn.query_scale import scales_of
from mha_core import QueryScale
from mha_core.call.rotary import positions_of


def _scales(made: Made) -> Sequence[Any]:
    """None in 8 of 11, as rules need it; offsets by item differ from call to call, and may be negative."""
    known = scales_of(made)
    if not made.get("rotary") and made.get("query_offset") == "per item":
        known = (None, "given")
    return (None,) * 7 + tuple(known)


SPACE: Space = {
    "query scale": _scales,
    "query scale.beta": (0.1, *spread(0.01, 2.0), -0.3),
    "query scale.length": (1, 3, 16, 100, 8192),
}

WAYS: Mapping[str, Mapping[str, str]] = {
    "query_scale": {"wide": "scale-on-queries online-recomputed", "base 2": "reversed base-2"},
}
"""Times factors that are made in float64 and rounded; times factors of the accumulator's dtype, as they are ("wide");
or times such by a logarithm of base 2, rounded.
"""


def scaling(run: Run, side: str) -> Scaling | None:
    """The factors of "queries"."""
    settings = run.config.query_scale
    return None if settings is None or side != "queries" else Scaling(run, settings)


class Scaling:
    """The factors of one call, by which queries (B, H, Lq, d) and their gradient are multiplied."""

    def __init__(self, run: Run, settings: QueryScale) -> None:
        self.a, self.way = run.a, run.ways.get("query_scale")
        given = run.inputs.rotary
        if given is not None and given.query_scale is not None:
            factors = np.atleast_2d(given.query_scale)
        else:
            positions, _ = positions_of(given, run.inputs.mask.query_offset, run.sizes)
            factors = self._factors(settings, np.atleast_2d(positions))
        self.factors = factors[:, None, :, None]

    def forward(self, x: NDArray) -> NDArray:
        """X times the factors, stored."""
        if self.way == "wide":
            return self.a.store(x * self.factors.astype(self.a.wide))
        return self.a.store(x * self.a.hold(self.factors))

    def backward(self, gradient: NDArray) -> NDArray:
        """The gradient of x."""
        return self.forward(gradient)

    def _factors(self, settings: QueryScale, positions: NDArray[np.integer]) -> NDArray:
        """(1 or B, Lq): 1 + beta log(1 + n), where n counts whole lengths up to a position."""
        assert settings.beta is not None
        assert settings.length is not None
        if self.way is None:
            return 1.0 + settings.beta * np.log(1 + (positions + settings.shift) // settings.length)
        kind = self.a.wide.type
        whole = ((positions + settings.shift) // settings.length).astype(self.a.wide)
        logarithm = np.log1p(whole) if self.way == "wide" else np.log2(whole + kind(1)) * kind(np.log(2.0))
        return np.asarray(kind(1) + kind(settings.beta) * logarithm)
