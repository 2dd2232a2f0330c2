"""Shapes: axes exchanged, arrays cut into axes in another order, and one axis read by the index of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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


def shape_changes(axes: tuple[str, ...]) -> Iterator[Change]:
    """Every change of axes that may be meant; the caller verifies."""
    yield from _transposed(axes)
    yield from _cut_otherwise(axes)
    for (i, first), (j, second) in permutations(enumerate(axes), 2):
        a, b = i - len(axes), j - len(axes)
        for slug, (words, rule) in BY_ANOTHER.items():
            yield Change(
                f"{first}-{slug}-{second}".replace(" ", "-"),
                f"with its {first} axis {words.format(b=second)}",
                partial(_by_another, a, b, rule),
            )


HEADS: dict[str, tuple[str, Callable[[Setting], tuple[int, int]]]] = {
    "head": ("head channel", lambda s: (s.config.num_heads, s.config.value_head_dim)),
    "kv head": ("head channel", lambda s: (s.config.num_kv_heads, s.config.value_head_dim)),
    "query head": ("head channel", lambda s: (s.config.num_heads, s.config.head_dim)),
    "key head": ("head channel", lambda s: (s.config.num_kv_heads, s.config.head_dim)),
}
"""An axis of heads -> the axis beside it in merged channels, and the lengths of both."""


def split_changes(samples: Sequence[Sample], inner: Callable[[Sequence[Sample]], list[Change]]) -> Iterator[Change]:
    """What `inner` finds where an axis of all heads' channels is split into heads and their channels."""
    axes = samples[0].axes
    done: set[tuple[object, ...]] = set()
    for position, name in enumerate(axes):
        axis = position - len(axes)
        if name in HEADS or "head channel" in axes:
            continue
        for heads, (channels, lengths) in HEADS.items():
            shapes = tuple(lengths(sample.setting) for sample in samples)
            if (position, *shapes) in done or any(
                a * b != sample.expected.shape[axis] for (a, b), sample in zip(shapes, samples, strict=True)
            ):
                continue
            done.add((position, *shapes))
            if all(1 in pair for pair in shapes):
                continue
            split = [
                replace(
                    sample,
                    measured=_split(sample.measured, axis, *shape),
                    expected=_split(sample.expected, axis, *shape),
                    axes=(*axes[:position], heads, channels, *axes[position + 1 :]),
                )
                for sample, shape in zip(samples, shapes, strict=True)
            ]
            for change in inner(split):
                yield _merged(change, axis, heads, channels, lengths)


def _split(array: NDArray, axis: int, heads: int, channels: int) -> NDArray:
    position = array.ndim + axis
    return array.reshape(*array.shape[:position], heads, channels, *array.shape[position + 1 :])


def _merged(
    change: Change, axis: int, heads: str, channels: str, lengths: Callable[[Setting], tuple[int, int]]
) -> Change:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        first, second = lengths(setting)
        if array.shape[axis] != first * second:
            raise DoesNotApply(f"{array.shape[axis]} channels are not {first} heads of {second}")
        position = array.ndim + axis
        split = (*axes[:position], heads, channels, *axes[position + 1 :])
        return change.apply(_split(array, axis, first, second), split, setting).reshape(array.shape)

    return Change(f"split-{change.slug}", change.words, apply)


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


def _cut_otherwise(axes: tuple[str, ...]) -> Iterator[Change]:
    """The elements in the order of other axes: an array that was reshaped where it should have been transposed."""
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
