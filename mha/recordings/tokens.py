"""Tokens: the names of the positions of a recorded call, for people who look at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mha_core import SpecError
from mha_core.errors import shown

LONGEST_TOKEN = 200
"""Most characters of a token."""

Rows = tuple[tuple[str, ...], ...]

FORM = "a list of texts, a list of such lists, or a dict of these by 'keys' and 'queries'"


@dataclass(frozen=True)
class Tokens:
    """A table of the token at each position, for the keys and the queries of recorded calls.

    Args:
        keys: sequences of token texts: one for all batch items, one for each, or one for each in each forward pass.
        queries: the same for queries; None if they are the keys' tokens.

    >>> Tokens.of(["a", "cat"])
    Tokens(keys=(('a', 'cat'),), queries=None)
    """

    keys: Rows
    queries: Rows | None = None

    @classmethod
    def of(cls, given: Any) -> Tokens:
        """Return the Tokens of `given`: Tokens, a list of texts, a list of lists, or {"keys": ..., "queries": ...}.

        Raises:
            SpecError: `given` has another form, or a token is longer than LONGEST_TOKEN characters.
        """
        if isinstance(given, Tokens):
            return given
        if isinstance(given, Mapping):
            if "keys" not in given or set(given) - {"keys", "queries"}:
                raise SpecError(f"tokens must be {FORM}. Got a dict of {shown(', '.join(map(repr, given)))}.")
            queries = given.get("queries")
            return cls(_rows(given["keys"]), None if queries is None else _rows(queries))
        return cls(_rows(given))

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as JSON values, which `of` reads."""
        rows = {"keys": self.keys} if self.queries is None else {"keys": self.keys, "queries": self.queries}
        return {side: [list(row) for row in found] for side, found in rows.items()}


def _rows(given: Any) -> Rows:
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise SpecError(f"tokens must be {FORM}. Got {shown(repr(given))}.")
    rows = [given] if isinstance(given[0], str) else given
    for row in rows:
        if not isinstance(row, Sequence) or isinstance(row, str) or not all(isinstance(one, str) for one in row):
            raise SpecError(f"tokens must be {FORM}. Got {shown(repr(row))}.")
        longest = max(map(len, row), default=0)
        if longest > LONGEST_TOKEN:
            raise SpecError(f"a token must have at most {LONGEST_TOKEN} characters. Got one of {longest}.")
    return tuple(tuple(map(str, row)) for row in rows)
