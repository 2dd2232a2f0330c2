"""Arrays with error bounds, the few operations that attention is made of, and `Bounds`, the argument of every bound.

`Bounded(v, e)` promises |computed - v| <= e, element by element, for every computation of v in the
given precision, whatever its order of operations. Two ways to add up errors (`Rounding`):

- deterministic: the worst case. A theorem, and far too wide for long sums in low precision.
- probabilistic: roundings of different computations are independent, so their contributions add
  like the sides of a right angle (Higham & Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4, with
  lambda = 8: a nominal failure of 2.5e-14 per element). Two things are not independent, and count as what
  they are: roundings of equal computations, which are equal (see `copies`); and the errors of numbers
  that one wrong number went into, such as a whole row of scores (see `Rounding.carried`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from mha_core.heads import repeat_kv_heads
from mha_core.reference.state import State

LAMBDA = 8.0

DISTINCT = 2.0**20
"""Numbers that `copies` tells apart between two powers of two: enough that random numbers rarely coincide, and few
enough that the rounding of the reference doesn't make equal numbers differ."""


def copies(x: NDArray) -> NDArray:
    """Return, for each number, how many numbers along the last axis (itself included) have its mantissa.

    Sign and power of two do not matter: numbers that differ only in them have equal relative rounding errors.

    >>> copies(np.array([0.3, 0.7, -0.6, 0.3, 1.0]))
    array([3, 1, 3, 3, 1])
    """
    # The plain ways of nan_to_num, take_along_axis and put_along_axis: most arrays are so small that theirs cost more.
    digits = _digits(x)
    counted = np.ones(digits.shape, dtype=np.int64)
    repeated = _repeats(np.sort(digits, axis=-1)).any(axis=-1)
    if repeated.any():
        some = digits[repeated]
        rows, order = np.arange(len(some))[:, None], np.argsort(some, axis=-1)
        group, sizes = _groups(some[rows, order])
        found = np.empty(some.shape, dtype=np.int64)
        found[rows, order] = sizes[group]
        counted[repeated] = found
    return counted.reshape(x.shape)


def total_copies(x: NDArray) -> NDArray:
    """Return the sum of `copies` along the last axis: each group of n numbers with equal mantissas adds n^2.

    >>> total_copies(np.array([[0.3, 0.7, -0.6, 0.3, 1.0]]))
    array([11])
    """
    in_order = np.sort(_digits(x), axis=-1)
    counted = np.full(len(in_order), x.shape[-1])
    repeated = _repeats(in_order).any(axis=-1)
    if repeated.any():
        group, sizes = _groups(in_order[repeated])
        counted[repeated] = sizes[group].sum(axis=-1)
    return counted.reshape(x.shape[:-1])


def _digits(x: NDArray) -> NDArray:
    """Int32 (rows, last axis): equal where the digits are."""
    scaled = np.frexp(np.abs(x))[0].reshape(-1, x.shape[-1]) * DISTINCT
    scaled[np.isnan(scaled)] = 0.0
    return np.minimum(scaled, 2.0 * DISTINCT).astype(np.int32)


def _repeats(in_order: NDArray) -> NDArray:
    """Bool (rows, n - 1): whether a number is as the one before it, in rows that are in order."""
    return in_order[:, 1:] == in_order[:, :-1]


def _groups(in_order: NDArray) -> tuple[NDArray, NDArray]:
    """The number of the group of equal ones that each is in, (rows, n), and the size of every group."""
    starts = np.ones(in_order.shape, dtype=bool)
    np.logical_not(_repeats(in_order), out=starts[:, 1:])
    group = np.cumsum(starts).reshape(in_order.shape) - 1
    return group, np.bincount(group.ravel(), minlength=1)


@dataclass(frozen=True)
class Bounded:
    """A pair of arrays: exact values `v`, and bounds `e` on the error |computed - v| of an array that was computed."""

    v: NDArray
    e: NDArray

    @classmethod
    def exact(cls, v: NDArray) -> Bounded:
        """Return v with bounds of 0, for arrays that are known exactly, such as inputs and parameters."""
        return cls(v, np.zeros(v.shape))

    @property
    def most(self) -> NDArray:
        """Return |v| + e, the largest magnitude that each computed element can have."""
        return np.abs(self.v) + self.e

    def map(self, rearrange: Callable[[NDArray], NDArray]) -> Bounded:
        """Return `rearrange` applied to v and to e. It must only move elements: transpose, split into heads, repeat."""
        return Bounded(rearrange(self.v), rearrange(self.e))

    @property
    def T(self) -> Bounded:
        """Return this with the last two axes exchanged."""
        return self.map(lambda array: array.swapaxes(-1, -2))


