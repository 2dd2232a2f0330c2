"""Descent: least squares, and Gauss and Newton's method for groups of unknowns without common equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

STEPS = 16
"""Most steps of Gauss and Newton."""

RANK = 1e-7
"""Singular values below this part of the largest count as 0."""

CLOSE = 1e-13
"""Of the numbers that are wanted, what may be left when no further step is made."""

AGAIN = 0.03
"""While a step leaves less than this of what was left, the next one takes the same slopes."""


class Descent(NamedTuple):
    """The unknowns (G, U), what is left of each equation (G, E), and which unknowns are told (G, U)."""

    found: NDArray
    left: NDArray
    told: NDArray[np.bool_]


def descended(made: Callable[[NDArray], NDArray], start: NDArray, wanted: NDArray, fixed: NDArray) -> Descent | None:
    """Return the unknowns with which equations give what is wanted; None if they don't come closer.

    Args:
        made: unknowns (n, G, U) -> what each of n choices gives, (n, G, E). Group g of them depends on group g alone.
        start: (G, U).
        wanted: (G, E).
        fixed: (k, U): sums of a group's unknowns that stay as they are.
    """
    groups, unknowns = start.shape
    width = 1e-6 * max(1e-3, float(np.abs(start).max(initial=0.0)))
    norm = np.linalg.norm(wanted)
    here, inverse = start, None
    off = wanted - made(here[None])[0]
    size = np.linalg.norm(off)
    told = np.zeros(start.shape, bool)
    for step in range(STEPS):
        if inverse is None:
            units = here + width * np.eye(unknowns)[:, None, :]
            slopes = np.moveaxis(made(units) - (wanted - off), 0, -1) / width  # (G, E, U)
            if not np.isfinite(slopes).all():
                return None
            held = np.broadcast_to(fixed * np.abs(slopes).max(initial=0.0), (groups, *fixed.shape))
            left, sizes, right = np.linalg.svd(np.concatenate([slopes, held], axis=1), full_matrices=False)
            seen = sizes > RANK * sizes[:, :1]
            told = (np.where(seen[..., None], right, 0.0) ** 2).sum(axis=1) > 1.0 - 1e-9
            scaled = np.where(seen, 1.0 / np.where(seen, sizes, 1.0), 0.0)[..., None] * right
            inverse = scaled.swapaxes(1, 2) @ left.swapaxes(1, 2)  # (G, U, E + k)
        forward = (inverse[..., : off.shape[1]] @ off[..., None])[..., 0]
        for shorter in (1.0, 0.3, 0.1):
            after = here + shorter * forward
            rest = wanted - made(after[None])[0]
            if np.linalg.norm(rest) < size:
                break
        else:
            break
        before, size = size, np.linalg.norm(rest)
        here, off = after, rest
        if not np.isfinite(size) or (step > 3 and size > 0.5 * before and size > 1e-6 * norm):
            return None
        if size <= CLOSE * norm:
            break
        if size > AGAIN * before:
            inverse = None
    return Descent(here, off, told)


def sums(shape: tuple[int, ...], axis: int | None) -> NDArray:
    """Return (k, elements): what each sum along an axis is made of; no rows without an axis."""
    size = int(np.prod(shape))
    if axis is None:
        return np.zeros((0, size))
    return np.eye(size).reshape(size, *shape).sum(axis=axis).reshape(size, -1).T
