"""Masks that two models write differently: as allowed keys, or as numbers to be added."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EXCLUDED = -1e3
"""A number that is added to scores excludes a key if it is below this."""


def allowed_in(mask: NDArray) -> NDArray | None:
    """The allowed keys (B, 1 or H, 1 or Lq, Lk) of a mask; None for an array that is none.

    >>> allowed_in(np.array([[0.0, -3e38]])).tolist(), allowed_in(np.array([[1, 0]])).tolist()
    ([[[[True, False]]]], [[[[True, False]]]])
    """
    if not 2 <= mask.ndim <= 4:
        return None
    if mask.dtype.kind == "f":
        excluding = mask < EXCLUDED
        if not (excluding | (mask == 0.0)).all() and not np.isin(mask, (0.0, 1.0)).all():
            return None
        allowed = ~excluding if excluding.any() or (mask == 0.0).all() else mask != 0.0
    elif mask.dtype.kind == "b" or np.isin(mask, (0, 1)).all():
        allowed = mask.astype(bool)
    else:
        return None
    return np.expand_dims(allowed, {2: (1, 2), 3: (1,), 4: ()}[mask.ndim])


def translated(port: NDArray, original: NDArray) -> tuple[NDArray, int] | None:
    """The port's mask as the original writes masks, and how many entries differ; None if one of them is no mask.

    A mask that is True where keys are excluded is taken for one if it is the exact opposite of the original's.
    """
    theirs, own = allowed_in(port), allowed_in(original)
    if theirs is None or own is None:
        return None
    try:
        shape = np.broadcast_shapes(theirs.shape, own.shape)
    except ValueError:
        return None
    theirs, own = np.broadcast_to(theirs, shape), np.broadcast_to(own, shape)
    if (theirs == ~own).all():
        theirs = own
    different = int((theirs != own).sum())
    if not different:
        return original, 0
    if original.dtype.kind == "f":
        lowest = original.min() if (original < EXCLUDED).any() else np.finfo(original.dtype).min
        return np.where(theirs, original.dtype.type(0), lowest).astype(original.dtype), different
    return theirs.astype(original.dtype), different
