"""Arrays with error bounds, and the few operations that attention is made of.

`Bounded(v, e)` promises |computed - v| <= e, element by element, for every computation of v in the
given precision, whatever its order of operations. Two ways to add up errors (`Rounding`):

- deterministic: the worst case. A theorem, and far too wide for long sums in low precision.
- probabilistic: roundings are independent, so contributions add like the sides of a right angle
  (Higham & Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4, with lambda = 8: a nominal
  failure of 2.5e-14 per element). No theorem for structured data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from conformance.precision import Precision

LAMBDA = 8.0

SQUARES_UNDERFLOW = 1e-140
"""Errors below it are added up without squaring, which would lose them."""


@dataclass(frozen=True)
class Bounded:
    """Exact values `v` and bounds `e` on how far a computed array may lie from them."""

    v: NDArray
    e: NDArray

    @classmethod
    def exact(cls, v: NDArray) -> Bounded:
        """What every computation starts from."""
        return cls(v, np.zeros(v.shape))

    @property
    def most(self) -> NDArray:
        """The largest magnitude that the computed array can have."""
        return np.abs(self.v) + self.e

    def map(self, rearrange: Callable[[NDArray], NDArray]) -> Bounded:
        """Both arrays rearranged alike: transposed, split into heads, repeated."""
        return Bounded(rearrange(self.v), rearrange(self.e))

    @property
    def T(self) -> Bounded:
        """The last two axes exchanged."""
        return self.map(lambda array: array.swapaxes(-1, -2))


@dataclass(frozen=True)
class Rounding:
    """The rules by which errors add up in one precision, in one of the two ways."""

    precision: Precision
    probabilistic: bool

    def add(self, *errors: NDArray | float) -> NDArray:
        """The bound of a sum of errors."""
        if self.probabilistic:
            return reduce(np.hypot, errors)  # type: ignore[arg-type]  # hypot: squares would underflow
        return np.asarray(sum(errors))

    def unit(self, u: float) -> float:
        """The bound of one rounding."""
        return LAMBDA * u if self.probabilistic else u

    def gamma(self, n: int, u: float) -> float:
        """The bound of n roundings in a row, relative to the sum of magnitudes."""
        worst = n * u / (1.0 - n * u) if n * u < 1.0 else np.inf
        if not self.probabilistic:
            return worst
        return min(worst, float(np.expm1(LAMBDA * np.sqrt(n) * u + n * u * u / (1.0 - u))))

    def store(self, x: Bounded) -> Bounded:
        """Rounding to the storage dtype; below its smallest normal number, anything may become 0."""
        return Bounded(x.v, self.add(x.e, self.unit(self.precision.u) * x.most, self.precision.tau))

    def product(self, a: Bounded, b: Bounded, v: NDArray | None = None) -> Bounded:
        """A @ b, stored. `v` is the exact product where it is known already."""
        if self.precision.um:
            a, b = (Bounded(x.v, self.add(x.e, self.unit(self.precision.um) * x.most)) for x in (a, b))
        n = a.v.shape[-1]
        summation = self.gamma(max(n, 1), self.precision.ua) * (a.most @ b.most)
        e = self.add(
            self._sum_of(a.e, np.abs(b.v)),
            self._sum_of(np.abs(a.v), b.e),
            self._sum_of(a.e, b.e),
            summation,
            n * self.precision.tau,
        )
        return self.store(Bounded(a.v @ b.v if v is None else v, e))

    def times(self, a: Bounded, factor: NDArray | float) -> Bounded:
        """A * an exactly known factor, stored."""
        return self.store(Bounded(a.v * factor, a.e * np.abs(factor)))

    def plus(self, a: Bounded, b: Bounded) -> Bounded:
        """A + b, stored."""
        return self.store(Bounded(a.v + b.v, self.add(a.e, b.e)))

    def total(self, a: Bounded, axes: tuple[int, ...], *, keepdims: bool = False) -> Bounded:
        """The sum over some axes, stored."""
        n = int(np.prod([a.v.shape[axis] for axis in axes], dtype=int))
        carried = a.e.sum(axis=axes, keepdims=keepdims)
        if self.probabilistic:
            squares = np.sqrt((a.e**2).sum(axis=axes, keepdims=keepdims))
            carried = np.where(carried < SQUARES_UNDERFLOW, carried, squares)
        summation = self.gamma(max(n, 1), self.precision.ua) * a.most.sum(axis=axes, keepdims=keepdims)
        return self.store(Bounded(a.v.sum(axis=axes, keepdims=keepdims), self.add(carried, summation)))

    def _sum_of(self, errors: NDArray, factors: NDArray) -> NDArray:
        """The bound that errors leave in a matrix product with exact factors, or the other way round."""
        linear = errors @ factors
        if not self.probabilistic:
            return linear
        squares = np.sqrt(np.square(errors) @ np.square(factors))
        return np.where(linear < SQUARES_UNDERFLOW, linear, squares)