@dataclass(frozen=True)
class Rounding:
    """A rule for adding up a precision's rounding errors: linearly (worst case), or by squares if `probabilistic`."""

    precision: Precision
    probabilistic: bool

    def add(self, *errors: NDArray | float) -> NDArray:
        """Return the bound on a sum of errors, each of which has a bound in `errors`."""
        total: NDArray = np.asarray(reduce(operator.add, errors))
        if not self.probabilistic:
            return total
        roots: NDArray = reduce(np.hypot, errors)  # type: ignore[arg-type]  # hypot: squares would underflow
        return np.where(total < self.precision.linear_below, total, roots)

    def unit(self, u: float) -> float:
        """Return the bound on the relative error of one rounding: u, or LAMBDA * u if `probabilistic`."""
        return LAMBDA * u if self.probabilistic else u

    def gamma(self, n: int, u: float, squares: NDArray | float | None = None) -> Any:
        """Return the error bound of a sum with n roundings to unit roundoff `u`, relative to the sum of |terms|.

        `squares`: the sum of c^2 over groups of c equal terms: 3^2 + 2^2 for a, a, a, b, b. Default: n (all differ).
        """
        worst = n * u / (1.0 - n * u) if n * u < 1.0 else np.inf
        if not self.probabilistic:
            return worst
        root = np.sqrt(n if squares is None else squares)
        return np.minimum(worst, np.expm1(LAMBDA * root * u + n * u * u / (1.0 - u)))

    def within(self, furthest: Any, width: Any) -> Any:
        """Return the error bound of a computed number that lies in an interval of this width around the exact number.

        `furthest` is the distance from the exact number to the further end of the interval. It is the worst-case bound.
        If `probabilistic`, the bound is LAMBDA * width / 2, as no standard deviation exceeds width / 2 (Popoviciu). It
        may exceed `furthest`: bounds that are cut off there could not be added up by their squares.
        """
        return 0.5 * LAMBDA * width if self.probabilistic else furthest

    def moved_through(self, rising: Callable[[NDArray], NDArray], x: Bounded) -> NDArray:
        """Return the error bound of `rising(x)`, for a function with slopes in 0..1. Errors shrink where it is flat."""
        middle = rising(x.v)
        up, down = rising(x.v + x.e) - middle, middle - rising(x.v - x.e)
        return np.minimum(x.e, self.within(np.maximum(up, down), up + down))

    def store(self, x: Bounded, lost: float | None = None) -> Bounded:
        """Return x with the error of storing it added to e. Numbers below `lost` (None: least normal) may become 0."""
        flushed = self.precision.tau if lost is None else lost
        return Bounded(x.v, self.add(x.e, self.unit(self.precision.u) * x.most, flushed))

    def product(self, a: Bounded, b: Bounded, v: NDArray | None = None) -> Bounded:
        """Return `a @ b`, rounded as `store` does. `v` is the exact product, if it is known already."""
        if self.precision.um:
            a, b = (Bounded(x.v, self.add(x.e, self.unit(self.precision.um) * x.most)) for x in (a, b))
        n, most_a, most_b = a.v.shape[-1], a.most, b.most
        squares = None
        if self.probabilistic and n:
            # Terms are equal where both factors are. The groups' squared sizes add up to the sum of all copies.
            of_a, of_b = total_copies(most_a)[..., :, None], total_copies(most_b.swapaxes(-1, -2))[..., None, :]
            squares = np.minimum(of_a, of_b)
        summation = self.gamma(max(n, 1), self.precision.ua, squares) * _matmul(most_a, most_b)
        # Factors are often given exactly: what is 0 need not be added.
        carried = []
        if not _are_zeros(a.e, b.v):
            carried.append(self.carried(a.e, b.v))
        if not _are_zeros(b.e, a.v):
            carried.append(self.carried(b.T.e, a.T.v).swapaxes(-1, -2))
        if not (_are_zeros(a.e, b.e) or _are_zeros(b.e, a.e)):
            carried.append(self.carried(a.e, b.e))
        e = self.add(*carried, summation, n * self.precision.tau)
        return self.store(Bounded(a.v @ b.v if v is None else v, e))

    def times(self, a: Bounded, factor: NDArray | float) -> Bounded:
        """Return `a` times an exactly known factor, rounded as `store` does."""
        return self.store(Bounded(a.v * factor, a.e * np.abs(factor)))

    def elementwise(self, a: Bounded, b: Bounded) -> Bounded:
        """Return `a` times `b` element by element, rounded as `store` does."""
        return self.store(Bounded(a.v * b.v, self.add(np.abs(a.v) * b.e, np.abs(b.v) * a.e, a.e * b.e)))

    def plus(self, a: Bounded, b: Bounded) -> Bounded:
        """Return `a + b`, rounded as `store` does."""
        return self.store(Bounded(a.v + b.v, self.add(a.e, b.e)))

    def total(self, a: Bounded, axes: tuple[int, ...], *, keepdims: bool = False) -> Bounded:
        """Return the sum over `axes`, rounded as `store` does. Errors add up linearly, as if all had the same sign."""
        n = int(np.prod([a.v.shape[axis] for axis in axes], dtype=int))
        carried = a.e.sum(axis=axes, keepdims=keepdims)
        squares = None
        if self.probabilistic and n:
            squares = _along(copies, a.most, axes).sum(axis=axes, keepdims=keepdims)
        summation = self.gamma(max(n, 1), self.precision.ur, squares) * a.most.sum(axis=axes, keepdims=keepdims)
        return self.store(Bounded(a.v.sum(axis=axes, keepdims=keepdims), self.add(carried, summation)))

    def carried(self, errors: NDArray, factors: NDArray) -> NDArray:
        """Return the bound (..., m, k) on `errors @ factors`, for errors up to +-`errors` (..., m, n).

        The worst-case bound is errors @ |factors|. If `probabilistic`, the larger of two bounds is returned. The first
        is for independent errors, and adds their squares. If c errors of a row are equal, their squares are multiplied
        by c (Cauchy and Schwarz). The second is for errors that all have the same sign: |errors @ factors|.
        """
        if _are_zeros(errors, factors) or _are_zeros(factors, errors):  # as of what is given exactly
            stacks = np.broadcast_shapes(errors.shape[:-2], factors.shape[:-2])
            return np.zeros((*stacks, errors.shape[-2], factors.shape[-1]))
        linear = _matmul(errors, np.abs(factors))
        if not self.probabilistic or not errors.any():
            return linear
        roots = np.sqrt((copies(errors) * np.square(errors)) @ np.square(factors))
        together = np.abs(_matmul(errors, factors))
        return np.where(linear < self.precision.linear_below, linear, np.minimum(linear, np.maximum(roots, together)))


