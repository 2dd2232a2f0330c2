"""Numbers: one in words, the nearest short one, and the one at which a vector is 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers

# One number in words -----------------------------------------------------------------------------------

CONSTANTS: dict[str, float] = {
    "ln 2": math.log(2.0),
    "log2 e": math.log2(math.e),
    "sqrt(2)": math.sqrt(2.0),
    "1 / sqrt(2)": math.sqrt(0.5),
    "sqrt(3)": math.sqrt(3.0),
    "1 / sqrt(3)": math.sqrt(1 / 3),
    "e": math.e,
    "1 / e": 1 / math.e,
    "pi": math.pi,
    "1 / pi": 1 / math.pi,
    "2 * pi": 2 * math.pi,
    "sqrt(2 / pi)": math.sqrt(2 / math.pi),
    "ln 10": math.log(10.0),
    "1 / ln 10": 1 / math.log(10.0),
}

LARGEST_DENOMINATOR = 16

NEAT_BY_CHANCE = 0.02
"""A number counts as neat only if fewer than this share of all numbers lie as near to one that is as neat."""


def neat(number: float, tolerance: float = 1e-9) -> tuple[str, float]:
    """The number in words, and the number that the words mean: a neat one if that is no accident.

    Args:
        number: finite.
        tolerance: its relative error.

    >>> neat(0.97), neat(1 / 3), neat(0.6931471805599453)
    (('0.97', 0.97), ('1/3', 0.3333333333333333), ('ln 2', 0.6931471805599453))
    >>> neat(1 / 1024), neat(0.123456789)
    (('1/1024', 0.0009765625), ('0.123456789', 0.123456789))
    """
    if number == 0.0:
        return "0", 0.0

    def is_near(other: float) -> bool:
        return abs(other - number) <= tolerance * abs(number)

    for digits in (1, 2, 3, 4):
        short = float(f"{number:.{digits}g}")
        if is_near(short) and 2 * tolerance * 10**digits < NEAT_BY_CHANCE:
            return f"{short:g}", short
    fraction = Fraction(number).limit_denominator(LARGEST_DENOMINATOR)
    if is_near(float(fraction)) and abs(fraction) < 32 and 500 * tolerance < NEAT_BY_CHANCE:
        return str(fraction), float(fraction)
    sign = "-" if number < 0.0 else ""
    for words, value in CONSTANTS.items():
        if is_near(math.copysign(value, number)) and 50 * tolerance < NEAT_BY_CHANCE:
            return sign + words, math.copysign(value, number)
    inverse = round(1.0 / number)
    if abs(inverse) in range(17, 4097) and is_near(1.0 / inverse) and 8192 * tolerance < NEAT_BY_CHANCE:
        return f"{sign}1/{abs(inverse)}", 1.0 / inverse
    digits = max(3, min(9, int(-math.log10(max(tolerance, 1e-12)))))
    return f"{number:.{digits}g}", number


def snapped(number: float, relative: float, digits: int = 6) -> float:
    """The number of fewest decimal digits within a relative error, or a fraction; itself if there is none.

    >>> snapped(0.30000000000004, 1e-10), snapped(0.3000001, 1e-10), snapped(0.66666666666, 1e-10)
    (0.3, 0.3000001, 0.6666666666666666)
    """
    for count in range(1, digits + 1):
        short = float(f"{number:.{count}g}")
        if abs(short - number) <= relative * abs(number):
            return short
    fraction = Fraction(number).limit_denominator(LARGEST_DENOMINATOR) if np.isfinite(number) else number
    return float(fraction) if abs(fraction - number) <= relative * abs(number) else number


def roundest(low: float, high: float) -> float:
    """The number of fewest digits above `low` and at most `high`.

    >>> roundest(0.0087, 0.0123), roundest(0.24, 0.26), roundest(-0.2, 0.1)
    (0.01, 0.25, 0.0)
    """
    if low < 0.0 < high:
        return 0.0
    for digits in range(1, 17):
        for number in (0.5 * (low + high), low, high):
            short = float(f"{number:.{digits}g}")
            if low < short <= high:
                return short
    return 0.5 * (low + high)


def ordinal(number: int) -> str:
    """A positive number as an ordinal.

    >>> ordinal(1), ordinal(2), ordinal(13), ordinal(23)
    ('1st', '2nd', '13th', '23rd')
    """
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


# A number that gives arrays -----------------------------------------------------------------------------

STEPS = 30
"""Most steps of Gauss-Newton."""

HOPEFUL = 8, 1e-2
"""After so many steps the distance must have shrunk by this factor: near a root each step squares it."""


def solve(distance: Callable[[float], NDArray], starts: Sequence[float], enough: float) -> float | None:
    """The number at which a vector is 0, by Gauss-Newton from the best two starts.

    Args:
        distance: the number -> a vector; NaN where it is not defined.
        starts: numbers to begin from.
        enough: the root is taken if no element is larger there.

    >>> round(solve(lambda c: np.array([c * c - 2.0, c - 2.0**0.5]), (0.5, 1.0, 3.0), 1e-9), 9)
    1.414213562
    """
    with any_numbers:
        begun = [(start, distance(start)) for start in starts]
        sizes = [_size(vector) for _, vector in begun]
        for place in sorted(range(len(starts)), key=sizes.__getitem__)[:2]:
            if np.isfinite(sizes[place]):
                found, left = _descended(distance, *begun[place], sizes[place])
                if np.abs(left).max(initial=0.0) <= enough:
                    return found
    return None


def _size(vector: NDArray) -> float:
    size = math.sqrt(float(vector @ vector) / vector.size) if vector.size else 0.0
    return size if math.isfinite(size) else math.inf


def _descended(
    distance: Callable[[float], NDArray], number: float, here: NDArray, size: float
) -> tuple[float, NDArray]:
    """Where it ends, and the vector there; `here` is the vector at the number, of this size."""
    first = size
    for step_number in range(STEPS):
        if step_number == HOPEFUL[0] and size > HOPEFUL[1] * first:
            break
        width = 1e-7 * max(abs(number), 1e-6)
        slope = (distance(number + width) - distance(number - width)) / (2.0 * width)
        square = float(slope @ slope)
        if not square or not np.isfinite(square):
            break
        step = -float(slope @ here) / square
        for _ in range(8):
            there = distance(number + step)
            after = _size(there)
            if after < size:
                break
            step /= 2.0
        else:
            break
        number, here, size = number + step, there, after
        if abs(step) <= 1e-16 * abs(number):
            break
    return number, here


def sigmoid(x: NDArray) -> NDArray:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def erf(x: NDArray) -> NDArray:
    return np.vectorize(math.erf, otypes=[float])(x) if x.size else x
