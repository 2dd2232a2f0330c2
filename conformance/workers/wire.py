"""Messages between our processes and those of frameworks and subjects, as bytes: reading them runs no code.

A message is one safetensors file: JSON in its metadata, and the bytes of all arrays. A value that JSON lacks is an
object of one key, its kind: "tuple", "dict", "array", "class" or "error". A message can only make objects of
classes that `sendable` was called with.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.subjects.ask import CannotExpress, SubjectFailed, Turn
from conformance.subjects.function import OtherDtype
from conformance.subjects.handout import copy_in_layout
from mha_core import (
    AttentionConfig,
    AttentionInputs,
    AttentionMask,
    BackendError,
    ProjectionBias,
    QueryKeyNorm,
    Rotary,
    RotaryInputs,
    SpecError,
)
from mha_core.backend import SoftmaxKernel
from mha_core.errors import BackendNotInstalled, ErrorElsewhere, one_line
from mha_core.parts.frequencies import RULES

Class = TypeVar("Class", bound=type)

TEXT, BYTES = "message", "bytes"
"""Where the metadata has the text; the name of the one tensor, the bytes of all arrays one after the other."""

ALIGNED = 16
"""Each array begins at a multiple of so many bytes, as NumPy wants it."""

DTYPE = re.compile(r"[<>|=][?biufcmMSU]\d{1,4}(\[\w{1,8}\])?")
"""The dtypes of arrays that are sent: numbers, times and texts; no objects."""

_classes: dict[str, type] = {}


class Unreadable(ValueError):
    """Bytes that are no message; the text says why, in one line."""


def sendable(cls: Class) -> Class:
    """Mark a class as sendable and return it; a decorator for dataclasses, and for errors that have only a text."""
    _classes[cls.__name__] = cls
    return cls


DATA = (
    *(AttentionConfig, AttentionInputs, AttentionMask, Precision, Problem, ProjectionBias, SoftmaxKernel, Turn),
    *(RotaryInputs, Rotary, QueryKeyNorm, *RULES.values()),
)
ERRORS = (BackendError, BackendNotInstalled, CannotExpress, ErrorElsewhere, OtherDtype, SpecError, SubjectFailed)
_classes.update({cls.__name__: cls for cls in (*DATA, *ERRORS)})


@cache
def _is_sent(dtype: np.dtype[Any]) -> bool:
    return DTYPE.fullmatch(dtype.str) is not None and np.dtype(dtype.str) == dtype


def is_sendable(array: NDArray) -> bool:
    """Return whether an array can be sent: it holds no objects, and its dtype is NumPy's own."""
    return _is_sent(array.dtype)


@dataclass(frozen=True)
class Together:
    """A value to send. Arrays in it with equal bits are sent once, and received as one array."""

    value: Any


def dumps(value: Any) -> bytes:
    """Return a value as bytes. An array that occurs at two places is one array on the other side too.

    Raises:
        TypeError: it holds something that can't be sent.

    >>> loads(dumps({"a": (1, float("inf")), 2: None}))
    {'a': (1, inf), 2: None}
    """
    from safetensors.numpy import save

    writer = _Writer(isinstance(value, Together))
    text = json.dumps([writer.plain(value.value if isinstance(value, Together) else value), writer.forms])
    data = np.frombuffer(b"".join(writer.parts), np.uint8)
    return save({BYTES: data}, metadata={TEXT: text})


def loads(data: bytes, *, layouts: bool = False) -> Any:
    """Return the value in the bytes that `dumps` made.

    Args:
        data: the bytes; they may come from anybody.
        layouts: whether arrays keep the strides of the sent arrays. Only for trusted data: strides can feign any size.

    Raises:
        Unreadable: the bytes are no message of `dumps`.
    """
    from safetensors.numpy import load

    try:
        header = int.from_bytes(data[:8], "little")
        value, forms = json.loads(json.loads(data[8 : 8 + header])["__metadata__"][TEXT])
        return _Reader(load(data)[BYTES], forms, layouts).value(value)
    except (Exception, RecursionError) as error:
        raise Unreadable(one_line(error)) from error


class _Writer:
    """Attributes: parts: the bytes of the arrays; forms: dtype, shape, strides and first byte of each."""

    def __init__(self, together: bool) -> None:
        self._same: dict[Any, int] | None = {} if together else None
        self.parts: list[bytes] = []
        self.forms: list[tuple[str, tuple[int, ...], tuple[int, ...] | None, int]] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[NDArray] = []  # so that no other array gets the id of one
        self._end = 0

    def plain(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.ndarray):
            return {"array": self._array(value)}
        if isinstance(value, np.generic):
            return self.plain(value.item())
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self.plain(item) for item in value]}
        if isinstance(value, Mapping):
            return {"dict": [[self.plain(key), self.plain(item)] for key, item in value.items()]}
        name = type(value).__name__
        if _classes.get(name) is not type(value):
            raise TypeError(f"a {name} can't be sent")
        if isinstance(value, Exception):
            return {"error": [name, str(value)]}
        given: Any = value
        named = {field.name: self.plain(getattr(value, field.name)) for field in fields(given) if field.init}
        return {"class": [name, named]}

    def _array(self, array: NDArray) -> int:
        number = self._numbers.get(id(array))
        if number is None:
            if not is_sendable(array):
                raise TypeError(f"an array of dtype {array.dtype} can't be sent")
            number = self._numbers[id(array)] = self._new(array)
            self._kept.append(array)
        return number

    def _new(self, array: NDArray) -> int:
        data = array.tobytes()
        if self._same is not None:
            key = array.dtype.str, array.shape, data
            if (number := self._same.setdefault(key, len(self.forms))) < len(self.forms):
                return number
        strides = None if array.flags.c_contiguous else array.strides
        self.forms.append((array.dtype.str, array.shape, strides, self._end))
        self.parts += [data, bytes(-len(data) % ALIGNED)]
        self._end += len(data) + len(self.parts[-1])
        return len(self.forms) - 1


class _Reader:
    def __init__(self, data: NDArray, forms: list[Any], layouts: bool) -> None:
        self._data, self._forms, self._layouts = memoryview(data.data), forms, layouts
        self._arrays: dict[int, NDArray] = {}

    def value(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [self.value(item) for item in plain]
        if not isinstance(plain, dict):
            return plain
        ((kind, content),) = plain.items()
        if kind == "tuple":
            return tuple(self.value(item) for item in content)
        if kind == "dict":
            return {self.value(key): self.value(item) for key, item in content}
        if kind == "array":
            if content not in self._arrays:
                self._arrays[content] = self._array(content)
            return self._arrays[content]
        name, given = content
        cls = _classes[name]
        if kind == "error" and issubclass(cls, Exception):
            return cls(str(given))
        if kind == "class" and is_dataclass(cls):
            return cls(**{key: self.value(item) for key, item in given.items()})
        raise ValueError(f"{name} is no {kind}")

    def _array(self, number: int) -> NDArray:
        name, shape, strides, first = self._forms[number]
        if not DTYPE.fullmatch(name):
            raise ValueError(f"no array of dtype {name} is sent")
        if first < 0:  # NumPy would read what lies before
            raise ValueError("an array begins before its bytes")
        array: NDArray = np.ndarray(tuple(shape), np.dtype(name), self._data, first)
        return array if strides is None or not self._layouts else copy_in_layout(array, tuple(strides))
