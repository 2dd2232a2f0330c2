"""Where a port's weights come from: from which array of the original, unchanged, reordered or rounded."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import product

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.zoo.forward.precision import to_integers
from mha.recordings.packing_bugs import channels_mixed
from mha.recordings.recording import RecordedLayer
from mha_core import AttentionConfig
from mha_core.dtypes import DTYPES, round_to
from mha_core.weights import Weights

DIAGNOSED = "; `mha diagnose PORT --weights ORIGINAL --case LAYER` looks for the order"
"""What comes next, unless it is that very command which says so."""

REORDERED = "holds the original's numbers in another order"

SMALLEST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
"""The distance of neighbours below the smallest normal number."""


MOST = 1 << 24
"""Numbers of a matrix that is held against integers times a scale."""


class WeightIndex:
    """An index of the weights of the original's layers, by hashes of their numbers.

    Attributes:
        layers: the original's layers.
        called: the names of these layers, in the same order.
    """

    def __init__(self, layers: Sequence[RecordedLayer]) -> None:
        self.layers = layers
        self.called = [layer.name or "layer" for layer in layers]
        self._by_dtype: dict[str, dict[bytes, list[tuple[int, str]]]] = {}

    def holders(self, array: NDArray, dtype: str) -> list[tuple[int, str]]:
        """Return (layer position, array name) of the original's arrays that equal `array` after rounding to `dtype`."""
        if dtype not in self._by_dtype:
            found: dict[bytes, list[tuple[int, str]]] = defaultdict(list)
            for position, layer in enumerate(self.layers):
                for name, own in layer.weights.items():
                    found[_digest(own, dtype)].append((position, name))
            self._by_dtype[dtype] = found
        return self._by_dtype[dtype].get(_digest(array, dtype), [])

    def whose(self, weights: Weights, dtype: str) -> list[int]:
        """Return the positions of the original's layers that have all of these weights under the same names."""
        held = [
            {position for position, other in self.holders(array, dtype) if other == name}
            for name, array in weights.items()
        ]
        return sorted(set.intersection(*held)) if held else []


def _digest(array: NDArray, dtype: str) -> bytes:
    wide = round_to(array, dtype).astype(np.float64) + 0.0  # -0 is 0
    return sha256(repr(wide.shape).encode() + np.ascontiguousarray(wide).tobytes()).digest()


def narrower(dtype: str, other: str) -> str:
    """Return the one of two dtypes that has the larger unit roundoff.

    >>> narrower("float32", "bfloat16"), narrower("float64", "float32")
    ('bfloat16', 'float32')
    """
    return max(dtype, other, key=UNIT_ROUNDOFF.__getitem__)


def same_numbers(a: NDArray, b: NDArray, dtype: str) -> bool:
    """Return whether two arrays are equal after rounding to `dtype`; NaN equals NaN.

    A difference of half a unit in the last place is allowed, as one array may have been rounded twice.

    >>> same_numbers(np.array([1 + 2.0**-11]), np.array([1 + 2.0**-10]), "float16")
    True
    """
    if a.shape != b.shape:
        return False
    one, other = round_to(a, dtype), round_to(b, dtype)
    if np.array_equal(one, other, equal_nan=True):
        return True
    wide = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(wide[0]), np.abs(wide[1]))
        half = np.maximum(UNIT_ROUNDOFF[dtype] * np.ldexp(0.5, np.frexp(size)[1]), 0.5 * SMALLEST[dtype])
        close = np.abs(wide[0] - wide[1]) <= half
    return bool((close | (one == other) | (np.isnan(one) & np.isnan(other))).all())


def roundings(array: NDArray) -> Iterator[tuple[str, NDArray]]:
    """Yield (words, array): an array rounded to fewer bits, in each of the usual ways.

    >>> [words for words, _ in roundings(np.ones(3, np.float16))]
    ['bfloat16']
    >>> [words for words, _ in roundings(np.ones((2, 2), np.float32))][2:4]
    ['8-bit integers times a scale of the matrix', '8-bit integers times a scale of each row']
    """
    unit = UNIT_ROUNDOFF.get(array.dtype.name, 1.0)
    yield from ((one, round_to(array, one)) for one in DTYPES if UNIT_ROUNDOFF[one] > unit)
    scales = {"the matrix": None, "each row": 1, "each column": 0}
    for bits, (each, axis) in product((8, 4), scales.items()) if array.ndim == 2 and array.size <= MOST else ():
        yield f"{bits}-bit integers times a scale of {each}", to_integers(array, bits, axis)


