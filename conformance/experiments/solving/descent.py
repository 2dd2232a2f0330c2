"""Descent: Gauss and Newton's method for an array of unknowns, and which of them the equations tell."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

STEPS = 12
"""Most steps of Gauss and Newton."""

RANK = 1e-7
"""Singular values below this part of the largest count as 0."""


def sums(shape: tuple[int, ...], gauge: int | None) -> NDArray:
    """(k, elements): what each sum along an axis is made of; no rows without an axis."""
    size = int(np.prod(shape))
    if gauge is None:
        return np.zeros((0, size))
    return np.eye(size).reshape(size, *shape).sum(axis=gauge).reshape(size, -1).T


def descended(
    outputs: Callable[[NDArray], NDArray], array: NDArray, wanted: NDArray, fixed: NDArray
) -> tuple[NDArray, float, NDArray] | None:
    """(the array, the largest difference that is left, the outputs' slopes there); None if they don't come closer."""
    width = 1e-6 * max(1e-3, float(np.abs(array).max(initial=0.0)))
    units = width * np.eye(array.size).reshape(-1, *array.shape)

    def slopes_at(array: NDArray) -> tuple[NDArray, NDArray]:
        made = outputs(np.concatenate([array[None], array + units]))
        slopes = (made[1:] - made[0]).T / width
        return wanted - made[0], np.concatenate([slopes, fixed * np.abs(slopes).max(initial=0.0)])

    off, slopes = slopes_at(array)
    size = np.linalg.norm(off)
    for step in range(STEPS):
        if not np.isfinite(slopes).all() or not np.isfinite(size):
            return None
        forward = np.linalg.lstsq(slopes, np.concatenate([off, np.zeros(len(fixed))]), rcond=RANK)[0]
        for shorter in (1.0, 0.3, 0.1):
            after = array + shorter * forward.reshape(array.shape)
            left = np.linalg.norm(wanted - outputs(after[None])[0])
            if left < size:
                break
        else:
            break
        if step > 3 and left > 0.5 * size and left > 1e-6 * np.linalg.norm(wanted):
            return None
        array, size = after, left
        off, slopes = slopes_at(array)
        if size <= 1e-14 * np.linalg.norm(wanted):
            break
    return array, float(np.abs(off).max(initial=0.0)), slopes


def told(slopes: NDArray) -> NDArray[np.bool_]:
    """Which elements the outputs tell: those that no combination without effect contains."""
    _, sizes, directions = np.linalg.svd(slopes, full_matrices=True)
    rank = int((sizes > RANK * sizes[0]).sum()) if len(sizes) and sizes[0] > 0.0 else 0
    return np.asarray(np.abs(directions[rank:]).max(axis=0, initial=0.0) < 1e-6)
