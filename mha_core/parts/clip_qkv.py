"""Clipped projections: no channel of a query, key or value goes beyond a limit c, behind the projection's bias.

The gradient passes where |x| <= c, the limit included, and is 0 beyond.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def clip(x: NDArray, limit: float | None) -> NDArray:
    """X with numbers beyond +-limit replaced by that; x itself without a limit. NaN stays.

    >>> clip(np.array([-3.0, 0.5, 2.0]), 2.0)
    array([-2. ,  0.5,  2. ])
    """
    return x if limit is None else np.where(x > limit, limit, np.where(x < -limit, -limit, x))


def clip_back(gradient: NDArray, x: NDArray, limit: float | None) -> NDArray:
    """The gradient of x, from that of `clip(x, limit)`.

    >>> clip_back(np.array([7.0, 8.0, 9.0]), np.array([-3.0, 0.5, 2.0]), 2.0)
    array([0., 8., 9.])
    """
    return gradient if limit is None else np.where(np.abs(x) > limit, 0.0, gradient)
