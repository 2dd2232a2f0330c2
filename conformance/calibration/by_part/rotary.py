"""Rotary positions, in every way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.calibration.by_part.run import Run
from conformance.calibration.odds import odds
from conformance.cases.choices import RULES_OF_CASES, Made, Space, even_widths, ways_to_stand
from mha_core import AttentionInputs, Rotary
from mha_core.call.rotary import positions_of
from mha_core.call.sizes import CallSizes
from mha_core.parts.rotary import axis_of_pairs, pairs


def _ways_to_stand(made: Made) -> Sequence[str]:
    """What calls say of positions; offsets by item, which differ from call to call, may be negative."""
    return [way for way in ways_to_stand(made) if not (way == "counted" and made.get("query_offset") == "per item")]


SPACE: Space = {
    "rotary": odds({False: 7, True: 3}),
    "rotary.width": even_widths,
    "rotary.interleaved": (False, True),
    "rotary.start": odds({"first": 3, "last": 1}),
    "rotary.base": (10000.0, 500000.0, 10.0),
    "rotary.rule": (*(None,) * 6, *RULES_OF_CASES),
    "rotary.sections": odds({None: 6, "in a row": 1, "in turn": 1}),
    "rotary.given": _ways_to_stand,
    "rotary.reach": (20, 300, 5000, 2**17),
}

WAYS: Mapping[str, Mapping[str, str]] = {
    "rotation": {
        "full": "scale-on-queries signs chain-rule",
        "complex": "scale-on-keys reversed",
        "matrices": "sequential pairwise",
    },
}
"""Pair by pair; as x cos + (x turned by a quarter) sin with tables of the whole width of a head; as complex numbers; or
as a matrix for each position.
"""


def rotation(run: Run, side: str) -> _Rotation | None:
    """The turn of "queries" or "keys"."""
    settings = run.config.rotary
    if settings is None or side == "values":
        return None
    of_queries, of_keys = _tables(settings, run.inputs, run.sizes)
    cos, sin = of_queries if side == "queries" else of_keys
    make = {"complex": _Complex, "full": _Full, "matrices": _Matrices}.get(run.ways.get("rotation", ""), _Rotation)
    return make(run, settings, cos, sin)


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

    def __init__(self, run: Run, settings: Rotary, cos: NDArray, sin: NDArray) -> None:
        self.a, self.settings, self.width = run.a, settings, run.config.head_dim
        self.cos, self.sin = run.a.hold(cos[:, None]), run.a.hold(sin[:, None])

    def forward(self, x: NDArray) -> NDArray:
        return self.turned(x, back=False)

    def backward(self, gradient: NDArray) -> NDArray:
        return self.turned(gradient, back=True)

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

    def __init__(self, run: Run, settings: Rotary, cos: NDArray, sin: NDArray) -> None:
        super().__init__(run, settings, cos, sin)
        shape = (*self.cos.shape[:-1], self.width)
        self.all_cos, self.all_sin = np.ones(shape, self.a.wide), np.zeros(shape, self.a.wide)
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
