"""The parts of attention between projection and scores, in every way that `Ways` can name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.calibration.arithmetic import Arithmetic
from conformance.calibration.by_part.query_scale import Scaling
from conformance.calibration.ways import Ways
from mha_core import AttentionConfig, AttentionInputs, QueryKeyNorm, Rotary
from mha_core.call.rotary import positions_of
from mha_core.call.sizes import CallSizes
from mha_core.parts.query_key_norm import by_head
from mha_core.parts.rotary import axis_of_pairs, pairs
from mha_core.parts.value_norm import norm_of
from mha_core.weights import Weights

NAMES = {"queries": "q_norm", "keys": "k_norm"}


class Parts:
    """The parts of one run: forward side by side ("queries", "keys"), and then backward.

    Args:
        ways, arithmetic: how.
        config, weights, inputs, sizes: of what; weights as they are held.
    """

    def __init__(
        self,
        ways: Ways,
        arithmetic: Arithmetic,
        config: AttentionConfig,
        weights: Weights,
        inputs: AttentionInputs,
        sizes: CallSizes,
    ) -> None:
        self.ways, self.a, self.weights, self.norm = ways, arithmetic, weights, config.query_key_norm
        self.rotations: dict[str, _Rotation] = {}
        self.normed: dict[str, _Norm] = {}
        self.scaling = None
        if config.query_scale is not None:
            self.scaling = Scaling(ways, arithmetic, config.query_scale, inputs, sizes)
        if config.rotary is not None:
            tables = _tables(config.rotary, inputs, sizes)
            make = {"complex": _Complex, "full": _Full, "matrices": _Matrices}.get(ways.rotation, _Rotation)
            for side, (cos, sin) in zip(NAMES, tables, strict=True):
                self.rotations[side] = make(arithmetic, config.rotary, config.head_dim, cos, sin)

    def forward(self, side: str, x: NDArray) -> NDArray:
        """(B, heads, L, d): normed, turned, and queries scaled; stored."""
        if self.norm is not None and self.norm.order == "before":
            x = self._norm(side, self.norm, x)
        if self.rotations:
            x = self.rotations[side].turned(x, back=False)
        if self.norm is not None and self.norm.order == "after":
            x = self._norm(side, self.norm, x)
        return x if self.scaling is None or side == "keys" else self.scaling.scaled(x)

    def backward(self, side: str, gradient: NDArray) -> tuple[NDArray, dict[str, NDArray]]:
        """The gradient (B, heads, L, d) of what was projected, and those of the weights of the norm."""
        found: dict[str, NDArray] = {}
        if self.scaling is not None and side == "queries":
            gradient = self.scaling.scaled(gradient)
        if self.norm is not None and self.norm.order == "after":
            gradient, found = self.normed[side].backward(gradient)
        if self.rotations:
            gradient = self.rotations[side].turned(gradient, back=True)
        if self.norm is not None and self.norm.order == "before":
            gradient, found = self.normed[side].backward(gradient)
        return gradient, {f"{NAMES[side]}.{kind}": array for kind, array in found.items()}

    def _norm(self, side: str, settings: QueryKeyNorm, x: NDArray) -> NDArray:
        weight, bias = (self.weights.get(f"{NAMES[side]}.{kind}") for kind in ("weight", "bias"))
        self.normed[side] = _Norm(self.ways, self.a, settings, x, weight, bias)
        return self.normed[side].forward()


# The rotation -------------------------------------------------------------------------------------


def _tables(
    settings: Rotary, inputs: AttentionInputs, sizes: CallSizes
) -> tuple[tuple[NDArray, NDArray], tuple[NDArray, NDArray]]:
    """(cosine, sine) of queries and of new keys, each (1 or B, L, r / 2) in float64."""
    given = inputs.rotary
    if given is not None and given.has_tables:
        of_queries, of_keys = given.tables()
        return tuple(of_queries), tuple(of_keys)
    places = positions_of(given, inputs.mask.query_offset, sizes)
    length = 1 + max(*(int(place.max(initial=0)) for place in places), sizes.past_len - 1)
    inverse, factor = settings.frequencies(length)
    if settings.rule is None:
        steps = np.arange((settings.width or 0) // 2) * (2.0 / (settings.width or 1))
        inverse = np.exp(-np.log(settings.base) * steps)

    def table(place: NDArray) -> tuple[NDArray, NDArray]:
        if place.ndim == 3:
            angle = np.moveaxis(place[axis_of_pairs(settings)], 0, -1) * inverse
        else:
            angle = (place if place.ndim == 2 else place[None])[..., None] * inverse
        turned = factor * np.exp(1j * angle)
        return turned.real, turned.imag

    return table(places[0]), table(places[1])


class _Rotation:
    """Pair by pair: each product stored, then their sum. `cos` and `sin` are (1 or B, 1, L, r / 2)."""

    def __init__(self, a: Arithmetic, settings: Rotary, width: int, cos: NDArray, sin: NDArray) -> None:
        self.a, self.settings, self.width = a, settings, width
        self.cos, self.sin = a.hold(cos[:, None]), a.hold(sin[:, None])

    def turned(self, x: NDArray, *, back: bool) -> NDArray:
        """X (B, heads, L, d) through the rotation, or a gradient back through it; stored."""
        made = np.array(x)
        first, second = pairs(made, self.settings)
        first[...], second[...] = self.pair(*pairs(x, self.settings), -self.sin if back else self.sin)
        return made

    def pair(self, a: NDArray, b: NDArray, sin: NDArray) -> tuple[NDArray, NDArray]:
        store = self.a.store
        return store(store(a * self.cos) - store(b * sin)), store(store(b * self.cos) + store(a * sin))


class _Complex(_Rotation):
    """A pair is a complex number; nothing is stored in between."""

    def pair(self, a: NDArray, b: NDArray, sin: NDArray) -> tuple[NDArray, NDArray]:
        kind = np.complex128 if self.a.wide == np.float64 else np.complex64
        turned = (a + kind(1j) * b).astype(kind) * (self.cos + kind(1j) * sin).astype(kind)
        return self.a.store(turned.real), self.a.store(turned.imag)


class _Full(_Rotation):
    """x cos + quarter(x) sin over all channels of a head, those that stay with cosine 1 and sine 0."""

    def __init__(self, a: Arithmetic, settings: Rotary, width: int, cos: NDArray, sin: NDArray) -> None:
        super().__init__(a, settings, width, cos, sin)
        shape = (*self.cos.shape[:-1], width)
        self.all_cos, self.all_sin = np.ones(shape, a.wide), np.zeros(shape, a.wide)
        for table, half in ((self.all_cos, self.cos), (self.all_sin, self.sin)):
            for channels in pairs(table, settings):
                channels[...] = half

    def turned(self, x: NDArray, *, back: bool) -> NDArray:
        store = self.a.store
        quarter = self._quarter(store(x * self.all_sin), -1) if back else store(self._quarter(x, 1) * self.all_sin)
        return store(store(x * self.all_cos) + quarter)

    def _quarter(self, x: NDArray, sign: int) -> NDArray:
        """Each pair (a, b) as (-b, a), or as (b, -a)."""
        made = np.array(x)
        (a, b), (first, second) = pairs(x, self.settings), pairs(made, self.settings)
        first[...], second[...] = -sign * b, sign * a
        return made


class _Matrices(_Rotation):
    """A matrix (d, d) for each position, times the heads there."""

    def turned(self, x: NDArray, *, back: bool) -> NDArray:
        matrix = np.zeros((*self.cos.shape[:-1], self.width, self.width), self.a.wide)
        matrix[..., range(self.width), range(self.width)] = 1
        first, second = pairs(np.arange(self.width), self.settings)
        matrix[..., first, first] = matrix[..., second, second] = self.cos
        matrix[..., first, second], matrix[..., second, first] = -self.sin, self.sin
        right = matrix if back else matrix.swapaxes(-1, -2)
        return self.a.product(x[..., None, :], right)[..., 0, :]


# The norm -----------------------------------------------------------------------------------------


class _Norm:
    """One norm of x (B, heads, L, d), forward and then backward."""

    def __init__(
        self,
        ways: Ways,
        a: Arithmetic,
        settings: QueryKeyNorm,
        x: NDArray,
        weight: NDArray | None,
        bias: NDArray | None,
    ) -> None:
        self.ways, self.a, self.settings, self.bias = ways, a, settings, bias
        self.axes = (1, 3) if settings.scope == "all" else (3,)
        self.count = a.wide.type(int(np.prod([x.shape[axis] for axis in self.axes])))
        self.shape, self.x = x.shape, x
        self.scale = None if weight is None else by_head(a.store(a.wide.type(settings.offset) + weight), x.shape)
        self.by_bias = None if bias is None else by_head(bias, x.shape)

    def forward(self) -> NDArray:
        a, eps = self.a, self.a.wide.type(self.settings.eps)
        self.centred = self.x - self._mean(self.x) if self.settings.kind == "layer" else self.x
        squares = self.centred * self.centred
        if self.ways.norm == "length":
            total = a.total(squares, self.axes, keepdims=True) + self.count * eps
            self.factor = np.sqrt(self.count) / np.sqrt(total)
        else:
            self.factor = 1 / np.sqrt(self._mean(squares) + eps)
        if self.ways.norm == "division":
            unit = self.centred / np.sqrt(self._mean(squares) + eps)
        else:
            unit = self.centred * self.factor
        self.unit = a.store(unit)
        if self.scale is None:
            return self.unit
        if self.ways.norm == "folded":
            made = a.store(self.centred * (self.factor * self.scale))
        elif self.settings.product == "dtype":
            made = a.store(self.unit * self.scale)
        else:
            made = a.store(unit * self.scale)
        return made if self.by_bias is None else a.store(made + self.by_bias)

    def backward(self, gradient: NDArray) -> tuple[NDArray, dict[str, NDArray]]:
        a = self.a
        through = gradient if self.scale is None else a.store(gradient * self.scale)
        if self.ways.norm_back == "chain":
            d_square = -(self.factor**3) * a.total(through * self.centred, self.axes, keepdims=True) / (2 * self.count)
            inside = through * self.factor + 2 * self.centred * d_square
            x = inside - self._mean(inside) if self.settings.kind == "layer" else inside
        else:
            inside = through - self.unit * self._mean(through * self.unit)
            if self.settings.kind == "layer":
                inside = inside - self._mean(through)
            x = inside * self.factor
        found: dict[str, NDArray] = {}
        if self.scale is not None:
            found["weight"] = self._summed(a.store(gradient * self.unit))
            if self.by_bias is not None:
                found["bias"] = self._summed(gradient)
        return a.store(x), found

    def _mean(self, x: NDArray) -> NDArray:
        """Over a head, or over all heads; in the accumulator's dtype."""
        mean: NDArray = self.a.total(x, self.axes, keepdims=True) / self.count
        return mean

    def _summed(self, x: NDArray) -> NDArray:
        """(B, heads, L, d) -> (d,) or (heads * d,), stored."""
        axes = (0, 1, 2) if self.settings.weight == "shared" else (0, 2)
        return self.a.store(self.a.total(x, axes)).reshape(-1)


