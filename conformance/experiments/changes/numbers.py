"""Numbers in words: a measured number is written as a short decimal, a fraction or a known constant if it is one."""

from __future__ import annotations

import math
from fractions import Fraction

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

BY_CHANCE = 0.02
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
        short = f"{number:.{digits}g}"
        if is_near(float(short)) and 2 * tolerance * 10**digits < BY_CHANCE:
            return _plain(float(short)), float(short)
    fraction = Fraction(number).limit_denominator(LARGEST_DENOMINATOR)
    if is_near(float(fraction)) and abs(fraction) < 32 and 500 * tolerance < BY_CHANCE:
        return str(fraction), float(fraction)
    sign = "-" if number < 0.0 else ""
    for words, value in CONSTANTS.items():
        if is_near(math.copysign(value, number)) and 50 * tolerance < BY_CHANCE:
            return sign + words, math.copysign(value, number)
    inverse = round(1.0 / number)
    if abs(inverse) in range(17, 4097) and is_near(1.0 / inverse) and 8192 * tolerance < BY_CHANCE:
        return f"{sign}1/{abs(inverse)}", 1.0 / inverse
    digits = max(3, min(9, int(-math.log10(max(tolerance, 1e-12)))))
    return f"{number:.{digits}g}", number


def _plain(number: float) -> str:
    """A short decimal without an exponent where that is readable."""
    return f"{number:g}"


def ordinal(number: int) -> str:
    """A positive number as an ordinal.

    >>> ordinal(1), ordinal(2), ordinal(13), ordinal(23)
    ('1st', '2nd', '13th', '23rd')
    """
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
