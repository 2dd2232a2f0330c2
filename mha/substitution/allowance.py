"""How far a module of a port may be from its original's in float64: 8 times what the original's own rounding does.

Where the module computes something known, each number must lie within a derived bound as well (derived.py).

The rounding is measured on the module's own inputs: the original's module in the port's dtype; the same with the batch
in another order; and in float64 with each input moved by half a unit in the last place of that dtype.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.judging.distance import distance
from mha.recordings.modules.values import Place

FACTOR = 8.0
"""How many times the measured rounding is allowed by root mean squares; of the largest elements, which vary more,
twice as many. docs/where.md has how far right modules go."""

BLURRED = 2.0**12
"""A module whose own rounding moves what it gives by more than so many units in the last place can't be judged."""


@dataclass(frozen=True)
class Judged:
    """A comparison of one output array of a port with the same array of the original.

    Attributes:
        ratio: the port's error / the original's rounding error, measured in several runs; up to 8 is allowed. It is the
            larger of rms / rms and max / max / 2 over all elements. If `bound` > 1, `ratio` is at least 8 * `bound`.
        worst: the index of the element with the largest error.
        got, expected: the port's and the original's number at this index.
        error: the largest error.
        rounding: rms(measured rounding error) / rms(the original's array).
        bound: the largest error / bound of an element, with bounds derived from the module's formula; None without any.
    """

    ratio: float
    worst: tuple[int, ...]
    got: float
    expected: float
    error: float
    rounding: float
    bound: float | None = None

    @property
    def equal(self) -> bool:
        """Return whether the array is within its allowance."""
        return self.ratio <= FACTOR

    @property
    def moved(self) -> str:
        """Return in words by how much rounding alone changes the array."""
        return "more than its size" if self.rounding >= 1.0 else f"{100 * self.rounding:.2g} % of its size"

    def blurred(self, dtype: str) -> bool:
        """Return whether the rounding errors, for the port's `dtype`, are so large that they could hide a mistake."""
        return self.rounding > min(BLURRED * UNIT_ROUNDOFF[dtype], 0.25)


def number(ratio: float) -> str:
    """Return a ratio in a few digits."""
    return f"{ratio:.2g}" if ratio < 1e4 else f"{ratio:.1e}"


def times_rounding(ratio: float) -> str:
    """Return `ratio`, an error / measured rounding error, in words.

    >>> times_rounding(30.0), times_rounding(np.inf)
    ('30 times what rounding does', 'more than any rounding does')
    """
    return "more than any rounding does" if np.isinf(ratio) else f"{number(ratio)} times what rounding does"


def judge(
    got: NDArray,
    exact: NDArray,
    roundings: Sequence[NDArray],
    dtype: str,
    *,
    bound: NDArray | None = None,
    counted: NDArray | None = None,
) -> Judged:
    """Return a comparison (Judged) of a port's array with the original's array in float64.

    Args:
        got, exact: the port's array, and the original's in float64, of equal shapes.
        roundings: the original's array from several computations, whose rounding errors differ.
        dtype: the port's dtype.
        bound: the derived bound on the error of each element; None if there is none.
        counted: bool, True at the elements to compare. Default: all.

    >>> exact = np.array([1.0, 2.0])
    >>> judge(exact + [0.0, 1e-7], exact, [exact + 5e-8], "float32").equal
    True
    >>> judge(exact + [0.0, 1e-7], exact, [exact + 5e-8], "float32", bound=np.array([1e-8, 2e-8])).equal
    False
    """
    got, exact = got.astype(np.float64), exact.astype(np.float64)
    counted = np.ones((), bool) if counted is None else counted
    with np.errstate(all="ignore"):
        error = np.where(counted, distance(got, exact), 0.0)
        moved = [np.where(counted, _finite(distance(one, exact)), 0.0) for one in roundings]
        # What a mask fills in, say: its size says nothing of the rounding of others.
        filled = (error == 0.0) & (np.sum(moved, axis=0) == 0.0) if moved else np.zeros((), bool)
        size = np.where(counted & (~filled | filled.all()), np.abs(_finite(exact)), 0.0)
        ratios, relative = [], []
        for measure, weight in ((_rms, 1.0), (np.max, 0.5)):
            floor = UNIT_ROUNDOFF[dtype] * float(measure(size))
            rounding = max([floor, *(float(measure(one)) for one in moved)])
            wrong = float(measure(error))
            ratios.append(0.0 if wrong == 0.0 else weight * float(np.divide(wrong, rounding)))
            relative.append(UNIT_ROUNDOFF[dtype] * rounding / floor if floor else 0.0)
        over = error if bound is None else np.where(error == 0.0, 0.0, error / bound)
    beyond = None if bound is None else float(over.max())
    furthest = error
    if beyond is not None and beyond > 1.0:
        ratios.append(FACTOR * beyond)
        furthest = over
    worst = tuple(int(one) for one in np.unravel_index(int(np.argmax(furthest)), error.shape))
    return Judged(max(ratios), worst, float(got[worst]), float(exact[worst]), float(error[worst]), relative[0], beyond)


@dataclass(frozen=True)
class Runs:
    """An original module's outputs in several runs, as dicts of key path -> array.

    `exact`: in float64. `roundings`: from several runs with rounding errors. `bounds`: bounds on these errors.
    """

    exact: Mapping[Place, NDArray]
    roundings: Sequence[Mapping[Place, NDArray]]
    bounds: Mapping[Place, NDArray]
    dtype: str

    def judge(self, got: NDArray, place: Place, counted: NDArray | None = None) -> Judged:
        """Return a comparison of a port's array with `exact[place]`, limited to elements at which `counted` is True."""
        own = [each[place] for each in self.roundings if place in each]
        return judge(got, self.exact[place], own, self.dtype, bound=self.bounds.get(place), counted=counted)


def _finite(array: NDArray) -> NDArray:
    return np.where(np.isfinite(array), array, 0.0)


def _rms(array: NDArray) -> float:
    return float(np.sqrt(np.mean(np.square(array))))
