"""A softcap, c tanh(x / c), forward and backward, in every way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.calibration.arithmetic import Arithmetic, tanh_by_expm1
from conformance.calibration.odds import spread
from conformance.cases.choices import Space
from mha_core import AttentionConfig
from mha_core.reference.state import State

SPACE: Space = {"softcap": (*(None,) * 363, *spread(0.01, 1000.0))}  # in 15 of 100, from far below to far above scores

WAYS: Mapping[str, Mapping[str, str]] = {
    "softcap": {
        "multiply": "scale-on-queries per-head signs reciprocal",
        "expm1": "per-query pairwise divide-last split-backward",
        "folded": "groups-in-queries blocks base-2 online online-flash",
    },
    "slope": {
        "factors": "scale-on-keys pairwise reciprocal two-parts",
        "capped": "scale-on-both per-query signs online",
        "squares": "per-head groups-in-queries base-2 online-flash query-blocks split-backward",
        "cosh": "per-item blocks",
    },
}
"""softcap: x / c; x times the stored 1 / c, of a stored c; x / c and tanh through expm1; or, as fused kernels do,
tanh(q k^T (scale / c)) c without storing anything in between (an additive score: x times 1 / c). That needs the scale
where it is by itself, on the product.

slope: dS c, times 1 - t^2, over c, as automatic differentiation does; dS (1 - t^2); dS (1 - t) (1 + t); dS (1 - t^2)
with t = s / c from the stored capped score s; or dS / cosh^2, which is exact where 1 - t^2 is already 0.
"""


def between(state: State) -> Sequence[NDArray]:
    """C tanh(x / c) backwards, factor by factor."""
    return () if state.config.softcap is None else [state.config.softcap * state["d_scores"]]


def softcap_of(config: AttentionConfig, a: Arithmetic, ways: Mapping[str, str]) -> Softcap | None:
    """The softcap of a layer; None without one."""
    if config.softcap is None:
        return None
    return Softcap(a, config.softcap, ways.get("softcap", ""), ways.get("slope", ""))


@dataclass(frozen=True, eq=False)
class Cap:
    """What backward needs of a capped score: x / c, its tanh, and c times that, which is the score."""

    inside: NDArray
    tanh: NDArray
    scores: NDArray


@dataclass(frozen=True)
class Softcap:
    """One softcap c = `limit` in one arithmetic.

    >>> softcap = Softcap(Arithmetic("float32"), 2.0, "multiply", "factors")
    >>> cap = softcap.cap(softcap.inside(np.array([0.0, 1.0, 1e6], np.float32)))
    >>> cap.scores.round(4)
    array([0.    , 0.9242, 2.    ], dtype=float32)
    >>> softcap.backward(np.ones(3, np.float32), cap).round(4)
    array([1.    , 0.7864, 0.    ], dtype=float32)
    """

    a: Arithmetic
    limit: float
    way: str = ""
    slope: str = ""

    @property
    def c(self) -> NDArray:
        """The softcap as scalars reach arrays: stored (JAX, MXNet), or in the accumulator's dtype (PyTorch)."""
        return self.a.hold(self.limit) if self.way == "multiply" else np.asarray(self.limit, self.a.wide)

    def inside(self, x: NDArray) -> NDArray:
        """Scores x over c, stored; with "folded" not stored."""
        if self.way == "multiply":
            return self.a.store(x * self.a.store(np.reciprocal(self.c)))
        return x * (np.reciprocal(self.c)) if self.way == "folded" else self.a.store(x / self.c)

    def cap(self, inside: NDArray) -> Cap:
        """From x / c to the capped score."""
        tanh = tanh_by_expm1(inside) if self.way == "expm1" else np.tanh(inside)
        tanh = tanh if self.way == "folded" else self.a.store(tanh)
        return Cap(inside, tanh, self.a.store(tanh * self.c))

    def backward(self, d_scores: NDArray, cap: Cap) -> NDArray:
        """The gradient of x, stored."""
        a, tanh = self.a, cap.tanh
        if not self.slope:
            outside = a.store(a.store(d_scores * self.c) * (1 - tanh * tanh))
            return a.store(outside * a.store(np.reciprocal(self.c)) if self.way == "multiply" else outside / self.c)
        if self.slope == "factors":
            return a.store(d_scores * a.store((1 - tanh) * (1 + tanh)))
        if self.slope == "cosh":
            shrunk = np.exp(-2 * np.abs(cap.inside))
            return a.store(d_scores * a.store(4 * shrunk / np.square(1 + shrunk)))
        if self.slope == "capped":
            tanh = a.store(cap.scores / self.c)
        return a.store(d_scores * a.store(1 - a.store(tanh * tanh)))
