"""The four dtypes of the definition, by name, rounding to them in NumPy, and numbers of a config as floats."""

import math

import numpy as np
from numpy.typing import NDArray

from mha_core.errors import SpecError, meant

DTYPES = ("float64", "float32", "float16", "bfloat16")

OTHER_NAMES = {"double": "float64", "f64": "float64", "fp64": "float64", "f32": "float32", "fp32": "float32"}
OTHER_NAMES |= {"float": "float32", "half": "float16", "f16": "float16", "fp16": "float16", "bf16": "bfloat16"}
"""A name that others have for a dtype -> its name here."""


def check_dtype(name: str) -> str:
    """Return `name` if it is one of DTYPES; raise SpecError otherwise.

    >>> check_dtype("fp32")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: dtype 'fp32' is not known (known: float64, float32, float16, bfloat16); did you mean \
float32?
    """
    if name not in DTYPES:
        near = f"; did you mean {OTHER_NAMES[name]}?" if name in OTHER_NAMES else meant(name, DTYPES)
        raise SpecError(f"dtype {name!r} is not known (known: {', '.join(DTYPES)}){near}")
    return name


def storage_dtype(name: str) -> np.dtype:
    """Return the NumPy dtype that holds every value of dtype `name`: float32 for bfloat16, which NumPy lacks."""
    return np.dtype("float32" if check_dtype(name) == "bfloat16" else name)


def round_to(array: NDArray, dtype: str) -> NDArray:
    """Return `array` rounded to the nearest numbers of `dtype`, held in `storage_dtype(dtype)`.

    >>> round_to(np.array([1.00390625, 1.01171875]), "bfloat16")  # halfway: to even
    array([1.      , 1.015625], dtype=float32)
    """
    given, storage = np.asarray(array), storage_dtype(dtype)
    if given.dtype == storage:
        rounded = given.astype(storage)
    else:
        with np.errstate(over="ignore"):  # a number beyond the range becomes infinite, as a cast does
            rounded = given.astype(storage)
    if dtype == "bfloat16":
        rounded = _drop_16_bits(rounded)
    return rounded


def check_held(name: str, array: NDArray, dtype: str) -> None:
    """Raise SpecError unless `dtype` can hold every number of `array` exactly; the array's own dtype doesn't matter.

    So an array is not judged by the wide error bounds of float16 if its numbers are more exact than float16.

    >>> check_held("output", np.array([1.0, 1.015625]), "bfloat16")
    >>> check_held("output", np.array([1.0, 1.01]), "bfloat16")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: output must hold numbers of bfloat16, its dtype. Got 1.01, which is not one.
    """
    array = np.asarray(array)
    if array.dtype.kind != "f" or (dtype != "bfloat16" and array.dtype.itemsize <= storage_dtype(dtype).itemsize):
        return
    others = array[(round_to(array, dtype) != array) & ~np.isnan(array)]
    if others.size:
        raise SpecError(f"{name} must hold numbers of {dtype}, its dtype. Got {others[0]!s}, which is not one.")


def _drop_16_bits(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 to the nearest bfloat16 (ties to even): bfloat16 is the upper half of a float32."""
    bits = array.view(np.uint32)
    upper_is_odd = (bits >> np.uint32(16)) & np.uint32(1)
    nearest = (bits + np.uint32(0x7FFF) + upper_is_odd) & np.uint32(0xFFFF0000)
    # Adding to a NaN's bits could carry it over into a number.
    return np.where(np.isnan(array), array, nearest.view(np.float32))


def real(name: str, value: float) -> float:
    """Return `value` as a float if it is a finite number; raise SpecError otherwise.

    >>> real("scale", 2)
    2.0
    """
    try:
        finite = not isinstance(value, bool) and hasattr(value, "__float__") and math.isfinite(value)
    except OverflowError as error:  # an integer that no float holds
        raise SpecError(f"{name} must be a finite number. Got an integer beyond the range of floats.") from error
    if not finite:
        raise SpecError(f"{name} must be a finite number. Got {value!r}.")
    return float(value)


def positive(name: str, value: float) -> float:
    """Return `value` as a float if it is a finite number above 0; raise SpecError otherwise."""
    number = real(name, value)
    if number <= 0.0:
        raise SpecError(f"{name} must be positive. Got {number!r}.")
    return number


def check_dropout(value: float) -> float:
    """Return `value` as a float if it is a dropout probability; raise SpecError otherwise."""
    rate = real("dropout", value)
    if not 0.0 <= rate < 1.0:
        raise SpecError(f"dropout must lie in 0 <= dropout < 1. Got {rate!r}.")
    return rate


def divisors(size: int) -> tuple[int, ...]:
    """Return the numbers that divide a size, from 1 to itself; none of 0.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    return tuple(one for one in range(1, size + 1) if size % one == 0)
