"""Where the queries and new keys of a call stand, and the tables of their angles in a layer with rotary positions.

Without a word from the caller, query i stands at query_offset + i, and new key j at Lp + j.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mha_core.call.arguments import ArraySpec, CallSizes, settled
from mha_core.errors import SpecError
from mha_core.parts.frequencies import rule_of
from mha_core.parts.rotary import Rotary, Table, axis_of_pairs, tables


class Tables(NamedTuple):
    """A pair of rotary `Table`s for one call: of its queries, and of its new keys. None and None without rotary."""

    queries: Any = None
    keys: Any = None

    def map(self, convert: Callable[[Any], Any]) -> Tables:
        """Return a copy with `convert(array)` in place of each array. A table in both places is converted once."""
        queries = Table(*map(convert, self.queries))
        return Tables(queries, queries if self.keys is self.queries else Table(*map(convert, self.keys)))


TABLES = ("cos", "sin", "key_cos", "key_sin")
"""The fields of RotaryInputs that are tables of angles: floats of the dtype of the queries."""

POSITIONS = ("positions", "key_positions")
"""Those that hold an integer for each query or new key."""

ARRAYS = (*POSITIONS, *TABLES)
"""All fields: arrays, each of them."""


@dataclass(frozen=True, eq=False)
class RotaryInputs:
    """The positions of a call's queries and new keys, or tables made of them; arrays of NumPy or of one framework.

    Args:
        positions: integers >= 0 for the queries, (Lq,) or (B, Lq). If each has several coordinates: (axes, B, Lq).
        key_positions: the new keys' positions, likewise. Default: `positions`, if Lq is the number of new keys.
        cos, sin: tables in place of positions: (Lq, r / 2) or (1 or B, Lq, r / 2), if r channels of a head turn. The
            attention factor, if any, is in them already. A token without rotation has cos 1 and sin 0.
        key_cos, key_sin: the same for the new keys. Default: `cos` and `sin`; then Lq must be the number of new keys.

    Raises:
        SpecError: a list does not make an array.
    """

    positions: Any = None
    key_positions: Any = None
    cos: Any = None
    sin: Any = None
    key_cos: Any = None
    key_sin: Any = None

    def __post_init__(self) -> None:
        for name in ARRAYS:
            array = settled(name, getattr(self, name))
            if array is not getattr(self, name):
                object.__setattr__(self, name, array)  # the dataclass is frozen

    @classmethod
    def of(cls, positions: Any = None, rotary: Any = None) -> RotaryInputs | None:
        """Return the arguments of a layer's call as RotaryInputs; None if there are none.

        Args:
            positions: an array or a list; or a tuple of two, for the queries and for the new keys.
            rotary: a tuple (cos, sin), or two such tuples in one, for queries and new keys; or RotaryInputs.

        >>> RotaryInputs.of(positions=([4], [0, 1])).key_positions
        array([0, 1])
        """
        if positions is None and (rotary is None or isinstance(rotary, cls)):
            return rotary
        of_queries, of_keys = positions if _is_pair(positions) else (positions, None)
        if rotary is None:
            return cls(of_queries, of_keys)
        if not _is_pair(rotary):
            raise SpecError(f"rotary must be a tuple (cos, sin), or a tuple of two such. Got {type(rotary).__name__}.")
        first, second = rotary if _is_pair(rotary[0]) else (rotary, (None, None))
        (cos, sin), (key_cos, key_sin) = first, second
        return cls(of_queries, of_keys, cos, sin, key_cos, key_sin)

    def map_arrays(self, convert: Callable[[str, Any], Any]) -> RotaryInputs:
        """Return these inputs with `convert(name, array)` in place of every array."""
        given = {name: getattr(self, name) for name in ARRAYS}
        return RotaryInputs(**{name: x if x is None else convert(name, x) for name, x in given.items()})

    def tables(self) -> Tables:
        """Return the tables that are given, each of rank 3."""
        queries, keys = (
            Table(*(x if x is None or len(x.shape) == 3 else x[None] for x in table))
            for table in ((self.cos, self.sin), (self.key_cos, self.key_sin))
        )
        return Tables(queries, queries if keys.cos is None else keys)

    @property
    def has_tables(self) -> bool:
        """Return whether tables of angles are given, in place of positions."""
        return any(getattr(self, name) is not None for name in TABLES)

    @property
    def is_placed(self) -> bool:
        """Return whether positions or tables are given. If not, queries count from `query_offset`, new keys from Lp."""
        return self.positions is not None or self.has_tables


PLACES = tuple(signature(RotaryInputs.of).parameters)
"""The arguments of a layer's call that become RotaryInputs."""


