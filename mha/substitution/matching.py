"""Which array of a port's call is which of the original's, and in which order of axes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.values import Place
from mha.substitution.masks import EXCLUDED
from mha.substitution.parts.patches import WORDS, patches


@dataclass(frozen=True, eq=False)
class Matched:
    """A pair of arrays: one of the original, and the array in the port that corresponds to it.

    Attributes:
        original, port: the key paths of the two arrays.
        array: the port's array, in the original's shape.
        layout: in words, how the port's array was transposed or reshaped for that; "" if it was not.
    """

    original: Place
    port: Place
    array: NDArray
    layout: str


def match(originals: Mapping[Place, NDArray], ports: Mapping[Place, NDArray], *, tables: bool = False) -> list[Matched]:
    """Return pairs (Matched) of arrays of the original and of the port, found by equal key paths or nearest numbers.

    If the original has equal arrays at several key paths, one array of the port is paired with all of them. With
    `tables`, a table of positions is also paired with a smaller table, and an image with rows of its patches.

    >>> own = {("hidden",): np.arange(6.0).reshape(1, 3, 2), ("mask",): np.ones((1, 3))}
    >>> [(one.original, one.port, one.layout) for one in match(own, {("x",): np.arange(6.0).reshape(3, 1, 2)})]
    [(('hidden',), ('x',), 'first two axes exchanged')]
    """
    same = {place: _first_equal(originals, place) for place in originals}
    single = {place: array for place, array in originals.items() if same[place] == place or place in ports}
    found = _matched(single, ports, _layouts)
    for layouts in (_tables, patches) if tables else ():
        taken = {one.original for one in found}, {one.port for one in found}
        own, theirs = (
            {place: array for place, array in side.items() if place not in known}
            for side, known in zip((single, ports), taken, strict=True)
        )
        found += _matched(own, theirs, layouts)
    first = {one.original: one for one in found}
    again = ((place, first.get(other)) for place, other in same.items() if place != other and place not in first)
    return [*found, *(replace(one, original=place) for place, one in again if one is not None)]


def given_apart(
    originals: Mapping[Place, NDArray], ports: Mapping[Place, NDArray], found: Sequence[Matched]
) -> list[Matched]:
    """Return further pairs (Matched) for arrays that the original uses twice, where the port uses two arrays.

    In the example, the original's query and value are both `x`, the port's are `x` and `2 * x`. `found`: from `match`.

    >>> x = np.arange(6.0).reshape(1, 3, 2)
    >>> own, theirs = {("query",): x, ("value",): x}, {("x",): x, ("memory",): 2 * x}
    >>> [(one.original, one.port) for one in given_apart(own, theirs, match(own, theirs))]
    [(('value',), ('memory',))]
    """
    taken = {one.port for one in found}
    same = {place: _first_equal(originals, place) for place in originals}
    again = {place: array for place, array in originals.items() if same[place] != place}
    shared = {one.original for one in found for other in found if one is not other and one.port == other.port}
    left = {place: array for place, array in ports.items() if place not in taken and array.dtype.kind == "f"}
    return _matched({place: array for place, array in again.items() if place in shared}, left, _layouts)


def otherwise(
    originals: Mapping[Place, NDArray], ports: Mapping[Place, NDArray], found: Sequence[Matched]
) -> Iterator[dict[Place, NDArray]]:
    """Yield {original's key path: port's array} with image patches in each possible layout, except that in `found`."""
    for one in found:
        if np.array_equal(one.array, originals[one.original]):
            continue
        for array, layout in patches(originals[one.original], ports[one.port]) if one.layout.startswith(WORDS) else ():
            if layout != one.layout:
                yield {one.original: array}


def _first_equal(arrays: Mapping[Place, NDArray], place: Place) -> Place:
    """The first place where the same numbers stand, such as the queries for keys in self-attention."""
    own = arrays[place]
    alike = (other for other, array in arrays.items() if array.dtype.kind == "f" and np.array_equal(array, own))
    return next(alike, place) if own.size and own.dtype.kind == "f" and np.ptp(own) > 0 else place


Layouts = Callable[[NDArray, NDArray], Iterator[tuple[NDArray, str]]]


def _matched(originals: Mapping[Place, NDArray], ports: Mapping[Place, NDArray], layouts: Layouts) -> list[Matched]:
    found: list[Matched] = []
    for length in (None, 1, 0):  # the whole name, its last part, any
        choices: list[tuple[float, int, Matched]] = []
        for original, own in originals.items():
            for port, theirs in ports.items():
                if (length is None and original != port) or (length == 1 and original[-1:] != port[-1:]):
                    continue
                if _is_added_mask(theirs) and not _is_added_mask(own) and own.any():
                    continue  # whatever its shape
                for array, layout in layouts(own, theirs):
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
    moved = {"": theirs}
    if theirs.ndim >= 2:
        moved["first two axes exchanged"] = theirs.swapaxes(0, 1)
    if theirs.ndim == 4:
        moved["middle axes exchanged"] = theirs.swapaxes(1, 2)
    if theirs.ndim >= 3:  # what images and convolutions have as (B, H, W, C) or (B, C, H, W)
        moved |= {"last axis second": np.moveaxis(theirs, -1, 1), "second axis last": np.moveaxis(theirs, 1, -1)}
    same = [(array, words) for words, array in moved.items() if array.shape == own.shape]
    yield from same
    for words in () if same else ("", "last axis second", "second axis last"):
        if words in moved and _same_but_for_joined_axes(own.shape, moved[words].shape):
            before = f"{words}, " if words else ""
            yield moved[words].reshape(own.shape), f"{before}reshaped from {moved[words].shape}"


TABLES = ("as for one item", "each half again", "each number twice")
"""How a port may have the numbers of a table of positions."""


def _tables(own: NDArray, theirs: NDArray) -> Iterator[tuple[NDArray, str]]:
    """Cosines and sines of positions in the original's shape: a port may have each angle once, and no batch.

    >>> own = np.array([[[1.0, 2.0, 1.0, 2.0]]] * 3)
    >>> [words for array, words in _tables(own, own[0, :, :2]) if (array == own).all()]
    ['each half again']
    """
    if own.dtype.kind != "f" or theirs.dtype.kind != "f" or not 2 <= theirs.ndim <= own.ndim:
        return
    forms = {TABLES[0]: theirs}
    if 2 * theirs.shape[-1] == own.shape[-1]:
        forms = {
            TABLES[1]: np.concatenate([theirs, theirs], axis=-1),
            TABLES[2]: np.repeat(theirs, 2, axis=-1),
        }
    for words, array in forms.items():
        shape = (1,) * (own.ndim - array.ndim) + array.shape
        if all(one in (1, other) for one, other in zip(shape, own.shape, strict=True)):
            axes = tuple(axis for axis, one in enumerate(shape) if one != own.shape[axis])
            if (own == own.max(axis=axes, keepdims=True)).all():  # the original has the same numbers along these
                yield np.broadcast_to(array, own.shape), words


def _is_added_mask(array: NDArray) -> bool:
    """Whether it is 0 for some keys and excludes the others, as a mask that is added does."""
    return (
        array.dtype.kind == "f"
        and bool(array.size)
        and array.min() < EXCLUDED
        and set(np.unique(array)) <= {0.0, array.min()}
    )


def _same_but_for_joined_axes(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether one of two shapes of as many elements is the other with neighbouring axes joined.

    >>> _same_but_for_joined_axes((2, 5, 12), (2, 5, 4, 3)), _same_but_for_joined_axes((2, 5, 12), (5, 8, 3))
    (True, False)
    """
    fewer, more = sorted((set(np.cumprod(one).tolist()), set(np.cumprod(other).tolist())), key=len)
    return fewer <= more


def laid_out(one: Matched, own: NDArray, theirs: NDArray) -> NDArray:
    """Return the port's array `theirs` in the layout of the original's array `own`.

    `one`: a pair of arrays with the shapes of `own` and `theirs`. Its `layout` says how to transpose or reshape.
    """
    each = chain(_layouts(own, theirs), patches(own, theirs))
    return next(array for array, layout in each if layout == one.layout)


def _distance(own: NDArray, theirs: NDArray) -> float:
    """How far apart two arrays are, as a fraction of the first."""
    with np.errstate(all="ignore"):
        one, other = (np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0) for array in (own, theirs))
        return float(np.sqrt(np.mean((one - other) ** 2)) / (np.sqrt(np.mean(one**2)) + 1e-30))
