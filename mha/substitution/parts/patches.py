"""Images and their patches: a convolution whose stride is its kernel is a product with a matrix."""

from collections.abc import Iterator
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from mha_core.dtypes import divisors

WORDS = "patches of"
"""How the words of these layouts begin."""


def patches(own: NDArray, theirs: NDArray) -> Iterator[tuple[NDArray, str]]:
    """Yield (the port's array in the original's shape, its layout in words), for an image and rows of its patches.

    Args:
        own: the original's array: an image, (B, C, H, W) or (B, H, W, C), or rows (..., C * h * w) of patches.
        theirs: the port's array: rows of patches if `own` is an image, and an image if `own` is rows.

    >>> image = np.arange(48.0).reshape(1, 3, 4, 4)
    >>> rows = image.reshape(1, 3, 2, 2, 2, 2).transpose(0, 2, 4, 1, 3, 5).reshape(1, 4, 12)
    >>> [words for array, words in patches(image, rows) if (array == image).all()]
    ['patches of 2 x 2 as (c, h, w)']
    """
    both = (own, theirs)
    if own.size != theirs.size or own.dtype.kind != "f" or theirs.dtype.kind != "f" or 0 in own.shape:
        return
    if (own.ndim == 4) == (theirs.ndim == 4) or min(own.ndim, theirs.ndim) < 2:
        return
    image, rows = both if own.ndim == 4 else both[::-1]
    for channel in (1, 3):
        first = np.moveaxis(image, channel, 1)
        batch, channels, height, width = first.shape
        area = rows.shape[-1] // channels
        if rows.shape[-1] % channels or area < 2:
            continue
        for high in sorted(divisors(height), key=lambda one: abs(one * one - area)):
            wide = area // high
            if high * wide != area or width % wide:
                continue
            grid = (batch, channels, height // high, high, width // wide, wide)
            for order in permutations(range(3)):
                axes = (0, 2, 4, *((1, 3, 5)[one] for one in order))
                words = f"{WORDS} {high} x {wide} as ({', '.join('chw'[one] for one in order)})"
                words += ", last axis second" if channel == 3 else ""
                if own is image:
                    split = rows.reshape([grid[axis] for axis in axes])
                    whole = split.transpose(np.argsort(axes)).reshape(first.shape)
                    yield np.moveaxis(whole, 1, channel), words
                else:
                    yield first.reshape(grid).transpose(axes).reshape(rows.shape), words