def positions_of(
    given: RotaryInputs | None, query_offset: Any, sizes: CallSizes
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Return the positions of queries and new keys: the given ones, else `query_offset` + i and Lp + j."""
    if given is not None and given.positions is not None:
        queries = np.asarray(given.positions)
        return queries, queries if given.key_positions is None else np.asarray(given.key_positions)
    offset = np.asarray(query_offset, dtype=np.int64).reshape(-1, 1)
    queries = offset + np.arange(sizes.query_len)
    keys = np.arange(sizes.past_len, sizes.key_len)[None]
    return queries, queries if np.array_equal(queries, keys) else keys  # one array, so that there is one table


def tables_of_call(settings: Rotary, given: RotaryInputs | None, query_offset: Any, sizes: CallSizes) -> Tables:
    """Return the rotary tables of a call in NumPy: the given ones, else tables made from its positions in float64."""
    if given is not None and given.has_tables:
        return given.tables()
    of_queries, of_keys = positions_of(given, query_offset, sizes)
    if settings.axes > 1:
        of_queries, of_keys = (
            x if x.ndim == 3 else np.broadcast_to(x, (settings.axes, *x.shape)) for x in (of_queries, of_keys)
        )
    check_positions(settings, of_queries, of_keys)
    length = 1 + max(int(of_queries.max(initial=0)), int(of_keys.max(initial=0)), sizes.past_len - 1)
    queries = tables(settings, of_queries, length)
    return Tables(queries, queries if of_keys is of_queries else tables(settings, of_keys, length))


def check_rotary(
    given: RotaryInputs,
    settings: Rotary | None,
    sizes: CallSizes,
    dtype: str,
    describe: Callable[[str, Any], ArraySpec],
) -> None:
    """Raise SpecError unless positions or tables fit a call, by shapes and dtypes alone.

    Args:
        given: the positions or tables of the call; without any array they always fit.
        settings: the layer's rotary settings; None if it has no rotary positions.
        sizes, dtype: the sizes of the call, and the dtype of its queries.
        describe: (name, array) -> ArraySpec; raises SpecError for what is no array.
    """
    present = [name for name in ARRAYS if getattr(given, name) is not None]
    if not present:
        return
    if settings is None:
        raise SpecError("positions and rotary tables belong to a layer with rotary positions. Got rotary=None.")
    if given.has_tables and not set(present) <= set(TABLES):
        raise SpecError("a call has positions or rotary tables, not both.")
    for one, other in (("cos", "sin"), ("sin", "cos"), ("key_cos", "key_sin"), ("key_sin", "key_cos")):
        if one in present and other not in present:
            raise SpecError(f"{one} and {other} belong together. {other} is missing.")
    of_queries, of_keys = ("cos", "key_cos") if given.has_tables else ("positions", "key_positions")
    if of_queries not in present:
        raise SpecError(f"{of_keys} belongs to {of_queries}, which is missing.")
    batch, query_len, key_len, past_len = sizes[:4]
    new_len = None if key_len is None or past_len is None else key_len - past_len
    if of_keys not in present and not _may_be(query_len, new_len):
        raise SpecError(
            f"{of_queries} of queries hold for keys only if they are as many. Got {query_len} queries and {new_len} "
            f"new keys: give a pair."
        )
    for name in present:
        shape, kind = describe(name, getattr(given, name))
        length = new_len if name.startswith("key") else query_len
        if name in TABLES:
            wanted: tuple[Any, ...] = (batch, length, (settings.width or 0) // 2)
            fits = _fits(shape, wanted[1:]) or _fits(shape, wanted) or _fits(shape, (1, *wanted[1:]))
            if kind != dtype:
                raise SpecError(f"{name} must have the dtype of queries, {dtype}. Got {kind}.")
        elif settings.axes > 1:
            wanted = (settings.axes, batch, length)
            fits = _fits(shape, wanted) or _fits(shape, (wanted[0], 1, length))
        else:
            wanted = (batch, length)
            fits = _fits(shape, wanted[1:]) or _fits(shape, wanted)
        if name not in TABLES and not kind.startswith(("int", "uint")):
            raise SpecError(f"{name} must be integers. Got dtype {kind}.")
        if not fits:  # only then are sizes read as text: a compiler keeps a symbol that it is not asked to write
            one, both = ("(L, r / 2)", "(B, L, r / 2)") if name in TABLES else ("(L,)", "(B, L)")
            named = f"{one}={wanted[1:]} or {both}={wanted}"
            if name in POSITIONS and settings.axes > 1:
                named = f"(axes, B, L)={wanted}"
            raise SpecError(f"{name} must have shape {named}. Got {shape}.")


def _fits(shape: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    return len(shape) == len(wanted) and all(map(_may_be, shape, wanted))


def _may_be(size: Any, wanted: Any) -> bool:
    return size is None or wanted is None or bool(size == wanted)


@lru_cache(maxsize=16)
def counted_tables(settings: Rotary, query_offset: int, sizes: CallSizes) -> Tables:
    """Return the rotary tables of a call whose query i stands at `query_offset` + i. The last results are cached."""
    made = tables_of_call(settings, None, query_offset, sizes)
    for table in made:
        for array in table:
            array.flags.writeable = False
    return made


@lru_cache(maxsize=4)
def traced_frequencies(settings: Rotary) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
    """Return the axis and the frequency of each rotary pair, both (r / 2,), and the attention factor.

    With positions (axes, B, L), pair k turns by frequency[k] * positions[axis[k]].

    Raises:
        SpecError: the frequencies depend on the length of the sequence, which a compiler that traces does not know.
    """
    rule = rule_of(settings.rule)
    if rule is not None and rule.NEEDS_LENGTH:
        raise SpecError(
            f"positions must be known while rotary has rule {rule.rope_type!r}, or give the tables themselves: "
            "rotary=(cos, sin). A compiler traces these."
        )
    return (axis_of_pairs(settings), *settings.frequencies(1))


DIGITS, BASE = 4, 256
"""A position is a number of so many digits to this base."""


@lru_cache(maxsize=4)
def digit_tables(settings: Rotary) -> Table:
    """Return cosine and sine (DIGITS, BASE, r / 2) of angles digit * 256 ** place * frequency, by place, digit, pair.

    In float32, position * frequency is too coarse. So callers combine the float64 tables of a position's base-256
    digits: cos(a + b) = cos a cos b - sin a sin b, and sin(a + b) = sin a cos b + cos a sin b.

    Raises:
        SpecError: as for `traced_frequencies`.
    """
    _, inverse, factor = traced_frequencies(settings)
    added = np.arange(BASE) * float(BASE) ** np.arange(DIGITS)[:, None]
    angle = added[..., None] * inverse
    factors = np.where(np.arange(DIGITS) == 0, factor, 1.0)[:, None, None]
    return Table(factors * np.cos(angle), factors * np.sin(angle))


def check_positions(settings: Rotary, *positions: NDArray[np.integer]) -> None:
    """Raise SpecError unless all positions are at least 0, and below `max_positions` if there is one."""
    limit = settings.max_positions
    for numbers in positions:
        lowest, highest = int(numbers.min(initial=0)), int(numbers.max(initial=0))
        if lowest < 0 or (limit is not None and highest >= limit):
            within = "at least 0" if limit is None else f"in 0..{limit - 1} (rotary.max_positions)"
            raise SpecError(f"positions must be {within}. Got {lowest if lowest < 0 else highest}.")


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2
