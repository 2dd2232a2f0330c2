"""A small array as a picture: inline SVG of a few paths, in colours of the site's style sheet."""

from __future__ import annotations

from html import escape

import numpy as np
from numpy.typing import NDArray

LEVELS = 4
"""Shades of each sign."""

CELL = 7
"""Pixels of one number."""


def picture(array: NDArray, name: str) -> str:
    """The first item of a batch, (B, L, D) or (B, H, L, D): its heads side by side, each number a square.

    Blue is negative, orange positive, the strongest shade the largest size; -inf is empty with a cross.
    """
    blocks = array[0] if array.ndim == 4 else array[:1]
    numbers = blocks.astype(float)
    finite = numbers[np.isfinite(numbers)]
    largest = float(np.abs(finite).max(initial=0.0)) or 1.0
    count, height, width = blocks.shape
    paths: dict[str, list[str]] = {}
    for (block, y, x), value in np.ndenumerate(numbers):
        left = block * (width + 1) + x
        if np.isfinite(value):
            level = round(LEVELS * value / largest)
            paths.setdefault(f"{'n' if level < 0 else 'p'}{abs(level)}", []).append(f"M{left} {y}h1v1h-1z")
        else:
            paths.setdefault("x", []).append(f"M{left + 0.2:.1f} {y + 0.2:.1f}l.6 .6m0-.6l-.6 .6")
    across = count * (width + 1) - 1
    label = escape(said(blocks, name))
    return (
        f'<svg class="map" role="img" aria-label="{label}" viewBox="0 0 {across} {height}" '
        f'width="{across * CELL}" height="{height * CELL}"><title>{label}</title>'
        + "".join(f'<path class="{level}" d="{"".join(cells)}"/>' for level, cells in sorted(paths.items()))
        + "</svg>"
    )


def said(blocks: NDArray, name: str) -> str:
    """What a picture shows, in words.

    >>> said(np.array([[[0.5, -np.inf]]]), "masked")
    'masked of the first item: 1 x 2 numbers from 0.5 to 0.5, and 1 of -infinity'
    """
    count, height, width = blocks.shape
    heads = f"{count} heads of " if count > 1 else ""
    if blocks.dtype == bool:
        return f"{name} of the first item: {heads}{height} x {width} truth values, {int(blocks.sum())} of them true"
    finite = blocks[np.isfinite(blocks)]
    words = f"{name} of the first item: {heads}{height} x {width} numbers from {finite.min():.2g} to {finite.max():.2g}"
    return words + (f", and {blocks.size - finite.size} of -infinity" if finite.size < blocks.size else "")
