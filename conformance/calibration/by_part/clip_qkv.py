"""The limit of projections, in every way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.calibration.by_part.run import Run
from conformance.calibration.odds import spread
from conformance.cases.choices import Space
from mha_core.heads import merge_heads, split_heads
from mha_core.reference.state import State

SPACE: Space = {"clip": (*(None,) * 120, *spread(0.03, 30.0))}

WAYS: Mapping[str, Mapping[str, str]] = {
    "clip": {
        "wide": "scale-on-queries sequential packed",
        "quotient": "scale-on-keys bias-first reversed signs",
        "sign": "bias-last einsum chain-rule",
    },
}
"""Two comparisons with the limit c in the storage dtype, or as it is in the accumulator's ("wide"); c times x / c cut
off at 1 ("quotient"); or the sign times the smaller of |x| and c.
"""


def between(state: State) -> Sequence[NDArray]:
    """C clip(x / c), forward and backward, factor by factor."""
    limit = state.config.clip_qkv
    if limit is None:
        return ()
    inside = [state[name] / limit for name in ("q_proj", "k_proj", "v_proj")]
    return inside + [limit * state[f"d_clipped_{name}"] for name in ("queries", "keys", "values")]


def limit_of(run: Run, side: str) -> Limit | None:
    """The limit of queries, of keys, or of values."""
    return None if run.config.clip_qkv is None else Limit(run, run.config.clip_qkv)


class Limit:
    """The limit c of one projection's result, forward and then backward."""

    def __init__(self, run: Run, limit: float) -> None:
        self.a, self.way = run.a, run.ways.get("clip")
        self.limit = run.a.wide.type(limit) if self.way == "wide" else run.a.hold(limit)

    def forward(self, x: NDArray) -> NDArray:
        """X cut off, stored."""
        heads, self.x = x.shape[1], merge_heads(x)
        return split_heads(self._cut(self.x), heads)

    def backward(self, gradient: NDArray) -> NDArray:
        """The gradient of x, from that of x cut off."""
        return split_heads(self._cut_back(merge_heads(gradient)), gradient.shape[1])

    def _cut(self, x: NDArray) -> NDArray:
        c = self.limit
        if self.way == "quotient":
            self.inside = self.a.store(x / c)
            return self.a.store(c * np.clip(self.inside, -1, 1))
        if self.way == "sign":
            return self.a.store(np.sign(x) * np.minimum(np.abs(x), c))
        return self.a.store(np.minimum(np.maximum(x, -c), c))

    def _cut_back(self, gradient: NDArray) -> NDArray:
        zero = gradient.dtype.type(0)
        if self.way == "quotient":
            back = self.a.store(np.where(np.abs(self.inside) <= 1, self.a.store(gradient * self.limit), zero))
            return self.a.store(back / self.limit)
        if self.way == "sign":
            return gradient * (np.abs(self.x) <= self.limit)
        return np.where((self.x > self.limit) | (self.x < -self.limit), zero, gradient)
