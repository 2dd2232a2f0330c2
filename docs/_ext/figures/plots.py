"""Lesson -> its figure."""

from collections.abc import Callable

import matplotlib as mpl

from _ext.figures import curves, diagrams, matrices
from _ext.figures.base import STYLE, Arrays

PLOTS: dict[str, Callable[[Arrays], str]] = {
    "kernel": curves.kernel,
    "angle": curves.angle,
    "scaling": curves.scaling,
    "softmax": curves.softmax,
    "masks": matrices.masks,
    "projections": matrices.projections,
    "heads": diagrams.heads,
    "layer": diagrams.layer,
    "positions": curves.positions,
    "block": diagrams.block,
    "own": matrices.own,
}


def plot(lesson: str, arrays: Arrays) -> str:
    """HTML of a lesson's figure and table."""
    with mpl.rc_context(STYLE):
        return PLOTS[lesson](arrays)
