"""Text in JSON or TOML from a file that anybody may have made: read whole or refused in one line."""

import json
import math
import tomllib
from collections.abc import Sequence
from typing import Any, NoReturn

from mha_core.errors import SpecError, one_line, shown

DEEPEST = 64
"""Most lists and objects that may be nested."""

LARGEST_INTEGER = 2**63 - 1
"""The largest integer that is accepted: no size, position or count is larger."""


def parse_json(text: str | bytes, *, what: str, any_integer: bool = False) -> Any:
    """Parse a JSON text that may come from anybody, and return its value.

    Args:
        what: the name of the text in messages, with the file's name.
        any_integer: whether integers may be beyond 64 bits, such as 10**30 for "no limit".

    Raises:
        SpecError: it is not JSON; has a key twice; holds NaN, an infinity, an integer beyond 64 bits or a
            number beyond float64; or is nested deeper than DEEPEST.

    >>> parse_json('{"num_heads": 2}', what="config.json")
    {'num_heads': 2}
    >>> parse_json('{"num_heads": 2, "num_heads": 4}', what="config.json")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: config.json is not JSON that can be read: 'num_heads' stands there twice
    """
    try:
        found = json.loads(
            text,
            parse_int=int if any_integer else _integer,
            parse_float=_number,
            parse_constant=_no_number,
            object_pairs_hook=_object,
        )
    except SpecError as error:
        raise SpecError(f"{what} is not JSON that can be read: {error}") from error
    except RecursionError as error:
        raise SpecError(f"{what} is not JSON that can be read: it is nested deeper than {DEEPEST}") from error
    except (ValueError, MemoryError) as error:  # not JSON, not UTF-8
        raise SpecError(f"{what} is not JSON: {one_line(error)}") from error
    _check_depth(found, what, any_integer=any_integer)
    return found


def parse_json_object(text: str | bytes, *, what: str, any_integer: bool = False) -> dict[str, Any]:
    """Parse a text as `parse_json` does, and raise SpecError unless it is an object."""
    found = parse_json(text, what=what, any_integer=any_integer)
    if not isinstance(found, dict):
        raise SpecError(f"{what} must be a JSON object. Got {shown(repr(found))}.")
    return found


def parse_toml(text: str, *, what: str) -> dict[str, Any]:
    """Parse a TOML text that may come from anybody, and return its table. Raises SpecError as `parse_json` does.

    >>> parse_toml("heads = 1e400", what="mine.toml")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: mine.toml is no TOML that can be read: 1e400 is beyond the range of numbers
    """
    try:
        found = tomllib.loads(text, parse_float=_number)
    except SpecError as error:
        raise SpecError(f"{what} is no TOML that can be read: {error}") from error
    except RecursionError as error:
        raise SpecError(f"{what} is no TOML that can be read: it is nested deeper than {DEEPEST}") from error
    except (ValueError, MemoryError) as error:
        raise SpecError(f"{what} is no TOML: {one_line(error)}") from error
    _check_depth(found, what)
    return found


def _integer(text: str) -> int:
    # Looked at before it is made: that takes time that grows with the square of its length.
    if len(text) > 20 or abs(int(text)) > LARGEST_INTEGER:
        raise SpecError(f"{shown(text, 40)} is beyond the range of integers, 64 bits")
    return int(text)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise SpecError(f"{shown(text, 40)} is beyond the range of numbers")
    return number


def _no_number(text: str) -> NoReturn:
    raise SpecError(f"{text} is no number in JSON")


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise SpecError(f"{shown(repr(name))} stands there twice")
        found[name] = value
    return found


def _check_depth(found: Any, what: str, *, any_integer: bool = False) -> None:
    """SpecError if it is nested deeper than DEEPEST, or (in TOML) holds an integer beyond 64 bits."""
    level, depth = [found], 0
    while level:
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, int) and abs(value) > LARGEST_INTEGER and not any_integer:
                raise SpecError(f"{what} holds an integer of {value.bit_length()} bits; at most 64 can be read")
        depth += 1
        if depth > DEEPEST and any(isinstance(value, dict | list) for value in level):
            raise SpecError(f"{what} is nested deeper than {DEEPEST}")
        level = inner
