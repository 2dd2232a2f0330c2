"""Two arrays that should be the same numbers: how far apart they are, and how far rounding may have moved them.

The weights of two layers must be equal. Inputs of later layers may differ, because every framework rounds the
computation between two layers in its own order: see `Allowance`.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.bounded import LAMBDA
from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.judging.distance import Worst, distance, worst
from mha.recordings.origins import narrower, same_numbers
from mha.substitution.allowance import number

LOCAL = 16.0
"""Roundoffs by which the numbers between two attention layers may differ, relative to their root mean square: those
of a matrix product, an activation and a normalisation, as `docs/recordings.md` measures them, several times over."""

GROWTH = 4.0
"""How many times larger a relative difference may come out of what lies between two attention layers."""


@dataclass(frozen=True)
class Apart:
    """A difference of two arrays, relative to the first.

    Attributes:
        size: the root mean square of the first array.
        mean: the root mean square of the difference / `size`.
        worst: the element with the largest difference / (its absolute value + `size`).
    """

    size: float
    mean: float
    worst: Worst

    @property
    def words(self) -> str:
        """Return the largest difference and its index in words."""
        return f"by up to {number(self.worst.largest)} at {list(self.worst.index)}"


EQUAL = Apart(0.0, 0.0, Worst())
"""The distance of equal arrays."""


def apart(a: NDArray, b: NDArray, counts: NDArray | None = None) -> Apart:
    """Return the difference of two arrays where `counts` is True; infinite where only one of them is NaN."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not a.size:
        return EQUAL
    counts = np.broadcast_to(True if counts is None else counts, a.shape)
    with np.errstate(all="ignore"):
        finite = np.abs(a[counts & np.isfinite(a)])
        size = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
        far = np.where(counts, distance(a, b), 0.0)
        mean = float(np.sqrt(np.square(far).sum() / max(1, int(counts.sum()))))
        found = worst(a, b, np.where(np.isfinite(a), np.abs(a), 0.0) + size, counts)
    if mean > 0.0:
        mean = mean / size if size else np.inf
    return Apart(size, mean, found)


def least_slice(a: NDArray, b: NDArray, counts: NDArray | None = None) -> float:
    """Return the smallest rms of b - a over all slices x[i], x[:, i], ... and the whole array, where `counts` is True.

    >>> least_slice(np.zeros((2, 3)), np.array([[4.0, 4.0, 4.0], [0.0, 0.0, 0.0]]))
    0.0
    """
    here = np.broadcast_to(True if counts is None else counts, a.shape)
    with np.errstate(all="ignore"):
        far = np.where(here, np.square(a.astype(np.float64) - b), 0.0)
        found = [np.sqrt(far.sum() / here.sum())]
        for axis in range(a.ndim - 1):
            rest = tuple(other for other in range(a.ndim) if other != axis)
            found.append(np.nanmin(np.sqrt(far.sum(axis=rest) / here.sum(axis=rest))))
    return float(np.min(found))


@dataclass(frozen=True)
class Allowance:
    """A difference that is allowed between the inputs of two paired layers, relative to the inputs' size.

    The code between two attention layers is unknown, but it spreads rounding errors over all elements. So the inputs
    of the next layer may differ by a constant times `carried`, the root mean square of earlier differences.

    Attributes:
        dtype: the narrower of the two dtypes; arrays that are equal after rounding to it count as equal.
        unit: the sum of the unit roundoffs of both dtypes.
        carried: the largest relative difference (root mean square) of the earlier calls, in inputs and outputs.
    """

    dtype: str
    unit: float
    carried: float = 0.0

    @property
    def mean(self) -> float:
        """Return the largest allowed root mean square of the relative difference."""
        return LOCAL * self.unit + GROWTH * self.carried

    @property
    def worst(self) -> float:
        """Return the largest allowed relative difference of any one element."""
        return LAMBDA * self.mean

    def apart(self, a: NDArray, b: NDArray, counts: NDArray | None = None) -> Apart:
        """Return the difference of two arrays where `counts` is True; EQUAL (none) if they are equal in `dtype`."""
        return EQUAL if same_numbers(a, b, self.dtype) else apart(a, b, counts)

    def at_worst(self, a: NDArray, found: Apart) -> tuple[float, float]:
        """Return (difference at the worst element of `found`, difference that is allowed at this element of `a`)."""
        return found.worst.largest, float(self.worst * (abs(float(a[found.worst.index])) + found.size))

    def words(self, found: Apart, whose: str) -> str:
        """Return in words the difference `found` and the allowed one. `whose`: "their" or "its", said before "size"."""
        return f"{found.words}; relative to {whose} size by {number(found.mean)}, where {number(self.mean)} is allowed"

    def ratio(self, found: Apart) -> float:
        """Return difference / allowed difference, for the mean or for the worst element: the larger of the two."""
        return max(found.mean / self.mean, found.worst.ratio / self.worst)

    @classmethod
    def between(cls, dtype: str, other: str, carried: float = 0.0) -> Self:
        """Return the allowance between calls in two dtypes."""
        return cls(narrower(dtype, other), UNIT_ROUNDOFF[dtype] + UNIT_ROUNDOFF[other], carried)
