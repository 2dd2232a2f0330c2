"""The numbers of parameters, compared without keeping them: a sum that no order and no packing changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.dtypes import round_to

CHUNK = 1 << 20
"""Numbers that are hashed at a time."""


@dataclass(frozen=True)
class Numbers:
    """How many numbers there are, and the sum of their hashes modulo 2**64.

    A transposed, reshaped, split or packed array has the same.

    >>> x = np.arange(6.0).reshape(2, 3)
    >>> numbers_of(x) == numbers_of(x.T) == numbers_of(x[:1]) + numbers_of(x[1:])
    True
    >>> numbers_of(x) == numbers_of(x + 1e-12)
    False

    `hashed` is None where one of them is not known: its parameter is on the meta device, offloaded or not initialised.
    """

    size: int
    hashed: int | None

    def __add__(self, other: Numbers) -> Numbers:
        both = None if self.hashed is None or other.hashed is None else (self.hashed + other.hashed) % 2**64
        return Numbers(self.size + other.size, both)

    @property
    def known(self) -> bool:
        """Whether there are any, and each is known."""
        return self.size > 0 and self.hashed is not None


NONE = Numbers(0, 0)


def numbers_of(array: NDArray) -> Numbers:
    """The Numbers of one array; floating-point numbers of any dtype by their value."""
    flat = np.asarray(array).reshape(-1)
    hashed = 0
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, CHUNK):
            # + 0.0 makes -0.0 the same as 0.0. The mixing is that of splitmix64.
            bits = (flat[start : start + CHUNK].astype(np.float64) + 0.0).view(np.uint64)
            bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            hashed += int(np.add.reduce(bits ^ (bits >> np.uint64(31)), dtype=np.uint64))
    return Numbers(flat.size, hashed % 2**64)


def shape_and_numbers(
    parameter: Any, numbers_in: Callable[[Any], NDArray], dtype: str | None = None
) -> tuple[tuple[int, ...], Numbers]:
    """The shape and the Numbers of a parameter, as one of `dtype`; of one without numbers by what it says itself."""
    try:
        array = numbers_in(parameter)
        return array.shape, numbers_of(array if dtype is None else round_to(array, dtype))
    except Exception:  # each framework has its own for what is not there
        try:
            shape = tuple(int(size) for size in parameter.shape)
        except Exception:  # not initialised: it has no shape yet
            shape = ()
        return shape, unknown(shape)


def unknown(shape: Sequence[int]) -> Numbers:
    """The Numbers of a parameter that has none."""
    return Numbers(max(1, math.prod(shape)), None)


def total(parts: Iterable[Numbers]) -> Numbers:
    """The Numbers of several arrays together."""
    return sum(parts, NONE)


def is_constant(numbers: Numbers) -> bool:
    """Whether all of them are 0, or all 1, as biases and norms are before training.

    >>> is_constant(numbers_of(np.zeros(3))), is_constant(numbers_of(np.eye(2)))
    (True, False)
    """
    each = (numbers_of(np.full(1, one)).hashed for one in (0.0, 1.0))
    return any(one is not None and numbers.hashed == numbers.size * one % 2**64 for one in each)
