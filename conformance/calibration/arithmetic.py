"""Arithmetic of a given precision in NumPy, with the order of every sum chosen by name.

Numbers are held in the accumulator's dtype ("wide": float64 for float64, float32 for the other three)
and rounded to the storage dtype by `store` after every operation. A product of two float16 or bfloat16
numbers is exact in float32, so a matrix product in `wide` is one with float32 accumulators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mha_core.dtypes import round_to

BLOCK = 5
"""Terms of one block of the order "blocks": no power of two, so that blocks never fall onto vector lanes."""


@dataclass(frozen=True)
class Arithmetic:
    """Sums and products in one precision and one order.

    Args:
        dtype: the storage dtype, one of mha_core.dtypes.DTYPES.
        order: one of ORDERS.

    >>> halves = Arithmetic("bfloat16", "sequential")
    >>> a = halves.hold(np.array([[1.0, 2.0**-9]]))
    >>> halves.product(a, a.T)  # stored: 1 + 2^-18 is no bfloat16 number
    array([[1.]], dtype=float32)
    >>> float(halves.sum_of_products(a, a.T)[0, 0]) - 1.0  # not stored
    3.814697265625e-06
    """

    dtype: str
    order: str = "blas"

    @property
    def wide(self) -> np.dtype:
        """The NumPy dtype that numbers are held in."""
        return np.dtype("float64" if self.dtype == "float64" else "float32")

    def hold(self, array: NDArray | float) -> NDArray:
        """Numbers rounded to the storage dtype, held in `wide`."""
        return round_to(np.asarray(array), self.dtype).astype(self.wide, copy=False)

    def store(self, x: NDArray) -> NDArray:
        """Round to the storage dtype. Raises TypeError for an array that was not computed in `wide`."""
        if x.dtype != self.wide:
            raise TypeError(f"arithmetic in {self.dtype} must be done in {self.wide}. Got {x.dtype}.")
        return x if self.dtype in ("float64", "float32") else self.hold(x)

    def sum_of_products(self, a: NDArray, b: NDArray) -> NDArray:
        """(..., m, n) @ (..., n, k) -> (..., m, k), not stored."""
        if 0 in (*a.shape, *b.shape):
            return a @ b
        return ORDERS[self.order][0](a, b)

    def product(self, a: NDArray, b: NDArray) -> NDArray:
        """(..., m, n) @ (..., n, k) -> (..., m, k), stored."""
        return self.store(self.sum_of_products(a, b))

    def total(self, x: NDArray, axes: int | tuple[int, ...] = -1, *, keepdims: bool = False) -> NDArray:
        """The sum over some axes, not stored."""
        axes = (axes,) if isinstance(axes, int) else axes
        if not axes:
            return x
        axes = tuple(axis % x.ndim for axis in axes)
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        if x.size:
            rows = x.transpose(*kept, *axes).reshape(*(x.shape[axis] for axis in kept), -1)
            summed = ORDERS[self.order][1](rows)
        else:
            summed = x.sum(axis=axes)
        return np.expand_dims(summed, axes) if keepdims else summed


def tanh_by_expm1(x: NDArray) -> NDArray:
    """tanh(x) = (e^2x - 1) / (e^2x + 1), with the small ones as precise as the large ones; not stored."""
    grown = np.expm1(2 * np.minimum(np.abs(x), 30))  # beyond, tanh is 1 in every precision
    return np.copysign(grown / (grown + 2), x)


# Products (..., m, n) @ (..., n, k), and sums over the last axis ---------------------------------------


def _one_by_one(a: NDArray, b: NDArray) -> NDArray:
    """Multiply, round, add, round: no fused multiply-add, one accumulator per element."""
    found = a[..., :, :1] * b[..., :1, :]
    for i in range(1, a.shape[-1]):
        found = found + a[..., :, i : i + 1] * b[..., i : i + 1, :]
    return found


def _one_by_one_sum(x: NDArray) -> NDArray:
    return np.add.accumulate(x, axis=-1)[..., -1]


def _halves(a: NDArray, b: NDArray) -> NDArray:
    """Pairwise summation: half plus half."""
    n = a.shape[-1]
    if n <= 2:
        return _one_by_one(a, b)
    return _halves(a[..., : n // 2], b[..., : n // 2, :]) + _halves(a[..., n // 2 :], b[..., n // 2 :, :])


def _halves_sum(x: NDArray) -> NDArray:
    n = x.shape[-1]
    return x[..., 0] if n == 1 else _halves_sum(x[..., : n // 2]) + _halves_sum(x[..., n // 2 :])


def _blocks(a: NDArray, b: NDArray) -> NDArray:
    """Blocks of terms, the last one first."""
    starts = range(0, a.shape[-1], BLOCK)
    parts = [a[..., i : i + BLOCK] @ b[..., i : i + BLOCK, :] for i in starts]
    found = parts[-1]
    for part in reversed(parts[:-1]):
        found = found + part
    return found


def _signs(a: NDArray, b: NDArray) -> NDArray:
    """What is positive minus what is negative: the order with the largest cancellation there is."""
    a_up, a_down, b_up, b_down = (np.maximum(x, 0) for x in (a, -a, b, -b))
    return (a_up @ b_up + a_down @ b_down) - (a_up @ b_down + a_down @ b_up)


@lru_cache(maxsize=1024)
def _shuffle(n: int) -> NDArray:
    return np.random.default_rng(n).permutation(n)


def _in_float64(a: NDArray, b: NDArray) -> NDArray:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)


Product = Callable[[NDArray, NDArray], NDArray]
Sum = Callable[[NDArray], NDArray]

ORDERS: dict[str, tuple[Product, Sum]] = {
    "blas": (np.matmul, lambda x: x.sum(axis=-1)),
    "einsum": (
        lambda a, b: np.einsum("...mn,...nk->...mk", a, b),
        lambda x: np.einsum("...n->...", x),
    ),
    "transposed": (
        lambda a, b: (b.swapaxes(-1, -2) @ a.swapaxes(-1, -2)).swapaxes(-1, -2),
        lambda x: (np.ones((1, x.shape[-1]), x.dtype) @ x[..., None])[..., 0, 0],
    ),
    "sequential": (_one_by_one, _one_by_one_sum),
    "reversed": (
        lambda a, b: _one_by_one(a[..., ::-1], b[..., ::-1, :]),
        lambda x: _one_by_one_sum(x[..., ::-1]),
    ),
    "shuffled": (
        lambda a, b: a[..., _shuffle(a.shape[-1])] @ b[..., _shuffle(a.shape[-1]), :],
        lambda x: _one_by_one_sum(x[..., _shuffle(x.shape[-1])]),
    ),
    "pairwise": (_halves, _halves_sum),
    "blocks": (_blocks, lambda x: _blocks(x[..., None, :], np.ones((x.shape[-1], 1), x.dtype))[..., 0, 0]),
    "signs": (_signs, lambda x: np.maximum(x, 0).sum(axis=-1) - np.maximum(-x, 0).sum(axis=-1)),
    "float64": (_in_float64, lambda x: x.sum(axis=-1, dtype=np.float64).astype(x.dtype)),
}
"""Name -> (matrix product, sum over the last axis), each in another order; the last rounds only once."""
