"""What may be done to the array of any step: a mean or sum over an axis, a part, rounding, its signs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.backward.formula import (
    Formula,
)
from conformance.zoo.bug import DoesNotApply
from mha_core.dtypes import round_to
from mha_core.reference.state import State

DTYPES = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}


def of_any(step: str, axes: int) -> Iterator[Formula]:
    """What can be done to any array: by axis a mean, a sum, a part; rounding; its signs."""
    names = {4: ("item", "head", "position", "last"), 3: ("item", "position", "channel")}.get(axes, ())
    for place, axis in enumerate(names):
        yield _formula(step, axes, f"mean-over-{axis}", f"its mean over the {axis} axis", _mean(place - axes))
        yield _formula(
            step, axes, f"sum-of-{axis}", f"its sums up to each place of the {axis} axis", _running(place - axes)
        )
        for slug, words, part in PARTS:
            yield _formula(step, axes, f"{slug}-of-{axis}", words.format(axis), _part(place - axes, part))
    for dtype in DTYPES:
        yield _formula(step, axes, dtype, f"rounded to {dtype}", partial(_rounded, dtype=dtype))
    yield _formula(step, axes, "signs", "its signs", np.sign)
    yield _formula(step, axes, "abs", "without its signs", np.abs)
    yield _formula(step, axes, "norm-1", "divided by its norm", lambda x: x / np.sqrt(np.square(x).sum()))
    if axes == 4:
        yield _formula(step, axes, "transposed", "with its last two axes exchanged", _swapped)


def _formula(step: str, axes: int, slug: str, words: str, change: Callable[[NDArray], NDArray]) -> Formula:
    def array(state: State) -> NDArray:
        given = state[step]
        if given is None or given.ndim != axes:
            raise DoesNotApply(f"{step} has not {axes} axes")
        return change(given)

    return Formula(step, slug, words if words.startswith("its") else f"the same {words}", array)


def _mean(axis: int) -> Callable[[NDArray], NDArray]:
    return lambda x: np.broadcast_to(x.mean(axis=axis, keepdims=True), x.shape) if x.size else x


def _running(axis: int) -> Callable[[NDArray], NDArray]:
    return lambda x: np.cumsum(x, axis=axis)


def _rounded(x: NDArray, dtype: str) -> NDArray:
    return round_to(x, dtype).astype(np.float64)


def _swapped(x: NDArray) -> NDArray:
    if x.shape[-1] != x.shape[-2]:
        raise DoesNotApply("not square")
    return x.swapaxes(-1, -2)


PARTS: tuple[tuple[str, str, slice], ...] = (
    ("first", "at the first place of the {} axis alone", slice(0, 1)),
    ("last", "at the last place of the {} axis alone", slice(-1, None)),
    ("second", "at the second place of the {} axis alone", slice(1, 2)),
    ("even", "at even places of the {} axis alone", slice(None, None, 2)),
)


def _part(axis: int, part: slice) -> Callable[[NDArray], NDArray]:
    def change(x: NDArray) -> NDArray:
        found = np.zeros_like(x)
        at: tuple[Any, ...] = (Ellipsis, part, *(slice(None),) * (-axis - 1))
        found[at] = x[at]
        return found

    return change
