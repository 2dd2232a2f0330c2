"""The numbers of parameters, compared without keeping them: sums of hashes, with their order and without."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mha_core.dtypes import round_to

CHUNK = 1 << 20
"""Numbers that are hashed at a time."""


@dataclass(frozen=True)
class Numbers:
    """The number of elements (`size`) in arrays, and the sum of their hashes modulo 2**64 (`hashed`).

    Transposing or reshaping an array keeps its Numbers. The Numbers of its pieces add up to its own.

    >>> x = np.arange(6.0).reshape(2, 3)
    >>> numbers_of(x) == numbers_of(x.T) == numbers_of(x[:1]) + numbers_of(x[1:])
    True
    >>> numbers_of(x) == numbers_of(x + 1e-12)
    False

    `hashed` is None if a number is not known: its parameter is on the meta device, offloaded or not initialised.
    """

    size: int
    hashed: int | None

    def __add__(self, other: Numbers) -> Numbers:
        both = None if self.hashed is None or other.hashed is None else (self.hashed + other.hashed) % 2**64
        return Numbers(self.size + other.size, both)

    @property
    def known(self) -> bool:
        """Return whether there are numbers, and each is known."""
        return self.size > 0 and self.hashed is not None


NONE = Numbers(0, 0)


class Order(NamedTuple):
    """Three hashes of an array, which depend on the order of its numbers. A row is array[i], a column array[:, j].

    Attributes:
        sequence: a hash that changes if any numbers change places.
        rows: a hash that stays the same if whole rows change places.
        columns: a hash that stays the same if whole columns change places.

    >>> x = np.arange(6.0).reshape(2, 3)
    >>> order_of(x).rows == order_of(x[::-1]).rows, order_of(x).rows == order_of(x[:, ::-1]).rows
    (True, False)
    """

    sequence: int
    rows: int
    columns: int


def numbers_of(array: NDArray) -> Numbers:
    """Return the Numbers (count, hashes) of one array; equal values have equal hashes in every floating-point dtype."""
    flat = np.asarray(array).reshape(-1)
    hashed = sum(_sum(_mixed(_bits(flat[start : start + CHUNK]))) for start in range(0, flat.size, CHUNK))
    return Numbers(flat.size, hashed % 2**64)


def order_of(array: NDArray) -> Order:
    """Return the Order (three hashes) of one array; equal values have equal hashes in every floating-point dtype."""
    if array.size == 0:
        return Order(0, 0, 0)
    table = np.asarray(array).reshape(len(array) if array.ndim else 1, -1)
    along = np.arange(table.shape[1], dtype=np.uint64) * _STEP
    columns = np.zeros(table.shape[1], np.uint64)
    sequence = rows = 0
    for start in range(0, len(table), max(1, CHUNK // table.shape[1])):
        bits = _bits(table[start : start + max(1, CHUNK // table.shape[1])])
        down = np.arange(start, start + len(bits), dtype=np.uint64) * _STEP
        row = np.add.reduce(_mixed(bits + along), axis=1)
        columns += np.add.reduce(_mixed(bits + down[:, None]), axis=0)
        rows, sequence = rows + _sum(_mixed(row)), sequence + _sum(_mixed(row + down))
    return Order(sequence % 2**64, rows % 2**64, _sum(_mixed(columns)))


_STEP = np.uint64(0x9E3779B97F4A7C15)


def _bits(numbers: NDArray) -> NDArray[np.uint64]:
    """Each number as the bits of float64; + 0.0 makes -0.0 the same as 0.0."""
    found: NDArray[np.uint64] = (numbers.astype(np.float64) + 0.0).view(np.uint64)
    return found


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The mixing of splitmix64. Products of arrays wrap around without a warning."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _sum(hashes: NDArray[np.uint64]) -> int:
    return int(np.add.reduce(hashes, axis=None, dtype=np.uint64))


def shape_and_numbers(
    parameter: Any, numbers_in: Callable[[Any], NDArray], dtype: str | None = None
) -> tuple[tuple[int, ...], Numbers, Order | None]:
    """Return (shape, Numbers, Order) of a parameter. Only the hashes in Order depend on the order of its values.

    On the meta device, the field `hashed` of Numbers is None, and the Order is None too.

    Args:
        parameter: a parameter of any framework.
        numbers_in: a function: the parameter -> its NumPy array.
        dtype: the dtype to round to before hashing; the Order is then None. Default: no rounding.
    """
    try:
        array = numbers_in(parameter)
        rounded = array if dtype is None else round_to(array, dtype)
        return array.shape, numbers_of(rounded), order_of(array) if dtype is None else None
    except Exception:  # each framework has its own for what is not there
        try:
            shape = tuple(int(size) for size in parameter.shape)
        except Exception:  # not initialised: it has no shape yet
            shape = ()
        return shape, unknown(shape), None


def unknown(shape: Sequence[int]) -> Numbers:
    """Return the Numbers of a parameter of this shape whose values can't be read; its field `hashed` is None."""
    return Numbers(max(1, math.prod(shape)), None)


def total(parts: Iterable[Numbers]) -> Numbers:
    """Return the Numbers of several arrays together."""
    return sum(parts, NONE)


def is_constant(numbers: Numbers) -> bool:
    """Return whether all numbers are 0 or all are 1, as in biases and norms before training.

    >>> is_constant(numbers_of(np.zeros(3))), is_constant(numbers_of(np.eye(2)))
    (True, False)
    """
    each = (numbers_of(np.full(1, one)).hashed for one in (0.0, 1.0))
    return any(one is not None and numbers.hashed == numbers.size * one % 2**64 for one in each)