RAISED = 2.0**300
"""Brings every number up to where products with it are normal: processors take a hundred times as long for others."""


def _matmul(a: NDArray, b: NDArray) -> NDArray:
    """The product a @ b of bounds. Numbers around the smallest normal one are in a where only such may be lost.

    With a power of two as factor, every bit is as without, but where a term or a result is not normal.
    """
    if a.size < WORTH_A_LOOK:
        return a @ b
    sizes = np.abs(a)
    if not 0.0 < sizes.min(initial=np.inf, where=sizes > 0.0) < 1.0 / RAISED:
        return a @ b
    if not (sizes.max() < RAISED and np.abs(b).max(initial=0.0) < RAISED):  # or NaN
        return a @ b
    raised: NDArray = (a * RAISED) @ b
    return raised / RAISED


def _are_zeros(x: NDArray, other: NDArray) -> bool:
    """Whether x is 0 everywhere, and so is what becomes of it in a product with the other."""
    return not x.any() and bool(np.isfinite(other).all())


WORTH_A_LOOK = 512
"""Elements from which looking for tiny numbers costs less than what it saves."""


def _along(count: Callable[[NDArray], NDArray], x: NDArray, axes: tuple[int, ...]) -> NDArray:
    """`count` over several axes at once, instead of over the last one."""
    last = tuple(range(x.ndim - len(axes), x.ndim))
    moved = np.moveaxis(x, axes, last)
    if not x.size:
        return x
    return np.moveaxis(count(moved.reshape(*moved.shape[: last[0]], -1)).reshape(moved.shape), last, axes)


Found = TypeVar("Found")


@dataclass
class Bounds:
    """A table of the error bounds found so far. Functions that find the bound of the next step take it as argument.

    Attributes:
        state: the arrays of all steps, as the reference computed them.
        rounding: the rule by which errors add up.
        steps: name of an earlier step -> its bound, also read by `bounds[name]`: a Bounded; a dict of Bounded for a
            step that returns a dict; None for a step that returns None.
    """

    state: State
    rounding: Rounding
    steps: dict[str, Any] = field(default_factory=dict)
    _found: dict[Callable[[Bounds], Any], Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.steps[name]

    def heads_of(self, name: str) -> Bounded:
        """Return the error bound of `keys` or `values`, with each head repeated for the query heads that read it."""
        return self[name].map(lambda array: repeat_kv_heads(array, self.state.config.num_heads))

    def once(self, compute: Callable[[Bounds], Found]) -> Found:
        """Return `compute(self)`. The result is cached, for all steps that need it."""
        if compute not in self._found:
            self._found[compute] = compute(self)
        return self._found[compute]


Bound = Callable[[Bounds], Any]
"""The bound of one step, made of the bounds of the steps before it."""
