"""The numbers of parameters, compared without keeping them: a sum that no order and no packing changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """

    size: int
    hashed: int

    def __add__(self, other: Numbers) -> Numbers:
        return Numbers(self.size + other.size, (self.hashed + other.hashed) % 2**64)


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


def total(parts: Iterable[Numbers]) -> Numbers:
    """The Numbers of several arrays together."""
    return sum(parts, NONE)


def is_constant(numbers: Numbers) -> bool:
    """Whether all of them are 0, or all 1, as biases and norms are before training.

    >>> is_constant(numbers_of(np.zeros(3))), is_constant(numbers_of(np.eye(2)))
    (True, False)
    """
    return any(numbers.hashed == numbers.size * numbers_of(np.full(1, one)).hashed % 2**64 for one in (0.0, 1.0))
