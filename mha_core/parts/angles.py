"""What given tables of rotary positions say: at which positions a layer's settings make them, and with which base.

A call with tables has no positions, so settings with another base would look as right. Here they are compared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mha_core.parts.frequencies import rule_of
from mha_core.parts.rotary import Rotary, Table, tables

FURTHEST = 1 << 15
"""Positions below this one are tried, or below `max_positions`."""

CHUNK = 64
"""So many tokens are looked up at a time."""

ROUNDING = 2.0**-24
"""Of the angles, which models compute in float32 whatever they are rounded to."""


UNITS = tuple(2.0**-bits for bits in (53, 24, 11, 8))
"""The unit roundoffs of float64, float32, float16 and bfloat16, in which models may hand tables down."""


def positions_in(table: Table, settings: Rotary, key_len: int) -> NDArray[np.int64] | None:
    """Return the positions (1 or B, L) that give this table by these settings; None if there are none.

    Args:
        table: cos and sin, (1 or B, L, r / 2), in NumPy.
        settings: with `width` filled in; of one axis.
        key_len: how many keys the call has, for rules that need the length of the sequence.

    >>> settings = Rotary(width=6, base=50.0)
    >>> made = tables(settings, np.array([0, 1, 4]), length=5)
    >>> positions_in(made, settings, 5), positions_in(made, replace(settings, base=60.0), 5)
    (array([[0, 1, 4]]), None)
    """
    cos, sin = (np.asarray(x, dtype=np.float64) for x in table)
    unit = _unit(cos, sin)
    rows = np.concatenate([cos, sin], axis=-1).reshape(-1, 2 * cos.shape[-1])
    if cos.shape[-1] != (settings.width or 0) // 2 or settings.axes > 1 or not len(rows):
        return None
    rule = rule_of(settings.rule)
    lengths = (1, key_len) if rule is not None and rule.NEEDS_LENGTH else (1,)
    tried = np.arange(settings.max_positions or FURTHEST)
    for length in lengths:
        made = np.concatenate(tables(settings, tried, length), axis=-1)[0]
        squares, size = (made**2).sum(axis=-1), np.abs(made).max(initial=1.0)  # with the attention factor
        found: list[int] = []
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            nearest = np.argmin(squares - 2 * (some @ made.T), axis=-1)
            allowed = size * (2 * unit + 4 * ROUNDING * (1 + nearest))
            if (np.abs(made[nearest] - some) > allowed[:, None]).any():
                break
            found += nearest.tolist()
        if len(found) == len(rows):
            return np.array(found).reshape(cos.shape[:2])
    return None


def base_in(table: Table, settings: Rotary) -> float | None:
    """Return the base that gives the angles of this table, without a rule; None if none is found.

    >>> base_in(tables(Rotary(width=6, base=50.0), np.array([[0, 1]]), length=2), Rotary(width=6))
    50.0
    """
    cos, sin = (np.asarray(x, dtype=np.float64) for x in table)
    pairs = cos.shape[-1]
    angle = np.arctan2(sin, cos).reshape(-1, pairs)
    ones = angle[np.abs(angle[:, 0] - 1.0) < 0.02]  # of position 1, whose first pair turns by one radian
    if pairs < 2 or not len(ones) or ones[0, -1] <= 0.0:
        return None
    guess = float(ones[0, -1] ** (-pairs / (pairs - 1)))
    for digits in (1, 2, 3, 4, 6, 9):  # a base is a round number
        base = float(f"{guess:.{digits}g}")
        if base > 1.0 and positions_in(table, replace(settings, base=base, rule=None), 1) is not None:
            return base
    return None


def in_words(settings: Rotary) -> str:
    """Return the base in words, and the rule of frequencies if there is one.

    >>> in_words(Rotary(base=5e5)), in_words(Rotary(rule={"rope_type": "linear", "factor": 4.0}))
    ('base 500000 and no rule', "base 10000 and rule 'linear'")
    """
    rule = rule_of(settings.rule)
    return f"base {settings.base:g} and {'no rule' if rule is None else f'rule {rule.rope_type!r}'}"


def _unit(*arrays: NDArray[np.float64]) -> float:
    """The unit roundoff of the narrowest dtype that holds these numbers."""
    for unit in reversed(UNITS):
        bits = round(-np.log2(unit))
        if all(np.array_equal(np.ldexp(np.rint(np.ldexp(m, bits)), e), x) for x in arrays for m, e in [np.frexp(x)]):
            return unit
    return UNITS[0]
