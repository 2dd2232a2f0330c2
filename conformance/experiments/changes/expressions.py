"""Expressions: a measured number is named only if it is the same expression of the sizes in all of several layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from conformance.experiments.changes.sample import Setting

Size = Callable[[Setting], float]

SIZES: dict[str, Size] = {
    "head_dim": lambda s: s.config.head_dim,
    "num_heads": lambda s: s.config.num_heads,
    "embed_dim": lambda s: s.config.embed_dim,
    "query_dim": lambda s: s.config.query_dim,
    "key_dim": lambda s: s.config.key_dim,
    "value_dim": lambda s: s.config.value_dim,
    "output_dim": lambda s: s.config.output_dim,
    "value_head_dim": lambda s: s.config.value_head_dim,
    "num_kv_heads": lambda s: s.config.num_kv_heads,
    "heads per kv head": lambda s: s.config.num_heads // s.config.num_kv_heads,
    "key length": lambda s: s.sizes.key_len,
    "query length": lambda s: s.sizes.query_len,
    "batch size": lambda s: s.sizes.batch,
}
"""Name -> the size; the likeliest first."""

POWERS = {-1.0: "1 / {}", -0.5: "1 / sqrt({})", 0.5: "sqrt({})", 1.0: "{}"}

CLOSE = 1e-9


@dataclass(frozen=True)
class Expression:
    """A number that may depend on sizes.

    words: such as "sqrt(head_dim / query_dim)". at: its value at given sizes.
    """

    words: str
    at: Callable[[Setting], float]


def expressions_of(numbers: Sequence[tuple[float, Setting]], *, unit: float = 1e-13) -> list[Expression]:
    """What a number measured at several sizes may be, the simplest first; empty if nothing fits.

    A constant, if it is the same everywhere; else a power of one size, a product of two, or a multiple of one.

    Args:
        numbers: (the number, the sizes at which it was measured).
        unit: the relative error of the numbers.
    """
    if not numbers or not all(np.isfinite(number) for number, _ in numbers):
        return []
    tolerance = max(CLOSE, 1000.0 * unit)
    first = numbers[0][0]
    found: list[Expression] = []
    if all(abs(number - first) <= tolerance * abs(first) for number, _ in numbers):
        found.append(Expression(_short(first), lambda setting: first))
    for expression in _candidates():
        if all(abs(expression.at(setting) - number) <= tolerance * abs(number) for number, setting in numbers):
            found.append(expression)
    if not found:
        found += _multiples(numbers, tolerance)
    return found


def _candidates() -> Iterator[Expression]:
    for name, size in SIZES.items():
        for power, words in POWERS.items():
            yield Expression(words.format(name), _power(size, power))
    for (a, first), (b, second) in combinations(SIZES.items(), 2):
        for above, over, size, other in ((a, b, first, second), (b, a, second, first)):
            yield Expression(f"sqrt({above} / {over})", _product(size, 0.5, other, -0.5))
            yield Expression(f"{above} / {over}", _product(size, 1.0, other, -1.0))
        yield Expression(f"1 / sqrt({a} * {b})", _product(first, -0.5, second, -0.5))
        yield Expression(f"sqrt({a} * {b})", _product(first, 0.5, second, 0.5))


def _power(size: Size, power: float, constant: float = 1.0) -> Size:
    return lambda setting: constant * float(size(setting)) ** power


def _product(first: Size, power: float, second: Size, other: float) -> Size:
    return lambda setting: float(first(setting)) ** power * float(second(setting)) ** other


def _multiples(numbers: Sequence[tuple[float, Setting]], tolerance: float) -> Iterator[Expression]:
    """A constant times a power of one size."""
    for name, size in SIZES.items():
        for power, words in POWERS.items():
            factors = [number / float(size(setting)) ** power for number, setting in numbers]
            constant = factors[0]
            if len(numbers) > 1 and all(abs(one - constant) <= tolerance * abs(constant) for one in factors):
                yield Expression(f"{_short(constant)} * {words.format(name)}", _power(size, power, constant))


def _short(number: float) -> str:
    """The number in as few digits as it needs to be itself, within its error."""
    return f"{number:.9g}"
