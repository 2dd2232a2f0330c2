"""Shapes: axes exchanged, arrays cut into axes in another order, one axis read by the index of another, heads split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from conformance.measure.grammar.sample import Apply, Change, Sample, Setting
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
    for (i, first), (j, second) in combinations(enumerate(axes), 2):
        yield Change(
            f"exchanged-{first}-{second}",
            f"with its {first} and {second} axes exchanged (where they are equally long)",
            partial(_swapped, i - len(axes), j - len(axes)),
        )
        yield Change(
            f"exchanged-around-{first}-{second}",
            f"with its {first} and {second} indices exchanged, around the end of the shorter axis",
            partial(_swapped_around, i - len(axes), j - len(axes)),
        )
    for order in _orders(len(axes)):
        names = ", ".join(axes[k] for k in order)
        slug = "-".join(axes[k] for k in order)
        read = f"read in the order of the axes ({names}) and not transposed"
        yield Change(f"read-from-{slug}", read, partial(_read, order))
        cut = f"cut into axes ({names}) as if it were in that order"
        yield Change(f"read-as-{slug}", cut, partial(_cut, order))
    for (i, first), (j, second) in permutations(enumerate(axes), 2):
        for slug, (words, rule) in BY_ANOTHER.items():
            said = f"with its {first} axis {words.format(b=second)}"
            yield Change(f"{first}-{slug}-{second}", said, _by_another(i - len(axes), j - len(axes), rule))


def _orders(count: int) -> list[tuple[int, ...]]:
    """Every other order of up to four axes; of more, the exchanges of two."""
    own = tuple(range(count))
    if count <= 4:
        return [order for order in permutations(own) if order != own]
    exchanged = []
    for a, b in combinations(own, 2):
        order = list(own)
        order[a], order[b] = b, a
        exchanged.append(tuple(order))
    return exchanged


def _swapped(a: int, b: int, array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
    if array.shape[a] != array.shape[b]:
        raise DoesNotApply("axes of different lengths can't be exchanged")
    return array.swapaxes(a, b)


def _swapped_around(a: int, b: int, array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
    n, m = array.shape[a], array.shape[b]
    if 0 in (n, m):
        raise DoesNotApply("no index is there")
    swapped = array.swapaxes(a, b)
    return swapped.take(np.arange(n) % m, axis=a).take(np.arange(m) % n, axis=b)


def _read(order: tuple[int, ...], array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
    return np.ascontiguousarray(array.transpose(order)).reshape(array.shape)


def _cut(order: tuple[int, ...], array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
    return array.reshape([array.shape[k] for k in order]).transpose(np.argsort(order))


def _by_another(a: int, b: int, rule: Order2) -> Apply:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        n, m = array.shape[a], array.shape[b]
        if n < 2 or m < 2:
            raise DoesNotApply("one index alone tells nothing")
        first, second = [1] * array.ndim, [1] * array.ndim
        first[a], second[b] = n, m
        order = rule(np.arange(n).reshape(first), np.arange(m).reshape(second), n)
        return np.take_along_axis(array, np.broadcast_to(order % n, array.shape), axis=a)

    return apply


# Merged channels split into heads -----------------------------------------------------------------------

HEADS: dict[str, Callable[[Setting], tuple[int, int]]] = {
    "head": lambda s: (s.config.num_heads, s.config.value_head_dim),
    "kv head": lambda s: (s.config.num_kv_heads, s.config.value_head_dim),
    "query head": lambda s: (s.config.num_heads, s.config.head_dim),
    "key head": lambda s: (s.config.num_kv_heads, s.config.head_dim),
}
"""An axis of heads -> its length, and the number of channels of each."""

CHANNEL = "head channel"


def split_changes(samples: Sequence[Sample], inner: Callable[[Sequence[Sample]], list[Change]]) -> Iterator[Change]:
    """What `inner` finds where an axis of all heads' channels is split into heads and their channels."""
    axes = samples[0].axes
    done: set[tuple[object, ...]] = set()
    for position, name in enumerate(axes):
        axis = position - len(axes)
        if name in HEADS or CHANNEL in axes:
            continue
        for heads, lengths in HEADS.items():
            shapes = tuple(lengths(sample.setting) for sample in samples)
            lens = (sample.expected.shape[axis] for sample in samples)
            if (position, *shapes) in done or any(a * b != n for (a, b), n in zip(shapes, lens, strict=True)):
                continue
            done.add((position, *shapes))
            if all(1 in pair for pair in shapes):
                continue
            split = [
                replace(
                    sample,
                    measured=_split(sample.measured, axis, *shape),
                    expected=_split(sample.expected, axis, *shape),
                    axes=(*axes[:position], heads, CHANNEL, *axes[position + 1 :]),
                )
                for sample, shape in zip(samples, shapes, strict=True)
            ]
            for change in inner(split):
                yield Change(f"split-{change.slug}", change.words, _in_heads(change, axis, heads))


def _split(array: NDArray, axis: int, heads: int, channels: int) -> NDArray:
    position = array.ndim + axis
    return array.reshape(*array.shape[:position], heads, channels, *array.shape[position + 1 :])


def _in_heads(change: Change, axis: int, heads: str) -> Apply:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        first, second = HEADS[heads](setting)
        if array.shape[axis] != first * second:
            raise DoesNotApply(f"{array.shape[axis]} channels are not {first} heads of {second}")
        position = array.ndim + axis
        split = (*axes[:position], heads, CHANNEL, *axes[position + 1 :])
        return change.apply(_split(array, axis, first, second), split, setting).reshape(array.shape)

    return apply
