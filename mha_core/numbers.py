"""Numbers of a config: each as a float, or a SpecError that names it."""

from __future__ import annotations

import math

from mha_core.errors import SpecError


def real(name: str, value: float) -> float:
    """Return `value` as a float if it is a finite number; raise SpecError otherwise.

    >>> real("scale", 2)
    2.0
    """
    try:
        finite = not isinstance(value, bool) and hasattr(value, "__float__") and math.isfinite(value)
    except OverflowError as error:  # an integer that no float holds
        raise SpecError(f"{name} must be a finite number. Got an integer beyond the range of floats.") from error
    if not finite:
        raise SpecError(f"{name} must be a finite number. Got {value!r}.")
    return float(value)


def positive(name: str, value: float) -> float:
    """As `real`, of a number above 0."""
    number = real(name, value)
    if number <= 0.0:
        raise SpecError(f"{name} must be positive. Got {number!r}.")
    return number


def check_dropout(value: float) -> float:
    """Return `value` as a float if it is a dropout probability; raise SpecError otherwise."""
    rate = real("dropout", value)
    if not 0.0 <= rate < 1.0:
        raise SpecError(f"dropout must lie in 0 <= dropout < 1. Got {rate!r}.")
    return rate


def divisors(size: int) -> tuple[int, ...]:
    """Return the numbers that divide a size, from 1 to itself; none of 0.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    return tuple(one for one in range(1, size + 1) if size % one == 0)
