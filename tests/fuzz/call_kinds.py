"""What a call may be given in place of an argument that is right: other kinds of the same, and what is wrong.

A kind is a function of (the right array, or None where the call has none; a generator) that returns what to give
instead. It is given to the reference and to all backends alike; `Own` marks what each is to get as its own array.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Own(NamedTuple):
    """An array that each backend gets as one of its framework's; the reference as it is."""

    array: NDArray


Kind = Callable[[Any, np.random.Generator], Any]


def _read_only(array: NDArray, _: Any) -> NDArray:
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


def _strided(array: NDArray, _: Any) -> NDArray:
    return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array


def _backwards(array: NDArray, _: Any) -> NDArray:
    return np.ascontiguousarray(array[..., ::-1])[..., ::-1] if array.ndim else array


def _cast(dtype: str) -> Kind:
    def cast(array: NDArray, _: Any) -> NDArray:
        with np.errstate(all="ignore"):
            return array.astype(dtype)

    return cast


def _cast_own(dtype: str) -> Kind:
    cast = _cast(dtype)
    return lambda array, rng: Own(cast(array, rng))


def _with_one(*numbers: int) -> Kind:
    """The same integers but for one, which is one of these."""

    def replaced(array: NDArray, rng: np.random.Generator) -> Any:
        if array.size == 0:
            return array
        changed = array.astype(object).ravel()
        changed[rng.integers(changed.size)] = numbers[rng.integers(len(numbers))]
        return changed.reshape(array.shape).tolist()

    return replaced


def _with_one_in(dtype: str, *numbers: int) -> Kind:
    replace = _with_one(*numbers)
    return lambda array, rng: np.array(replace(array, rng), dtype=dtype)


def _other_shape(array: NDArray, rng: np.random.Generator) -> NDArray:
    """One axis more, one less, or one that is longer or shorter."""
    way = rng.integers(4)
    if array.ndim == 0 or way == 0:
        return array[None]
    if way == 1:
        return array[0] if array.shape[0] else array[None]
    axis = int(rng.integers(array.ndim))
    return (
        np.concatenate([array, array], axis=axis)
        if way == 2
        else np.take(array, range(0, 1), axis, mode="clip")
        if (array.shape[axis])
        else array[None]
    )


def _is(value: Any) -> Kind:
    return lambda array, rng: value


_FORMS: dict[str, Kind] = {
    "numpy": lambda array, _: array,
    "own": lambda array, _: Own(array),
    "read-only": _read_only,
    "big-endian": lambda array, _: array.astype(array.dtype.newbyteorder(">")),
    "strided": _strided,
    "backwards": _backwards,
    "list": lambda array, _: array.tolist(),
    "another shape": _other_shape,
    "own, another shape": lambda array, rng: Own(_other_shape(array, rng)),
    "objects": _cast("O"),
    "complex": _cast("c8"),
    "text": _is("3"),
    "a dict": _is({}),
    "ragged": _is([[1, 2], [3]]),
    "a list with None": _is([None, 1]),
    "masked": lambda array, _: np.ma.masked_array(array),
    "an empty list": _is([]),
}
_FLOATS = {
    **_FORMS,
    "none": _is(None),
    "float16": _cast("f2"),
    "float32": _cast("f4"),
    "float64": _cast("f8"),
    "long double": _cast("g"),
    "integers": _cast("i4"),
    "own integers": _cast_own("i4"),
    "own float16": _cast_own("f2"),
    "booleans": _cast("?"),
    "a number": _is(0.5),
}
_EXTREME = (
    2**31 - 2,
    2**31 - 1,
    2**31,
    2**32 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**70,
    -1,
    -(2**31),
    -(2**63),
    -(2**70),
)
_INTEGERS = {
    **_FORMS,
    **{
        dtype: _cast(dtype)
        for dtype in ("uint8", "int8", "int16", "uint16", "int32", "uint32", "uint64", "?", "f4", "f8")
    },
    **{f"own {dtype}": _cast_own(dtype) for dtype in ("uint8", "int8", "int32", "?", "f4")},
    "a tuple": lambda array, _: tuple(array.tolist()) if array.ndim else array,
    "0-d": lambda array, _: np.array(1),
    "an int": _is(1),
    "a float": _is(1.7),
    "a whole float": _is(1.0),
    "a NumPy float": _is(np.float64(1.0)),
    "a NumPy int": _is(np.int16(1)),
    "True": _is(True),
    "NumPy's True": _is(np.True_),
    "an extreme one": _with_one(*_EXTREME),
    "an extreme one in int64": _with_one_in("i8", 2**31 - 1, 2**31, 2**63 - 1, -(2**31), -(2**63)),
    "an extreme one in uint64": _with_one_in("u8", 2**31, 2**63, 2**64 - 1),
    "own, an extreme one": lambda array, rng: Own(_with_one_in("i8", 2**31, 2**63 - 1, -(2**63))(array, rng)),
    "a float among them": lambda array, rng: [*array.tolist(), 0.5] if array.ndim else 0.5,
    "True among them": lambda array, rng: [True, 1],
}
_BOOLEANS = {
    **_FORMS,
    "int8": _cast("i1"),
    "own int32": _cast_own("i4"),
    "float32": _cast("f4"),
    "0-d": lambda array, _: np.array(True),
    "True": _is(True),
    "False": _is(False),
    "NumPy's False": _is(np.False_),
    "1": _is(1),
    "0.0": _is(0.0),
    "a list of integers": lambda array, _: array.astype(int).tolist(),
}

KINDS: Mapping[str, Mapping[str, Kind]] = {
    "queries": _FLOATS,
    "keys": _FLOATS,
    "values": _FLOATS,
    "past_keys": {name: kind for name, kind in _FLOATS.items() if name != "none"},
    "past_values": _FLOATS,
    "valid_lens": _INTEGERS,
    "allowed": _BOOLEANS,
    "dropout_keep": _BOOLEANS,
    "bias": {
        **_FLOATS,
        "an int": _is(1),
        "True": _is(True),
        "a list of integers": lambda array, _: np.ones(array.shape, int).tolist(),
        "NumPy's float32": _is(np.float32(0.25)),
        "NumPy's float64": _is(np.float64(0.25)),
        "a number beyond": _is(1e300),
        "-inf": _is(-float("inf")),
    },
    "query_offset": {
        **_INTEGERS,
        "none": _is(None),
        **{str(number): _is(number) for number in (0, 2, -3, *_EXTREME)},
    },
    "causal": {
        "NumPy's True": _is(np.True_),
        "NumPy's False": _is(np.False_),
        "1": _is(1),
        "0": _is(0),
        "none": _is(None),
        "0-d": lambda array, _: np.array(True),
        "text": _is("yes"),
    },
    "window": {
        "a list": _is([1, 1]),
        "a list with None": _is([None, 2]),
        "NumPy's integers": _is((np.int64(1), np.uint8(2))),
        "an array": lambda array, _: np.array([1, 1]),
        "one": _is((1,)),
        "three": _is([1, 2, 3]),
        "an int": _is(1),
        "booleans": _is((True, False)),
        "floats": _is((1.0, 2)),
        "negative": _is((-1, 0)),
        "the largest": _is((2**31 - 1, 2**31 - 1)),
        "beyond": _is([2**31, None]),
        "beyond 64 bits": _is((0, 2**70)),
        "text": _is("11"),
        "empty": _is(()),
    },
}
"""Argument -> what may stand in its place."""