# Projections and values ----------------------------------------------------------------------------


class Limit:
    """The limit c of one projection's result x (B, L, channels), forward and then backward."""

    def __init__(self, ways: Ways, a: Arithmetic, limit: float, x: NDArray) -> None:
        self.ways, self.a, self.x = ways, a, x
        self.limit = a.wide.type(limit) if ways.clip == "wide" else a.hold(limit)

    def forward(self) -> NDArray:
        """X cut off, stored."""
        x, c = self.x, self.limit
        if self.ways.clip == "quotient":
            self.inside = self.a.store(x / c)
            return self.a.store(c * np.clip(self.inside, -1, 1))
        if self.ways.clip == "sign":
            return self.a.store(np.sign(x) * np.minimum(np.abs(x), c))
        return self.a.store(np.minimum(np.maximum(x, -c), c))

    def backward(self, gradient: NDArray) -> NDArray:
        """The gradient of x, from that of x cut off."""
        zero = gradient.dtype.type(0)
        if self.ways.clip == "quotient":
            back = self.a.store(np.where(np.abs(self.inside) <= 1, self.a.store(gradient * self.limit), zero))
            return self.a.store(back / self.limit)
        if self.ways.clip == "sign":
            return gradient * (np.abs(self.x) <= self.limit)
        return np.where((self.x > self.limit) | (self.x < -self.limit), zero, gradient)


class Values:
    """The norm and the scale of values x (B, G, L, dv), forward and then backward."""

    def __init__(self, ways: Ways, a: Arithmetic, config: AttentionConfig, x: NDArray) -> None:
        self.ways, self.a, self.x = ways, a, x
        eps, scale = config.value_norm_eps, config.value_scale
        self.norm = None if eps is None else _Norm(ways, a, norm_of(eps), x, None, None)
        self.scale = None if scale is None else a.hold(scale) if ways.value_scale == "stored" else a.wide.type(scale)

    def forward(self) -> NDArray:
        """X normed and scaled, stored."""
        a, x = self.a, self.x
        if self.norm is None:
            return x if self.scale is None else a.store(x * self.scale)
        normed = self.norm.forward()
        if self.scale is None:
            return normed
        if self.ways.value_scale == "folded":  # into the factor, of which nothing is stored in between
            return a.store(x * (self.norm.factor * self.scale))
        return a.store(normed * self.scale)

    def backward(self, gradient: NDArray) -> NDArray:
        """The gradient of x."""
        if self.scale is not None:
            gradient = self.a.store(gradient * self.scale)
        return gradient if self.norm is None else self.norm.backward(gradient)[0]