def what_it_is(name: str, ours: NDArray, theirs: NDArray, a: RecordedLayer, index: WeightIndex, dtype: str) -> str:
    """Return where an array of the port comes from, as the end of a sentence, such as "is the original's transposed".

    `theirs` is the array of the port. `ours` is the original's array of the same name, in its layer `a`.
    """
    if not theirs.any():
        return "is missing or all zeros"
    if not ours.any():
        return "is there; the original has none, or zeros"
    if ours.ndim == 2 and same_numbers(ours.T, theirs, dtype):
        return "is the original's transposed"
    holders = index.holders(theirs, dtype)  # layers may be copies of one another: the pair's own comes first
    for position, there in sorted(holders, key=lambda held: index.layers[held[0]] is not a):
        whose = "" if index.layers[position] is a else f" of {index.called[position]}"
        return f"holds the original's {there}{whose}"
    for how, one in roundings(ours) if ours.dtype == theirs.dtype else ():
        if np.array_equal(one, theirs.astype(one.dtype)):
            return f"is the original's rounded to {how}"
    if same_numbers(ours, -theirs, dtype):
        return "has the other sign"
    if has_the_same(ours, theirs, dtype):
        read = (words for words, one in _readings(name, ours, a.config) if same_numbers(one, theirs, dtype))
        return next(read, "") or _rows_moved(name, ours, theirs, a.config, dtype) or f"{REORDERED}{DIAGNOSED}"
    with np.errstate(all="ignore"):
        factor = float(np.median(theirs[ours != 0].astype(np.float64) / ours[ours != 0]))
        if np.isfinite(factor) and np.allclose(theirs, ours * factor, rtol=8 * UNIT_ROUNDOFF[dtype], atol=0.0):
            return f"is {factor:.6g} times the original's"
        wrong = int((round_to(ours, dtype) != round_to(theirs, dtype)).sum())
        most = float(np.abs(ours.astype(np.float64) - theirs).max())
    return f"differs in {wrong} of {ours.size} elements, by up to {most:.2g}"


def has_the_same(ours: NDArray, theirs: NDArray, dtype: str) -> bool:
    """Return whether two arrays have the same numbers, in any order."""
    return same_numbers(np.sort(ours.ravel()), np.sort(theirs.ravel()), dtype)


def _readings(name: str, ours: NDArray, config: AttentionConfig) -> Iterator[tuple[str, NDArray]]:
    """Yield what a weight or bias is where its memory, or its channels, are read in another order; in words."""
    if ours.ndim == 2:
        yield "is the original's reshaped where a transposition is due", ours.reshape(ours.shape[::-1]).T
    projection = name.partition(".")[0]
    for back, words in ((False, "(d, h), and is read as (h, d)"), (True, "(h, d), and is read as (d, h)")):
        mixed = channels_mixed([projection], config, {name: ours}, back=back, kinds="weight bias")
        yield f"is the original's, whose channels stand as {words}", mixed[name]


def _rows_moved(name: str, ours: NDArray, theirs: NDArray, config: AttentionConfig, dtype: str) -> str:
    """Return in which order an array has the original's rows, in words; "" where they are not its rows, or some equal.

    Args:
        name: of a weight or bias; its rows are the channels of heads but for the output projection.
        ours, theirs: the original's, and the port's.
        config: of the original's layer.
        dtype: in which they are compared.
    """
    places = {round_to(row, dtype).tobytes(): place for place, row in enumerate(ours)}
    order = np.array([places.get(round_to(row, dtype).tobytes(), -1) for row in theirs])
    if len(places) < len(ours) or len(theirs) != len(ours) or (order < 0).any():
        return ""
    counts = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads, "v_proj": config.num_kv_heads}
    heads = counts.get(name.partition(".")[0], 1)
    within = order.reshape(heads, -1) - np.arange(heads)[:, None] * (len(order) // heads)
    if heads > 1 and (within == within[0]).all() and (within[0] >= 0).all():
        return f"{REORDERED}: the rows of each head as {_first(within[0])}"
    return f"{REORDERED}: its rows as {_first(order)}"


def _first(order: NDArray) -> str:
    """The first numbers of an order, as a list.

    >>> _first(np.arange(3)), _first(np.arange(20)[::-1])
    ('[0, 1, 2]', '[19, 18, 17, 16, 15, 14, 13, 12, ...]')
    """
    return f"[{', '.join(map(str, order[:8]))}{', ...' * (len(order) > 8)}]"
