"""Least squares and inverses of what was measured, which may hold NaN or infinity.

LAPACK prints "On entry to DLASCL parameter number 4 had an illegal value" where it is asked for the singular values of
an array that is not finite. Here it is not asked; what comes of such an array is what NumPy gives.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def least_squares(a: NDArray, b: NDArray, rcond: float | None = None) -> tuple[NDArray, int]:
    """The x with the smallest |a x - b|, and the rank of a: `numpy.linalg.lstsq`; x is NaN where b is not finite.

    Args:
        a: (M, N). b: (M,) or (M, K).
        rcond: singular values below this part of the largest count as 0. Default: NumPy's.

    Raises:
        numpy.linalg.LinAlgError: a is not finite.

    >>> least_squares(np.array([[2.0], [0.0]]), np.array([6.0, 1.0]))
    (array([3.]), 1)
    """
    if not np.isfinite(a).all():
        raise np.linalg.LinAlgError("least squares of numbers that are not finite")
    bad = ~np.isfinite(b)
    found, _, rank, _ = np.linalg.lstsq(a, np.where(bad, 0.0, b), rcond=rcond)
    return np.where(bad.any(axis=0), np.nan, found), int(rank)
