"""The norm of queries and keys, in every way."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.calibration.by_part.run import Run
from conformance.calibration.odds import odds, spread
from conformance.cases.choices import Space, weights_of_scope
from mha_core.parts.query_key_norm import QueryKeyNorm, by_head

SPACE: Space = {
    "norm": odds({None: 7, "rms": 2, "layer": 1}),
    "norm.scope": odds({"head": 3, "all": 1}),
    "norm.weight": weights_of_scope,
    "norm.order": ("before", "after"),
    "norm.eps": (1e-6, 1e-5, *spread(1e-8, 1.0)),
    "norm.offset": (0, 1),
    "norm.bias": odds({False: 2, True: 1}),
}

WAYS: Mapping[str, Mapping[str, str]] = {
    "norm": {
        "division": "scale-on-queries reversed",
        "folded": "scale-on-keys signs",
        "length": "sequential pairwise",
    },
    "norm_back": {"chain": "sequential reversed chain-rule"},
}
"""norm: times 1 / sqrt(mean square + eps); divided by the root; the weight folded into the factor; or by the root of
the sum, over sqrt(n). norm_back: by the formula of its derivative, or through the root, the mean and the product.
"""


def norm_in(order: str, run: Run, side: str) -> Norm | None:
    """The norm of "queries" or "keys", if the layer norms in this order: "before" or "after" the rotation."""
    settings = run.config.query_key_norm
    if settings is None or settings.order != order or side == "values":
        return None
    return Norm(run, settings, {"queries": "q_norm", "keys": "k_norm"}[side])


before, after = partial(norm_in, "before"), partial(norm_in, "after")


class Norm:
    """One norm of x (B, heads, L, d), forward and then backward.

    Args:
        settings: of the norm.
        name: "q_norm" or "k_norm", whose weights it has; "" for a norm without any.
    """

    def __init__(self, run: Run, settings: QueryKeyNorm, name: str = "") -> None:
        self.ways, self.a, self.settings, self.name = run.ways, run.a, settings, name
        self.weight, self.bias = (run.weights.get(f"{name}.{kind}") for kind in ("weight", "bias"))
        self.gradients: dict[str, NDArray] = {}

    def forward(self, x: NDArray) -> NDArray:
        """X normed, stored."""
        a, settings = self.a, self.settings
        eps, way = a.wide.type(settings.eps), self.ways.get("norm")
        self.axes = (1, 3) if settings.scope == "all" else (3,)
        self.count = a.wide.type(int(np.prod([x.shape[axis] for axis in self.axes])))
        self.scale = None
        if self.weight is not None:
            self.scale = by_head(a.store(a.wide.type(settings.offset) + self.weight), x.shape)
        self.centred = x - self._mean(x) if settings.kind == "layer" else x
        squares = self.centred * self.centred
        root = np.sqrt(self._mean(squares) + eps)
        if way == "length":
            total = a.total(squares, self.axes, keepdims=True) + self.count * eps
            self.factor = np.sqrt(self.count) / np.sqrt(total)
        else:
            self.factor = 1 / root
        unit = self.centred / root if way == "division" else self.centred * self.factor
        self.unit = a.store(unit)
        if self.scale is None:
            return self.unit
        if way == "folded":
            made = a.store(self.centred * (self.factor * self.scale))
        elif settings.product == "dtype":
            made = a.store(self.unit * self.scale)
        else:
            made = a.store(unit * self.scale)
        return made if self.bias is None else a.store(made + by_head(self.bias, x.shape))

    def backward(self, gradient: NDArray) -> NDArray:
        """The gradient of x, stored; those of weight and bias stand in `gradients`."""
        a = self.a
        through = gradient if self.scale is None else a.store(gradient * self.scale)
        if self.ways.get("norm_back") == "chain":
            d_square = -(self.factor**3) * a.total(through * self.centred, self.axes, keepdims=True) / (2 * self.count)
            inside = through * self.factor + 2 * self.centred * d_square
            x = inside - self._mean(inside) if self.settings.kind == "layer" else inside
        else:
            inside = through - self.unit * self._mean(through * self.unit)
            if self.settings.kind == "layer":
                inside = inside - self._mean(through)
            x = inside * self.factor
        if self.weight is not None:
            self.gradients[f"{self.name}.weight"] = self._summed(a.store(gradient * self.unit))
        if self.bias is not None:
            self.gradients[f"{self.name}.bias"] = self._summed(gradient)
        return a.store(x)

    def _mean(self, x: NDArray) -> NDArray:
        """Over a head, or over all heads; in the accumulator's dtype."""
        return self.a.total(x, self.axes, keepdims=True) / self.count

    def _summed(self, x: NDArray) -> NDArray:
        """(B, heads, L, d) -> (d,) or (heads * d,), stored."""
        axes = (0, 1, 2) if self.settings.weight == "shared" else (0, 2)
        return self.a.store(self.a.total(x, axes)).reshape(-1)
