"""Shapes: axes exchanged, arrays cut into axes in another order, and one axis read by the index of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.zoo.bug import DoesNotApply

Order2 = Callable[[NDArray, NDArray, int], NDArray]
"""(index of the axis, index of the other, the axis' length) -> the index that is read."""

BY_ANOTHER: dict[str, tuple[str, Order2]] = {
    "own": ("read at the {b} index", lambda i, other, n: other + 0 * i),
    "rolled": ("rolled by the {b} index", lambda i, other, n: i - other),
    "rolled-back": ("rolled back by the {b} index", lambda i, other, n: i + other),
    "rolled-next": ("rolled by the {b} index + 1", lambda i, other, n: i - other - 1),
    "rolled-back-next": ("rolled back by the {b} index + 1", lambda i, other, n: i + other + 1),
    "at-most": ("read no later than the {b} index", lambda i, other, n: np.minimum(i, other)),
    "at-least": ("read no earlier than the {b} index", lambda i, other, n: np.maximum(i, other)),
    "mirrored": ("mirrored about the {b} index", lambda i, other, n: 2 * other - i),
}


def shape_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Every change of axes that may be meant; the caller verifies."""
    axes = samples[0].axes
    yield from _transposed(axes)
    yield from _cut_otherwise(samples)
    for (i, first), (j, second) in permutations(enumerate(axes), 2):
        a, b = i - len(axes), j - len(axes)
        for slug, (words, rule) in BY_ANOTHER.items():
            yield Change(
                f"{first}-{slug}-{second}".replace(" ", "-"),
                f"with its {first} axis {words.format(b=second)}",
                partial(_by_another, a, b, rule),
            )


def _transposed(axes: tuple[str, ...]) -> Iterator[Change]:
    for (i, first), (j, second) in combinations(enumerate(axes), 2):
        a, b = i - len(axes), j - len(axes)
        yield Change(
            f"exchanged-{first}-{second}".replace(" ", "-"),
            f"with its {first} and {second} axes exchanged (where they are equally long)",
            partial(_swapped, a, b),
        )


def _swapped(a: int, b: int, array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
    if array.shape[a] != array.shape[b]:
        raise DoesNotApply("axes of different lengths can't be exchanged")
    return array.swapaxes(a, b)


def _cut_otherwise(samples: Sequence[Sample]) -> Iterator[Change]:
    """The elements in the order of other axes: an array that was reshaped where it should have been transposed."""
    axes = samples[0].axes
    count = len(axes)
    orders = [order for order in permutations(range(count)) if order != tuple(range(count))] if count <= 4 else []
    for order in orders or _exchanges(count):
        names = ", ".join(axes[k] for k in order)
        slug = "-".join(axes[k].replace(" ", "-") for k in order)
        yield Change(
            f"read-from-{slug}", f"read in the order of the axes ({names}) and not transposed", partial(_read, order)
        )
        yield Change(f"read-as-{slug}", f"cut into axes ({names}) as if it were in that order", partial(_cut, order))


def _exchanges(count: int) -> list[tuple[int, ...]]:
    found = []
    for a, b in combinations(range(count), 2):
        order = list(range(count))
        order[a], order[b] = order[b], order[a]
        found.append(tuple(order))
    return found


def _read(order: tuple[int, ...], array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
    return np.ascontiguousarray(array.transpose(order)).reshape(array.shape)


def _cut(order: tuple[int, ...], array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
    cut = array.reshape([array.shape[k] for k in order])
    return cut.transpose(np.argsort(order))


def _by_another(a: int, b: int, rule: Order2, array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
    n, m = array.shape[a], array.shape[b]
    if n < 2 or m < 2:
        raise DoesNotApply("one index alone tells nothing")
    first, second = [1] * array.ndim, [1] * array.ndim
    first[a], second[b] = n, m
    order = rule(np.arange(n).reshape(first), np.arange(m).reshape(second), n)
    return np.take_along_axis(array, np.broadcast_to(order % n, array.shape), axis=a)
