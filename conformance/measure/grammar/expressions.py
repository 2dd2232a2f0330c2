"""Expressions: a measured number is named if it is the same expression of the sizes in several layers.

Of some thousand expressions one fits any number if the tolerance is wide or the layers are few. So an expression is
named only if less than BY_CHANCE of those tried up to it would fit numbers that have nothing to do with the sizes:

    tried * (2 tolerance)^(distinct numbers measured)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.grammar.numbers import neat
from conformance.measure.grammar.sample import Setting

SIZES: dict[str, Callable[[Setting], float]] = {
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
    "past length": lambda s: s.sizes.past_len,
    "p": lambda s: s.config.dropout,
    "(1 - p)": lambda s: 1.0 - s.config.dropout,
}
"""Name -> the size, or the rate p of dropout; the likeliest first."""

OF_ONE: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("1 / {}", lambda a: 1 / a),
    ("1 / sqrt({})", lambda a: a**-0.5),
    ("sqrt({})", lambda a: a**0.5),
    ("{}", lambda a: 1.0 * a),
    ("{} + 1", lambda a: a + 1.0),
    ("{} - 1", lambda a: a - 1.0),
    ("1 / ({} + 1)", lambda a: 1 / (a + 1.0)),
    ("1 / ({} - 1)", lambda a: 1 / (a - 1.0)),
    ("1 / sqrt({} + 1)", lambda a: (a + 1.0) ** -0.5),
    ("1 / sqrt({} - 1)", lambda a: (a - 1.0) ** -0.5),
    ("({0} - 1) / {0}", lambda a: (a - 1) / a),
    ("({0} + 1) / {0}", lambda a: (a + 1) / a),
    ("{0} / ({0} - 1)", lambda a: a / (a - 1.0)),
    ("{0} / ({0} + 1)", lambda a: a / (a + 1.0)),
    ("sqrt({0} / ({0} - 1))", lambda a: (a / (a - 1.0)) ** 0.5),
    ("sqrt({0} / ({0} + 1))", lambda a: (a / (a + 1.0)) ** 0.5),
    ("sqrt(({0} - 1) / {0})", lambda a: ((a - 1.0) / a) ** 0.5),
    ("sqrt(({0} + 1) / {0})", lambda a: ((a + 1.0) / a) ** 0.5),
    ("{}^2", lambda a: 1.0 * a * a),
    ("1 / {}^2", lambda a: 1.0 / (a * a)),
    ("exp({})", lambda a: np.where(a < 1.0, np.exp(a), np.nan)),
    ("{}^(1/4)", lambda a: a**0.25),
    ("{}^(-1/4)", lambda a: a**-0.25),
    ("{}^(3/2)", lambda a: a**1.5),
    ("{}^(-3/2)", lambda a: a**-1.5),
    ("{}^(1/3)", lambda a: a ** (1 / 3)),
    ("{}^(-1/3)", lambda a: a ** (-1 / 3)),
    ("ln({})", lambda a: np.log(1.0 * a)),
    ("1 / ln({})", lambda a: 1 / np.log(1.0 * a)),
    ("ln({} + 1)", lambda a: np.log(a + 1.0)),
    ("log2({})", lambda a: np.log2(1.0 * a)),
    ("sqrt(ln({}))", lambda a: np.log(1.0 * a) ** 0.5),
    ("int(sqrt({}))", lambda a: np.floor(a**0.5)),
    ("1 / int(sqrt({}))", lambda a: 1.0 / np.floor(a**0.5)),
    ("sqrt({0}) / int(sqrt({0}))", lambda a: a**0.5 / np.floor(a**0.5)),
    ("sqrt({0}) / round(sqrt({0}))", lambda a: a**0.5 / np.round(a**0.5)),
)

OF_TWO: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("sqrt({} / {})", lambda a, b: (a / b) ** 0.5),
    ("{} / {}", lambda a, b: a / b),
    ("1 / sqrt({} * {})", lambda a, b: (1.0 * a * b) ** -0.5),
    ("sqrt({} * {})", lambda a, b: (1.0 * a * b) ** 0.5),
    ("{} * {}", lambda a, b: 1.0 * a * b),
    ("1 / ({} * {})", lambda a, b: 1 / (1.0 * a * b)),
    ("{} + {}", lambda a, b: 1.0 * a + b),
    ("{} - {}", lambda a, b: 1.0 * a - b),
    ("1 / ({} + {})", lambda a, b: 1 / (1.0 * a + b)),
    ("1 / ({} - {})", lambda a, b: 1 / (1.0 * a - b)),
    ("1 / sqrt({} + {})", lambda a, b: (1.0 * a + b) ** -0.5),
    ("sqrt({0} / ({0} + {1}))", lambda a, b: (a / (1.0 * a + b)) ** 0.5),
    ("{0} / ({0} + {1})", lambda a, b: a / (1.0 * a + b)),
    ("{} / sqrt({})", lambda a, b: a * b**-0.5),
)

SYMMETRIC = frozenset({2, 3, 4, 5, 6, 8, 10})
"""Those of OF_TWO that are the same with the two exchanged."""

PLAIN_OF_ONE, PLAIN_OF_TWO = 4, 6
"""How many of the first forms may have a constant before them that is no neat number."""

SUM = re.compile(r" [+-] (?![^(]*\))")
"""A sum or difference that does not stand in parentheses."""

CLOSE, BY_CHANCE, MOST_ALIASES = 1e-9, 2e-5, 3


@dataclass(frozen=True)
class Expression:
    """A number that may depend on sizes.

    words: such as "sqrt(head_dim / query_dim)", with other sizes that were equal to these in everything measured.
    at: its value at given sizes.
    name: the words without the other sizes; the same words if it is "".
    """

    words: str
    at: Callable[[Setting], float]
    name: str = ""

    @property
    def slug(self) -> str:
        """For the names of changes: the words without spaces."""
        return (self.name or self.words).replace(" ", "")


def constant(number: float) -> Expression:
    """A number that depends on no size."""
    return Expression(f"{number:.9g}", lambda setting: number)


Form = Callable[..., Any]
"""A form of OF_ONE or of OF_TWO."""


@dataclass(frozen=True, eq=False)
class _Table:
    """The value of every expression in each of some settings: (expressions, settings)."""

    groups: tuple[tuple[str, ...], ...]
    entries: tuple[tuple[str, Form, tuple[int, ...]], ...]
    plain: NDArray[np.bool_]
    values: NDArray[np.float64]


@lru_cache(maxsize=32)
def _rows(count: int) -> list[tuple[str, Form, bool, list[tuple[int, ...]]]]:
    """Each form of so many sizes: its words, itself, whether it is plain, and the sizes that it may be of."""
    rows: list[tuple[str, Form, bool, list[tuple[int, ...]]]] = []
    for k, (words, of_one) in enumerate(OF_ONE):
        rows.append((words, of_one, k < PLAIN_OF_ONE, list(permutations(range(count), 1))))
    for k, (words, of_two) in enumerate(OF_TWO):
        pairs = combinations(range(count), 2) if k in SYMMETRIC else permutations(range(count), 2)
        rows.append((words, of_two, k < PLAIN_OF_TWO, list(pairs)))
    return [row for row in rows if row[-1]]


@lru_cache(maxsize=32)
def _entries(count: int) -> tuple[tuple[tuple[str, Form, tuple[int, ...]], ...], NDArray[np.bool_]]:
    """The entries of a table of so many sizes, and which of them are plain."""
    entries = [((words, form, one), plain) for words, form, plain, chosen in _rows(count) for one in chosen]
    return tuple(entry for entry, _ in entries), np.array([plain for _, plain in entries], bool)


@lru_cache(maxsize=256)
def _table(settings: tuple[Setting, ...]) -> _Table:
    groups: dict[tuple[float, ...], list[str]] = {}
    for name, size in SIZES.items():
        at = tuple(float(size(setting)) for setting in settings)
        if any(one not in (0.0, 1.0) for one in at):
            groups.setdefault(at, []).append(name)
    sizes = np.array(list(groups))
    with any_numbers:
        values = [
            form(*(sizes[list(one)] for one in zip(*chosen, strict=True))) for _, form, _, chosen in _rows(len(groups))
        ]
    table = np.concatenate([np.empty((0, len(settings))), *values])
    return _Table(tuple(map(tuple, groups.values())), *_entries(len(groups)), table)


def expressions_of(
    numbers: Sequence[tuple[float, Setting]], *, unit: float = 1e-13, error: float | None = None
) -> list[Expression]:
    """What a number measured at several sizes may be, the simplest first; empty if nothing fits.

    A constant, if it is the same everywhere; else a form of one size, of two, or a multiple of one of those.

    Args:
        numbers: (the number, the sizes at which it was measured).
        unit: the relative error of what the numbers were computed from; 1000 of it are allowed.
        error: the relative error of the numbers themselves, if it is known.
    """
    measured = np.array([number for number, _ in numbers], np.float64)
    if not len(measured) or not np.isfinite(measured).all():
        return []
    tolerance = max(CLOSE, 1000.0 * unit if error is None else error)
    largest = np.abs(measured).max()
    if largest == 0.0:
        return [Expression("0", lambda setting: 0.0)]
    if np.abs(measured).min() == 0.0 or len(set(np.sign(measured))) > 1:
        return []
    found: list[Expression] = []
    neatly = True
    if np.ptp(measured) <= 2 * tolerance * largest:
        words, number = neat(float(np.median(measured)), tolerance)
        neatly = len(words) <= 6 or "sqrt" in words
        found.append(Expression(words, lambda setting: number))
    settings = tuple(setting for _, setting in numbers)
    named = list(_named(measured, settings, tolerance, multiples=not found))
    return [*found, *named] if neatly else [*named, *found]


def _named(
    measured: NDArray, settings: tuple[Setting, ...], tolerance: float, *, multiples: bool
) -> Iterator[Expression]:
    table = _table(settings)
    if not len(table.values):
        return
    distinct = 1 + int((np.diff(np.sort(np.abs(measured))) > tolerance * np.abs(measured).max()).sum())
    sign, sizes = float(np.sign(measured[0])), np.abs(measured)
    with any_numbers:
        of_first = sizes[0] / table.values[:, 0]
        near = np.flatnonzero(np.abs(of_first - 1.0) <= tolerance)  # a few, for which the others are looked at
        hits = near[(np.abs(sizes / table.values[near] - 1.0) <= tolerance).all(axis=1)]
    exact = False
    for hit in hits:
        if (hit + 1) * (2 * tolerance) ** distinct < BY_CHANCE:
            exact = True
            yield from _written(table, int(hit), sign, sign, "-" if sign < 0 else "")
    if exact or not multiples or distinct < 2:
        return
    with any_numbers:
        of_last = sizes[-1] / table.values[:, -1]
        near = np.flatnonzero(np.abs(of_first - of_last) <= 4.0 * tolerance * np.abs(of_first))
        ratios = sizes / table.values[near]
        spread = np.ptp(ratios, axis=1) / np.abs(ratios).max(axis=1)
    for place in np.flatnonzero((spread <= 2 * tolerance) & np.isfinite(spread)):
        hit = near[place]
        words, number = neat(sign * float(np.median(ratios[place])), tolerance)
        tried = (hit + 1) * (100 if len(words) <= 6 else 1)
        # Numbers of small integers are quotients of some sum by accident.
        if not table.plain[hit] and (len(words) > 6 or distinct < 3):
            continue
        enough = distinct if len(words) <= 6 else distinct - 1
        if tried * (2 * tolerance) ** enough < BY_CHANCE:
            yield from _written(table, int(hit), sign, number, f"{words} * ")


def _written(table: _Table, hit: int, sign: float, factor: float, before: str) -> Iterator[Expression]:
    """The expression, and the same of other sizes that were equal to its own in all settings."""
    words, form, indices = table.entries[hit]
    groups = [table.groups[index] for index in indices]
    choices = [tuple(group[0] for group in groups)]
    for place, group in enumerate(groups):
        for other in group[1:MOST_ALIASES]:
            choices.append(tuple(other if k == place else one[0] for k, one in enumerate(groups)))
    for names in choices:
        name = words.format(*names)
        if before:
            name = f"{before}({name})" if SUM.search(name) else before + name
        others = [one for group, taken in zip(groups, names, strict=True) for one in group if one != taken]
        note = f" (or of {', '.join(others)}: equal in all that was measured)" if others else ""
        yield Expression(name + note, _at(form, names, factor), name)


def _at(form: Callable[..., Any], names: tuple[str, ...], factor: float) -> Callable[[Setting], float]:
    def at(setting: Setting) -> float:
        with any_numbers:
            return factor * float(form(*(np.float64(SIZES[name](setting)) for name in names)))

    return at
