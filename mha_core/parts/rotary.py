"""Rotary positions: each pair of channels of a query or key turns by an angle that grows with its position.

    settings   Rotary, a field of AttentionConfig
    tables     (1 or B, L, r / 2): cosine and sine of each pair's angle, in float64
    rotate     (B, heads, L, d): a' = a cos - b sin, b' = b cos + a sin  (arXiv:2104.09864, equation 34)

Values never turn. A cache holds keys that are turned already. What a call says of positions: `mha_core.call.rotary`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from mha_core.errors import SpecError
from mha_core.parts.frequencies import FrequencyRule, plain, rule_of

Start = Literal["first", "last"]


@dataclass(frozen=True)
class Rotary:
    """The settings of rotary positions: how queries and keys turn. Frozen; checked when they are made.

    Args:
        width: r, how many channels of each head turn; even. Default: all of them.
        interleaved: whether channels (2 k, 2 k + 1) are a pair, as in Meta's Llama; else (k, k + r / 2), as in
            Hugging Face's.
        start: whether the "first" or the "last" r channels of a head turn.
        base: theta: pair k of a query at position p turns by p * theta ** (-2 k / r).
        rule: a rule of `mha_core.parts.frequencies`, or a mapping such as `rope_parameters` that names one.
        sections: how many pairs turn by each coordinate (axis) of positions (axes, B, L), r / 2 in all. None: one axis.
        sections_interleaved: whether axes take turns over the pairs (Qwen3-VL), else each has its pairs in a row
            (Qwen2-VL). Not to be confused with `interleaved`.
        max_positions: all positions are below it, which is checked where they can be read. Default: no limit.

    Raises:
        SpecError: a field that is out of its range.

    >>> Rotary(width=4, interleaved=True, rule={"rope_type": "linear", "factor": 2.0}).base
    10000.0
    >>> Rotary(width=3)
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: rotary.width must be even and positive. Got 3.
    """

    width: int | None = None
    interleaved: bool = False
    start: Start = "first"
    base: float = 10000.0
    rule: FrequencyRule | Mapping[str, Any] | None = None
    sections: tuple[int, ...] | None = None
    sections_interleaved: bool = False
    max_positions: int | None = None

    def __post_init__(self) -> None:
        if self.width is not None and not (_is_count(self.width) and self.width % 2 == 0):
            raise SpecError(f"rotary.width must be even and positive. Got {self.width!r}.")
        for name in ("interleaved", "sections_interleaved"):
            if not isinstance(getattr(self, name), bool):
                raise SpecError(f"rotary.{name} must be True or False. Got {getattr(self, name)!r}.")
        if self.start not in get_args(Start):
            raise SpecError(f"rotary.start must be one of {', '.join(get_args(Start))}. Got {self.start!r}.")
        base = self.base
        if isinstance(base, bool) or not isinstance(base, (int, float)) or not (math.isfinite(base) and base > 1.0):
            raise SpecError(f"rotary.base must be a number above 1. Got {base!r}.")
        object.__setattr__(self, "base", float(base))  # the dataclass is frozen
        object.__setattr__(self, "rule", rule_of(self.rule))
        if self.sections is not None:
            sections = self.sections
            if not (isinstance(sections, (list, tuple)) and sections and all(map(_is_count, sections))):
                raise SpecError(f"rotary.sections must be numbers of pairs, one an axis. Got {sections!r}.")
            object.__setattr__(self, "sections", tuple(sections))
        if self.max_positions is not None and not _is_count(self.max_positions):
            raise SpecError(f"rotary.max_positions must be a positive integer. Got {self.max_positions!r}.")

    @classmethod
    def of(cls, given: Rotary | Mapping[str, Any] | bool | None) -> Rotary | None:
        """Return the settings from a mapping of fields; the defaults for True; None for False."""
        if given is None or isinstance(given, Rotary):
            return given
        if isinstance(given, bool):
            return cls() if given else None
        if not isinstance(given, Mapping):
            raise SpecError(f"rotary must be Rotary settings, a mapping of their fields, or None. Got {given!r}.")
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise SpecError(f"rotary has no field {name!r} (known: {', '.join(known)})")
        return cls(**given)

    def within(self, head_dim: int) -> Rotary:
        """Return these settings for heads of this width, with `width` filled in. SpecError if they do not fit."""
        width = head_dim if self.width is None else self.width
        if width > head_dim or width % 2:
            raise SpecError(f"rotary.width must be even and at most head_dim={head_dim}. Got {width}.")
        if self.sections is not None and 2 * sum(self.sections) != width:
            raise SpecError(f"rotary.sections must add up to {width // 2}, half of width. Got {self.sections}.")
        settings = replace(self, width=width)
        settings.frequencies(1)  # a rule whose lists have another length says so now
        return settings

    @property
    def layout(self) -> Rotary:
        """Return a Rotary with only `width`, `interleaved` and `start`. A call with its own tables needs no more."""
        return Rotary(self.width, self.interleaved, self.start)

    @property
    def axes(self) -> int:
        """Return how many axes positions have."""
        return len(self.sections or (1,))

    @property
    def is_per_position(self) -> bool:
        """Return whether each angle depends on its own position alone, and not on the length of the sequence."""
        rule = rule_of(self.rule)
        return rule is None or not rule.NEEDS_LENGTH

    def frequencies(self, length: int) -> tuple[NDArray[np.float64], float]:
        """Return inverse frequencies (r / 2,) and attention factor at this sequence length; `width` must be set."""
        width, rule = self.width or 0, rule_of(self.rule)
        return (plain(self.base, width), 1.0) if rule is None else rule.frequencies(self.base, width, length)

    def turning(self, head_dim: int) -> slice:
        """Return the channels of a head that turn.

        >>> Rotary(width=4, start="last").turning(head_dim=10)
        slice(6, 10, None)
        """
        width = self.width or head_dim
        return slice(0, width) if self.start == "first" else slice(head_dim - width, head_dim)


class Table(NamedTuple):
    """Cosine and sine, each (1 or B, L, r / 2), of the angle by which each pair turns at each position."""

    cos: Any
    sin: Any


def tables(settings: Rotary, positions: NDArray[np.integer], length: int) -> Table:
    """Return cosine and sine in float64, times the attention factor, (1 or B, L, r / 2).

    Args:
        settings: rotary settings with a `width`, as in every AttentionConfig.
        positions: integers (L,) or (B, L); (axes, B, L) with several axes.
        length: the length of the sequence, for the rules that need it.

    >>> tables(Rotary(width=4), np.array([0, 1]), length=2).sin.round(4)
    array([[[0.    , 0.    ],
            [0.8415, 0.01  ]]])
    """
    inverse, factor = settings.frequencies(length)
    if settings.sections is None:
        turned = (positions if positions.ndim == 2 else positions[None])[..., None]
    else:
        turned = np.moveaxis(positions[axis_of_pairs(settings)], 0, -1)
    angle = turned * inverse
    return Table(factor * np.cos(angle), factor * np.sin(angle))


def axis_of_pairs(settings: Rotary) -> NDArray[np.int64]:
    """(r / 2,): the axis of positions that each pair turns with.

    >>> axis_of_pairs(Rotary(width=12, sections=(2, 2, 2))), axis_of_pairs(
    ...     Rotary(width=12, sections=(4, 1, 1), sections_interleaved=True)
    ... )
    (array([0, 0, 1, 1, 2, 2]), array([0, 1, 2, 0, 0, 0]))
    """
    sections = settings.sections or (1,)
    if not settings.sections_interleaved:
        return np.repeat(np.arange(len(sections)), sections)
    pairs = np.arange(sum(sections))
    axis = pairs % len(sections)
    return np.where(pairs < len(sections) * np.array(sections)[axis], axis, 0)


def rotate(x: NDArray, table: Table, settings: Rotary) -> NDArray:
    """(B, heads, L, d): each pair (a, b) of channels becomes (a cos - b sin, b cos + a sin); the others stay.

    >>> quarter = Table(np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    >>> rotate(np.array([[[[1.0, 2.0, 9.0]]]]), quarter, Rotary(width=2))
    array([[[[-2.,  1.,  9.]]]])
    """
    a, b = pairs(x, settings)
    cos, sin = table.cos[:, None], table.sin[:, None]
    turned = np.array(x)
    a_out, b_out = pairs(turned, settings)
    a_out[...], b_out[...] = a * cos - b * sin, b * cos + a * sin
    return turned


def rotate_back(gradient: NDArray, table: Table, settings: Rotary) -> NDArray:
    """(B, heads, L, d): the transpose of `rotate`, through which a gradient goes."""
    return rotate(gradient, Table(table.cos, -table.sin), settings)


def pairs(x: NDArray, settings: Rotary) -> tuple[NDArray, NDArray]:
    """Return views (..., r / 2) of the first and the second channels of all pairs.

    >>> pairs(np.arange(5), Rotary(width=4)), pairs(np.arange(5), Rotary(width=4, interleaved=True, start="last"))
    ((array([0, 1]), array([2, 3])), (array([1, 3]), array([2, 4])))
    """
    turning = x[..., settings.turning(x.shape[-1])]
    if settings.interleaved:
        return turning[..., 0::2], turning[..., 1::2]
    half = turning.shape[-1] // 2
    return turning[..., :half], turning[..., half:]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


# What given tables of rotary positions say: at which positions a layer's settings make them, and with which base.
#
# A call with tables has no positions, so settings with another base would look as right. Here they are compared.


FURTHEST = 1 << 15
"""Positions below this one are tried, or below `max_positions`."""

CHUNK = 64
"""So many tokens are looked up at a time."""

ROUNDING = 2.0**-24
"""Of the angles, which models compute in float32 whatever they are rounded to."""


UNITS = tuple(2.0**-bits for bits in (53, 24, 11, 8))
"""The unit roundoffs of float64, float32, float16 and bfloat16, in which models may hand tables down."""


def positions_in(table: Table, settings: Rotary, key_len: int) -> NDArray[np.int64] | None:
    """Return the positions (1 or B, L) for which `tables` gives this table; None if no positions do.

    Args:
        table: cos and sin, (1 or B, L, r / 2), in NumPy.
        settings: rotary settings with a `width`, and with one axis of positions.
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
    """Return the base for which `tables`, without a frequency rule, gives this table; None if no base is found.

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
    """Return a phrase that names the base and the frequency rule (or "no rule").

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
