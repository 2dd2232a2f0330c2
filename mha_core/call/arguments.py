"""Lists, numbers and arrays of NumPy as arguments of a call, converted in one place for the reference and all backends.

The rules stand in docs/layers.md: floats come as arrays, of the layer's framework or of NumPy; integers
and booleans also as lists and numbers, and so does the additive bias, which then takes the dtype of
the queries. This module converts objects of NumPy and Python; a framework's array is returned unchanged.
`ArraySpec` has the properties of an array that the checks of a call need, and `CallSizes` what they return.
"""

from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mha_core.dtypes import DTYPES, round_to
from mha_core.errors import SpecError

Dim = int | None
"""One size; None while a tracing framework does not know it yet."""


class ArraySpec(NamedTuple):
    """The shape of an array, and its dtype by name."""

    shape: tuple[Dim, ...]
    dtype: str


class CallSizes(NamedTuple):
    """The sizes of one call: B, Lq, Lk and Lp. `key_len` includes the `past_len` keys of a decoding cache.

    Sizes are integers. While a framework traces, they may be symbolic sizes of the framework, or None where unknown.
    """

    batch: Any
    query_len: Any
    key_len: Any
    past_len: Any = 0


def describe_array(array: Any) -> ArraySpec:
    """Return ArraySpec(shape, dtype name) of a NumPy array, or of any array for which `str(dtype)` gives the name."""
    dtype = _name(array.dtype) if isinstance(array.dtype, np.dtype) else str(array.dtype)  # without the byte order
    return ArraySpec(tuple(array.shape), dtype)


@cache
def _name(dtype: np.dtype) -> str:
    """NumPy puts it together anew each time, which takes longer than a sum of ten numbers."""
    return dtype.name


T = TypeVar("T")

_EMPTY = {
    **dict.fromkeys(("valid_lens", "query_offset"), np.int64),
    **dict.fromkeys(("allowed", "dropout_keep"), np.bool_),
}
"""The dtype for an empty list, by argument."""


def settled(name: str, given: Any) -> Any:
    """Return the argument `name` as an array if it is a list, a number or a NumPy array; anything else unchanged.

    Args:
        name: the argument's name, for the error.
        given: the argument. An array of another byte order is converted to the native one.

    Raises:
        SpecError: a list that makes no array, such as [[1], [2, 3]].

    >>> settled("valid_lens", [3, 2])
    array([3, 2])
    >>> settled("valid_lens", [[3, 2], [1]])
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: valid_lens must be an array, or a list of numbers, or of equally long lists. \
Got [[3, 2], [1]].
    """
    if isinstance(given, np.ndarray):
        return given if given.dtype.isnative else given.astype(given.dtype.newbyteorder("="))
    if isinstance(given, (np.generic, bool, float)):
        return np.asarray(given)
    if isinstance(given, int):
        return _of_integer(given)
    if isinstance(given, (list, tuple)) and not hasattr(given, "shape") and not holds_arrays(given):
        return _of_list(name, given)
    return given


def with_fields(one: T, **changes: Any) -> T:
    """Return `dataclasses.replace(one, **changes)`, made without a call of `__post_init__`."""
    found = object.__new__(type(one))
    found.__dict__.update(vars(one), **changes)
    return found


def is_numbers(given: Any) -> bool:
    """Return whether `given` is a number or a list, which have no dtype of their own."""
    return isinstance(given, (bool, int, float, list, tuple)) and not isinstance(given, np.generic)


def numbers_as(name: str, given: Any, dtype: str) -> NDArray:
    """Return `given`, a number or a list, as a NumPy array rounded to `dtype` (bfloat16 is held in float32).

    Nothing is rounded if `given` is bool, complex or text, or DTYPES lacks `dtype`; `check_call` then raises an error.

    Raises:
        SpecError: a list that is no array, or a finite number that becomes infinite.

    >>> numbers_as("bias", [0, 0.25], "float16")
    array([0.  , 0.25], dtype=float16)
    """
    array = settled(name, given)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf" or dtype not in DTYPES:
        return array
    rounded = round_to(array, dtype)
    lost = np.isinf(rounded) & np.isfinite(array)
    if lost.any():
        raise SpecError(f"{name} must fit in {dtype}, the dtype of queries. Got {array[lost].flat[0]}.")
    return rounded


def holds_long_integers(array: Any) -> bool:
    """Return whether `array` has dtype object and holds integers alone, at least one of them beyond 64 bits."""
    if not isinstance(array, np.ndarray) or array.dtype != object or not _are_integers(array):
        return False
    return any(not -(2**63) <= int(number) < 2**63 for number in array.flat)


def is_convertible(array: Any) -> bool:
    """Return whether `array` is a plain NumPy array of a dtype that the frameworks have too."""
    is_plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
    return is_plain and (array.dtype.kind in "biu" or array.dtype.name in DTYPES)


def holds_arrays(given: Any) -> bool:
    """Return whether `given` is an array of a framework (not of NumPy), or a nested list that holds one."""
    if isinstance(given, (list, tuple)):
        return any(holds_arrays(part) for part in given)
    return hasattr(given, "shape") and not isinstance(given, (np.ndarray, np.generic))


def _of_integer(number: int) -> NDArray:
    try:
        return np.asarray(number, dtype=np.int64)
    except OverflowError:
        return np.asarray(number, dtype=object)  # its value will be refused, and named


def _of_list(name: str, given: Any) -> NDArray:
    try:
        objects = np.array(given, dtype=object)
    except ValueError:  # how NumPy refuses some lists that are not equally long
        objects = None
    if objects is None or not all(
        isinstance(number, (bool, int, float, np.number, np.bool_)) for number in objects.flat
    ):
        raise SpecError(
            f"{name} must be an array, or a list of numbers, or of equally long lists. Got {_short(given)}."
        )
    if objects.size == 0:
        return np.zeros(objects.shape, _EMPTY.get(name, np.float64))
    flags = sum(isinstance(number, (bool, np.bool_)) for number in objects.flat)
    if 0 < flags < objects.size:
        return objects
    if not _are_integers(objects):
        return np.array(given)
    try:
        return objects.astype(np.int64)
    except OverflowError:
        return objects


def _are_integers(objects: NDArray) -> bool:
    return all(isinstance(number, (int, np.integer)) and not isinstance(number, bool) for number in objects.flat)


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."
