"""Given: an array with a Python expression for it, so that a call can be both made and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Given:
    """An array, and a Python expression (`text`) that gives it in printed code.

    >>> x = Given(np.arange(6).reshape(2, 3), "x")
    >>> x[:, 1:].text, x[:, 1:].array.shape
    ('x[:, 1:]', (2, 2))
    """

    array: NDArray
    text: str

    def __getitem__(self, key: Any) -> Given:
        keys = key if isinstance(key, tuple) else (key,)
        while keys and keys[-1] == slice(None):
            keys = keys[:-1]
        if not keys:
            return self
        return Given(self.array[keys], f"{self.text}[{', '.join(map(_key, keys))}]")

    def part(self, axis: int, start: int | None, stop: int | None = None) -> Given:
        """Return the part [start:stop] along an axis."""
        return self[(*(slice(None),) * axis, slice(start, stop))]


def _key(key: Any) -> str:
    if not isinstance(key, slice):
        return str(key)
    step = "" if key.step is None else f":{key.step}"
    return f"{'' if key.start is None else key.start}:{'' if key.stop is None else key.stop}{step}"


def literal(array: NDArray) -> Given:
    """Return a small array as a Given, whose text writes out its numbers.

    >>> literal(np.array([[True, False]])).text
    'np.array([[True, False]])'
    >>> literal(np.ones((2, 3), bool)).text
    'np.ones((2, 3), bool)'
    """
    name = array.dtype.name
    if array.size and (array == array.flat[0]).all() and array.flat[0] in (0, 1):
        made = "ones" if array.flat[0] else "zeros"
        return Given(array, f"np.{made}({array.shape}, {'bool' if name == 'bool' else repr(name)})")
    dtype = "" if name in ("bool", "int64", "float64") else f", {name!r}"
    return Given(array, f"np.array({array.tolist()}{dtype})".replace("inf", "np.inf"))


@dataclass(frozen=True)
class Ref:
    """A value of a framework's own class (such as a cache), and a Python expression (`text`) that gives it."""

    value: Any
    text: str


def joined(parts: list[Given], axis: int) -> Given:
    """Return arrays joined along an axis."""
    text = f"np.concatenate([{', '.join(one.text for one in parts)}], {axis})"
    return Given(np.concatenate([one.array for one in parts], axis), text)


def shown(value: Any) -> str:
    """Return an argument as code. An array is written as `t(...)`, which converts it to the framework's array."""
    if isinstance(value, Given):
        return f"t({value.text})"
    if isinstance(value, Ref):
        return value.text
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {shown(one)}" for key, one in value.items()) + "}"
    return repr(value)
