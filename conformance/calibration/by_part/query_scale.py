"""The query scale by position, in every way that `Ways` can name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.calibration.arithmetic import Arithmetic
from conformance.calibration.ways import Ways
from mha_core import AttentionInputs, QueryScale
from mha_core.call.rotary import positions_of
from mha_core.call.sizes import CallSizes


class Scaling:
    """The factors of one call; `scaled` multiplies queries (B, H, Lq, d), or their gradient, by them."""

    def __init__(
        self, ways: Ways, a: Arithmetic, settings: QueryScale, inputs: AttentionInputs, sizes: CallSizes
    ) -> None:
        self.ways, self.a = ways, a
        given = inputs.rotary
        if given is not None and given.query_scale is not None:
            factors = np.atleast_2d(given.query_scale)
        else:
            positions, _ = positions_of(given, inputs.mask.query_offset, sizes)
            factors = _factors(ways, a, settings, np.atleast_2d(positions))
        self.factors = factors[:, None, :, None]

    def scaled(self, x: NDArray) -> NDArray:
        if self.ways.query_scale == "wide":
            return self.a.store(x * self.factors.astype(self.a.wide))
        return self.a.store(x * self.a.hold(self.factors))


def _factors(ways: Ways, a: Arithmetic, settings: QueryScale, positions: NDArray[np.integer]) -> NDArray:
    """(1 or B, Lq): 1 + beta log(1 + n), where n counts whole lengths up to a position."""
    assert settings.beta is not None
    assert settings.length is not None
    if ways.query_scale == "factors":
        return 1.0 + settings.beta * np.log(1 + (positions + settings.shift) // settings.length)
    kind = a.wide.type
    whole = ((positions + settings.shift) // settings.length).astype(a.wide)
    logarithm = np.log1p(whole) if ways.query_scale == "wide" else np.log2(whole + kind(1)) * kind(np.log(2.0))
    return np.asarray(kind(1) + kind(settings.beta) * logarithm)
