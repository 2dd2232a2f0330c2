"""Which array of a port's call is which of the original's, and in which order of axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.values import Place


@dataclass(frozen=True, eq=False)
class Matched:
    """An array of the original and the port's that stands for it.

    Attributes:
        original, port: their places.
        array: the port's, in the original's order of axes.
        layout: "" for the same shape; else what was done to it, in words.
    """

    original: Place
    port: Place
    array: NDArray
    layout: str


def match(originals: Mapping[Place, NDArray], ports: Mapping[Place, NDArray]) -> list[Matched]:
    """Pair arrays: those of equal names first, then those whose numbers are nearest, if their shapes allow it.

    Where the original has the same numbers at several places, one array of the port's stands for all of them.

    >>> own = {("hidden",): np.arange(6.0).reshape(1, 3, 2), ("mask",): np.ones((1, 3))}
    >>> [(one.original, one.port, one.layout) for one in match(own, {("x",): np.arange(6.0).reshape(3, 1, 2)})]
    [(('hidden',), ('x',), 'first two axes exchanged')]
    """
    same = {place: _first_equal(originals, place) for place in originals}
    found = _matched({place: array for place, array in originals.items() if same[place] == place}, ports)
    first = {one.original: one for one in found}
    again = ((place, first.get(other)) for place, other in same.items() if place != other)
    return [*found, *(replace(one, original=place) for place, one in again if one is not None)]


def _first_equal(arrays: Mapping[Place, NDArray], place: Place) -> Place:
    """The first place where the same numbers stand, such as the queries for keys in self-attention."""
    own = arrays[place]
    alike = (other for other, array in arrays.items() if array.dtype.kind == "f" and np.array_equal(array, own))
    return next(alike, place) if own.size and own.dtype.kind == "f" and np.ptp(own) > 0 else place


def _matched(originals: Mapping[Place, NDArray], ports: Mapping[Place, NDArray]) -> list[Matched]:
    found: list[Matched] = []
    for exact in (True, False):
        choices: list[tuple[float, int, Matched]] = []
        for original, own in originals.items():
            for port, theirs in ports.items():
                if exact and original[-1:] != port[-1:]:
                    continue
                for array, layout in _layouts(own, theirs):
                    choices.append((_distance(own, array), len(choices), Matched(original, port, array, layout)))
        taken = {one.original for one in found}, {one.port for one in found}
        for _, _, one in sorted(choices, key=lambda choice: choice[:2]):
            if one.original not in taken[0] and one.port not in taken[1]:
                found.append(one)
                taken[0].add(one.original)
                taken[1].add(one.port)
    return found


def _layouts(own: NDArray, theirs: NDArray) -> Iterator[tuple[NDArray, str]]:
    """The port's array in the original's shape, in each way that may be meant."""
    if own.dtype.kind in "iu" and theirs.dtype.kind == "f" and (theirs == np.rint(theirs)).all():
        theirs = theirs.astype(own.dtype)  # indices, which MXNet's functions give as whole floating-point numbers
    if (own.dtype.kind == "f") != (theirs.dtype.kind == "f"):
        return
    if own.shape == theirs.shape:
        yield theirs, ""
        return
    if own.dtype.kind == "b" or own.size != theirs.size or not own.size:
        return
    if theirs.ndim == own.ndim >= 2 and theirs.swapaxes(0, 1).shape == own.shape:
        yield theirs.swapaxes(0, 1), "first two axes exchanged"
    elif theirs.ndim == own.ndim == 4 and theirs.swapaxes(1, 2).shape == own.shape:
        yield theirs.swapaxes(1, 2), "middle axes exchanged"
    elif own.shape[-1:] == theirs.shape[-1:] or 1 in own.shape + theirs.shape:
        yield theirs.reshape(own.shape), f"reshaped from {theirs.shape}"


def laid_out(one: Matched, own: NDArray, theirs: NDArray) -> NDArray:
    """Another array of the port's shape in the order of axes of `own`, as a matched one was read."""
    return next(array for array, layout in _layouts(own, theirs) if layout == one.layout)


def _distance(own: NDArray, theirs: NDArray) -> float:
    """How far apart two arrays are, as a fraction of the first."""
    with np.errstate(all="ignore"):
        one, other = (np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0) for array in (own, theirs))
        return float(np.sqrt(np.mean((one - other) ** 2)) / (np.sqrt(np.mean(one**2)) + 1e-30))
