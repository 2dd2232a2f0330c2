"""Arithmetic of a given precision in NumPy, with the order of every sum chosen by name.

Numbers are held in the accumulator's dtype ("wide": float64 for float64, float32 for the other three) and rounded to
the storage dtype by `store` after every operation. A product of two float16 or bfloat16 numbers is exact in float32, so
a matrix product in `wide` is one with float32 accumulators.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mha_core.dtypes import round_to

BLOCK = 5
"""Terms of one block of the order "blocks": no power of two, so that blocks never fall onto vector lanes."""


@dataclass(frozen=True)
class Arithmetic:
    """Sums and products in one storage dtype and one of ORDERS."""

    dtype: str
    order: str = "blas"

    @property
    def wide(self):
        return np.dtype("float64" if self.dtype == "float64" else "float32")

    def hold(self, array):
        """Numbers rounded to the storage dtype, held in `wide`."""
        return round_to(np.asarray(array), self.dtype).astype(self.wide, copy=False)

    def store(self, x):
        assert x.dtype == self.wide, f"arithmetic in {self.dtype} must be done in {self.wide}. Got {x.dtype}."
        return x if self.dtype in ("float64", "float32") else self.hold(x)

    def sum_of_products(self, a, b):
        """(..., m, n) @ (..., n, k) -> (..., m, k), not stored."""
        return a @ b if 0 in (*a.shape, *b.shape) else ORDERS[self.order](a, b)

    def product(self, a, b):
        return self.store(self.sum_of_products(a, b))

    def total(self, x, axes=-1, *, keepdims=False):
        """The sum over some axes, not stored."""
        axes = (axes,) if isinstance(axes, int) else axes
        if not axes:
            return x
        axes = tuple(axis % x.ndim for axis in axes)
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        rows = x.transpose(*kept, *axes).reshape(*(x.shape[axis] for axis in kept), -1 if x.size else 0)
        summed = self.sum_of_products(rows[..., None, :], np.ones((rows.shape[-1], 1), x.dtype))[..., 0, 0]
        return np.expand_dims(summed, axes) if keepdims else summed


def one_by_one(a, b):
    """Multiply, round, add, round: no fused multiply-add, one accumulator per element."""
    found = a[..., :, :1] * b[..., :1, :]
    for i in range(1, a.shape[-1]):
        found = found + a[..., :, i : i + 1] * b[..., i : i + 1, :]
    return found


def halves(a, b):
    """Pairwise summation: half plus half."""
    n = a.shape[-1]
    if n <= 2:
        return one_by_one(a, b)
    return halves(a[..., : n // 2], b[..., : n // 2, :]) + halves(a[..., n // 2 :], b[..., n // 2 :, :])


def blocks(a, b):
    """Blocks of terms, the last one first."""
    parts = [a[..., i : i + BLOCK] @ b[..., i : i + BLOCK, :] for i in range(0, a.shape[-1], BLOCK)]
    found = parts[-1]
    for part in reversed(parts[:-1]):
        found = found + part
    return found


def signs(a, b):
    """What is positive minus what is negative: the order with the largest cancellation there is."""
    a_up, a_down, b_up, b_down = (np.maximum(x, 0) for x in (a, -a, b, -b))
    return (a_up @ b_up + a_down @ b_down) - (a_up @ b_down + a_down @ b_up)


@lru_cache(maxsize=1024)
def shuffle(n):
    return np.random.default_rng(n).permutation(n)


ORDERS = {
    "blas": np.matmul,
    "one by one": one_by_one,
    "reversed": lambda a, b: one_by_one(a[..., ::-1], b[..., ::-1, :]),
    "shuffled": lambda a, b: a[..., shuffle(a.shape[-1])] @ b[..., shuffle(a.shape[-1]), :],
    "pairwise": halves,
    "blocks": blocks,
    "signs": signs,
    "in float64": lambda a, b: (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype),
}
"""Name -> matrix product (..., m, n) @ (..., n, k) with its sums in this order; the last rounds only once."""
