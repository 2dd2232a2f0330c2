"""Expressions: a measured number is named if it is the same expression of the sizes in several layers.

Of hundreds of expressions one fits any number if the tolerance is wide or the layers are few. So an expression is
named only if less than BY_CHANCE of those tried up to it would fit numbers that have nothing to do with the sizes:

    tried * (2 tolerance)^(distinct numbers measured)
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any

import numpy as np

from conformance.any_numbers import any_numbers
from conformance.kinds.change import SIZES, Setting

OF_ONE: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("{}", lambda a: 1.0 * a),
    ("1 / {}", lambda a: 1 / a),
    ("1 / sqrt({})", lambda a: a**-0.5),
    ("sqrt({})", lambda a: a**0.5),
    ("{}^2", lambda a: 1.0 * a * a),
    ("{}^(1/4)", lambda a: a**0.25),
    ("{}^(-1/4)", lambda a: a**-0.25),
    ("{} + 1", lambda a: a + 1.0),
    ("{} - 1", lambda a: a - 1.0),
    ("({0} + 1) / {0}", lambda a: (a + 1) / a),
    ("({0} - 1) / {0}", lambda a: (a - 1) / a),
    ("{0} / ({0} + 1)", lambda a: a / (a + 1.0)),
    ("{0} / ({0} - 1)", lambda a: a / (a - 1.0)),
    ("ln({})", lambda a: np.log(1.0 * a)),
    ("log2({})", lambda a: np.log2(1.0 * a)),
    ("ln({} + 1)", lambda a: np.log(a + 1.0)),
)

OF_TWO: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("{} / {}", lambda a, b: a / b),
    ("sqrt({} / {})", lambda a, b: (a / b) ** 0.5),
    ("{} * {}", lambda a, b: 1.0 * a * b),
    ("1 / ({} * {})", lambda a, b: 1 / (1.0 * a * b)),
    ("{} * sqrt({})", lambda a, b: a * b**0.5),
    ("{} / sqrt({})", lambda a, b: a * b**-0.5),
    ("sqrt({}) / {}", lambda a, b: a**0.5 / b),
    ("sqrt({} * {})", lambda a, b: (1.0 * a * b) ** 0.5),
    ("1 / sqrt({} * {})", lambda a, b: (1.0 * a * b) ** -0.5),
    ("{} * ln({})", lambda a, b: a * np.log(1.0 * b)),
)

SYMMETRIC = {words for words, form in OF_TWO if form(2.0, 3.0) == form(3.0, 2.0)}

CONSTANTS = {"ln 2": math.log(2), "log2 e": math.log2(math.e), "sqrt(2)": math.sqrt(2), "pi": math.pi, "e": math.e}

CLOSE, BY_CHANCE, DIGITS = 1e-9, 2e-5, 6
"""The least relative error of a number; the share above; the digits of one that is no short one."""

SHORT, DENOMINATOR = 4, 16
"""Most digits of a short number, and the largest denominator of a fraction."""


@dataclass(frozen=True)
class Expression:
    """A constant, or a formula in the sizes of a call.

    name: the formula, such as "sqrt(head_dim / query_dim)". at: call -> the formula's value.
    words: `name`, and a note on the sizes that were equal to those in the formula in all calls, and so fit as well.
    """

    words: str
    at: Callable[[Setting], float]
    name: str

    @property
    def slug(self) -> str:
        """Return the name without spaces."""
        return self.name.replace(" ", "")


def neat(number: float, tolerance: float = CLOSE) -> tuple[str, float]:
    """Return `number`, or a short decimal, fraction or constant within relative `tolerance` of it, as (text, value).

    >>> neat(0.97), neat(1 / 3), neat(-0.6931471805599453), neat(0.123456789)
    (('0.97', 0.97), ('1/3', 0.3333333333333333), ('-ln 2', -0.6931471805599453), ('0.123457', 0.123456789))
    """

    def is_near(other: float) -> bool:
        return abs(other - number) <= tolerance * abs(number)

    for digits in range(1, SHORT + 1):
        short = float(f"{number:.{digits}g}")
        if is_near(short):
            return f"{short:g}", short
    fraction = Fraction(number).limit_denominator(DENOMINATOR)
    if is_near(float(fraction)) and abs(fraction) < DENOMINATOR:
        return str(fraction), float(fraction)
    for words, value in CONSTANTS.items():
        for text, one in ((words, value), (f"1 / {words}", 1 / value)):
            if is_near(math.copysign(one, number)):
                return f"{'-' * (number < 0)}{text}", math.copysign(one, number)
    return f"{number:.{DIGITS}g}", number


@lru_cache(maxsize=64)
def _table(
    settings: tuple[Setting, ...],
) -> tuple[list[tuple[str, Callable[..., Any], tuple[tuple[str, ...], ...]]], Any]:
    """Return each (words, form, the equal sizes of each argument), and the values (expressions, settings)."""
    groups: dict[tuple[float, ...], list[str]] = {}
    for name, size in SIZES.items():
        at = tuple(float(size(setting)) for setting in settings)
        if any(one not in (0.0, 1.0) for one in at):
            groups.setdefault(at, []).append(name)
    entries, values = [], []
    with any_numbers:
        for count, forms in ((1, OF_ONE), (2, OF_TWO)):
            for words, form in forms:
                for chosen in (combinations if words in SYMMETRIC else permutations)(groups, count):
                    entries.append((words, form, tuple(tuple(groups[one]) for one in chosen)))
                    values.append(form(*map(np.array, chosen)))
    return entries, np.array(values, np.float64).reshape(len(values), len(settings))


def expressions_of(numbers: Sequence[tuple[float, Setting]], *, unit: float = 1e-13) -> list[Expression]:
    """Return the Expressions that fit a number measured at several sizes, the simplest first; [] if none fits.

    They are a constant, an expression of one or two sizes, or a short number times such an expression.

    Args:
        numbers: pairs (the measured number, the call at whose sizes it was measured).
        unit: the relative error of the data behind the numbers; a fit may be off by 1000 times that.
    """
    measured = np.array([number for number, _ in numbers], np.float64)
    if not len(measured) or not np.isfinite(measured).all():
        return []
    tolerance, largest = max(CLOSE, 1000.0 * unit), np.abs(measured).max()
    if largest == 0.0:
        return [Expression("0", lambda setting: 0.0, "0")]
    if np.abs(measured).min() == 0.0 or len(set(np.sign(measured))) > 1:
        return []
    found = []
    if np.ptp(measured) <= 2 * tolerance * largest:
        words, number = neat(float(np.median(measured)), tolerance)
        found.append(Expression(words, lambda setting: number, words))
    return [*found, *_named(measured, tuple(setting for _, setting in numbers), tolerance)]


def _named(measured: Any, settings: tuple[Setting, ...], tolerance: float) -> Iterator[Expression]:
    entries, values = _table(settings)
    distinct = 1 + int((np.diff(np.sort(np.abs(measured))) > tolerance * np.abs(measured).max()).sum())
    if not entries or distinct < 2:
        return
    with any_numbers:
        ratios = measured / values
        spread = np.ptp(ratios, axis=1) / np.abs(ratios).max(axis=1)
    told: list[tuple[bool, Expression]] = []
    for hit in np.flatnonzero(spread <= 2 * tolerance):
        words, factor = neat(float(np.median(ratios[hit])), tolerance)
        tried = hit + 1 if words == "1" else 10**SHORT * (hit + 1)
        if len(words) > SHORT + 2 or tried * (2 * tolerance) ** (distinct - (words != "1")) >= BY_CHANCE:
            continue
        text, form, groups = entries[hit]
        names = tuple(group[0] for group in groups)
        if " * " in text and {"num_kv_heads", "heads per kv head"} == {*names}:
            continue  # which is num_heads, whatever the layer
        name = re.sub(r"\(\(([^()]*)\)\)", r"(\1)", text.format(*names))  # a name in brackets of its own
        if words not in ("1", "-1"):
            name = f"{words} * {name if name.isidentifier() else f'({name})'}"
        name = f"-({name})" if words == "-1" else name
        others = [other for group in groups for other in group[1:]]
        note = f" (or of {', '.join(others)}, equal in all that was measured)" if others else ""
        told.append((words != "1", Expression(name + note, _at(form, names, factor), name)))
    exact = [one for multiple, one in told if not multiple]
    yield from exact or [one for _, one in told[:2]]


def _at(form: Callable[..., Any], names: tuple[str, ...], factor: float) -> Callable[[Setting], float]:
    def at(setting: Setting) -> float:
        with any_numbers:
            return factor * float(form(*(np.float64(SIZES[name](setting)) for name in names)))

    return at
