"""Arrays of a file: every projection or bias that one could be, by its shape alone.

An array is a flat matrix once it is known which of its axes is the input (of an output projection: the
output); the other axes, run together, are its rows. A `Slice` says which of the rows belong to one projection,
and `Slice.rows` gives them in canonical order, head by head.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mha_core import SpecError

ORDERS = {"hd": "(head, width)", "dh": "(width, head)"}
"""In which order the rows of one projection stand -> in words."""

ROLES = ("q", "k", "v")
"""The projections that can stand in one array together."""

MOST_GROUPED = 16
"""Most query heads to a key head that are looked for in one array."""


@dataclass(frozen=True, eq=False)
class Source:
    """An array that may be a weight, read as a matrix (rows, inputs), or an array that may be a bias, a vector.

    Attributes:
        names: the names of the array and of its equal copies in the file.
        shape: its shape, without axes of size 1.
        axis: the axis that runs over the layer's input channels; None for a vector.
        flat: the array in float64, reshaped to (rows, inputs); for a vector (rows,).
        row_shape: the sizes of the axes that were joined into rows.
        dtype: the dtype of the array.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    axis: int | None
    flat: NDArray = field(repr=False)
    row_shape: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        return int(self.flat.shape[0])

    @property
    def inputs(self) -> int:
        return int(self.flat.shape[1])

    @cached_property
    def boundaries(self) -> frozenset[int]:
        """Return the product of each leading part of `row_shape`, but not of all of it: {2, 6} for (2, 3, 4)."""
        return frozenset(prod(self.row_shape[:n]) for n in range(1, len(self.row_shape)))

    @property
    def is_square(self) -> bool:
        return len(self.shape) == 2 and self.shape[0] == self.shape[1]


KINDS = {
    "whole": "the whole array",
    "blocks": "one block of rows after the other",
    "middle": "head by head",
    "inner": "row by row",
    "grouped": "one block of rows after the other",
    "per group": "group by group",
}
"""How the rows of several projections stand in one array -> in words."""

AXES = {"whole": 0, "blocks": 0, "middle": 1, "inner": 2, "grouped": 0, "per group": 1}
"""Kind -> which axis counts the projections, where the others are heads and the width of a head."""


@dataclass(frozen=True, eq=False)
class Slice:
    """A projection's rows in an array, such as the keys in a packed array of queries, keys and values.

    Attributes:
        source: the array.
        kind: how the rows of the projections are interleaved in the array: a key of KINDS, such as "blocks".
        parts: how many projections there are in the array.
        part: the position of this projection among them.
        group: query heads for each key head, in an array of grouped queries, keys and values; else 1.
    """

    source: Source
    kind: str = "whole"
    parts: int = 1
    part: int = 0
    group: int = 1
    _rows: dict[tuple[int, str], NDArray | None] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def units(self) -> tuple[int, int, int]:
        """Return (number of equal blocks in the array, this projection's first block, number of its blocks).

        With 2 query heads for each key head, queries fill blocks 0 and 1 of 4, keys block 2, and values block 3. So the
        keys have (4, 2, 1).
        """
        if self.group == 1:
            return self.parts, self.part, 1
        return self.group + 2, (0, self.group, self.group + 1)[self.part], self.group if self.part == 0 else 1

    @cached_property
    def count(self) -> int:
        """Return how many rows the slice has."""
        units, _, size = self.units
        return self.source.count // units * size

    @property
    def home(self) -> tuple:
        """Return a dict key, equal for Slices of one array that is split in the same way (`kind`, `parts`, `group`)."""
        return (self.source, self.kind, self.parts, self.group)

    def rows(self, heads: int, order: str) -> NDArray | None:
        """Return int (heads, width): the array's row for each channel of each head; None if its axes don't fit `heads`.

        `heads`: the number of heads. `order`: "hd" if rows are stored head by head, "dh" if channel by channel.
        """
        key = heads, order
        if key not in self._rows:
            self._rows[key] = self._find_rows(heads, order)
        return self._rows[key]

    def read(self, heads: int, order: str) -> NDArray:
        """Return what `rows` returns. ValueError if that is None."""
        found = self.rows(heads, order)
        if found is None:
            raise ValueError(f"the axes of {self.source.names[0]!r} do not split into {heads} heads in order {order}")
        return found

    def _find_rows(self, heads: int, order: str) -> NDArray | None:
        units, start, size = self.units
        groups, rest = divmod(heads, size)
        if rest or self.source.count % (units * groups) or (self.group > 1 and order != "hd"):
            return None
        width = self.source.count // (units * groups)
        sizes = [groups, width] if order == "hd" else [width, groups]
        axis = AXES[self.kind]
        sizes.insert(axis, units)
        # Each axis of the array must end at a boundary of this factorisation of its rows.
        if not self.source.boundaries <= {prod(sizes[:n]) for n in range(1, len(sizes) + 1)}:
            return None
        everything: NDArray = np.arange(self.source.count).reshape(sizes)
        positions = np.take(everything, range(start, start + size), axis=axis)
        return positions.reshape(heads, width) if order == "hd" else positions.reshape(width, heads).T


@dataclass(frozen=True)
class Candidates:
    """The arrays of a file, sorted into possible matrices and possible biases.

    Attributes:
        matrices: a Source for each array and each of its axes that could be the input axis.
        vectors: a Source for each array that could be a bias.
        zeros: names of arrays of zeros; they are no candidates, since a bias of zeros changes nothing.
    """

    matrices: list[Source]
    vectors: list[Source]
    zeros: list[str]
    _biases: dict[tuple, list[Slice]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray], widths: set[int]) -> Self:
        """Return the candidates among the arrays of a file.

        Args:
            arrays: name -> array.
            widths: the widths of the layer's inputs and output.

        Raises:
            SpecError: no array has an axis of one of these widths.
        """
        matrices: list[Source] = []
        vectors: list[Source] = []
        zeros: list[str] = []
        for names, array in _distinct(arrays):
            squeezed = array.reshape([size for size in array.shape if size != 1])
            if squeezed.ndim == 0:
                squeezed = array.reshape(1)
            as_float = squeezed.astype(np.float64)
            if not array.any():
                zeros.extend(names)
            elif squeezed.ndim <= 3:
                vectors.append(
                    Source(names, squeezed.shape, None, as_float.reshape(-1), squeezed.shape, str(array.dtype))
                )
            matrices += [
                Source(names, squeezed.shape, axis, *_flat(as_float, axis), str(array.dtype))
                for axis, size in enumerate(squeezed.shape)
                if squeezed.ndim > 1 and size in widths
            ]
        if not matrices:
            shown = ", ".join(map(str, sorted(widths)))
            raise SpecError(f"no array has an axis as wide as an input or the output of the record ({shown})")
        return cls(matrices, vectors, zeros)

    def slices(self, role: str, width: int) -> Iterator[Slice]:
        """Yield every Slice (rows of an array) that could be the projection `role` ("q", ...) with `width` inputs."""
        for source in self.matrices:
            if source.inputs != width:
                continue
            yield Slice(source)
            for parts in (3, 2):
                if source.count % parts == 0:
                    for kind in ("blocks", "middle", "inner"):
                        for part in range(parts):
                            yield Slice(source, kind, parts, part)
            for group in range(2, MOST_GROUPED + 1):
                if source.count % (group + 2) == 0:
                    for kind in ("grouped", "per group"):
                        yield Slice(source, kind, 3, ROLES.index(role), group)

    def biases(self, weight: Slice) -> list[Slice]:
        """Return the slices of vectors that could be the bias of `weight`: whole vectors, or parts of packed ones."""
        key = weight.count, weight.source.count, weight.kind, weight.parts, weight.part, weight.group
        if key not in self._biases:
            self._biases[key] = list(self._find_biases(weight))
        return self._biases[key]

    def _find_biases(self, weight: Slice) -> Iterator[Slice]:
        for vector in self.vectors:
            if vector.count == weight.count:
                yield Slice(vector)
            if weight.parts > 1 and vector.count == weight.source.count:
                yield Slice(vector, weight.kind, weight.parts, weight.part, weight.group)
            elif weight.parts == 1 and vector.count == 3 * weight.count:
                for part in range(3):
                    yield Slice(vector, "blocks", 3, part)


def _flat(array: NDArray, axis: int) -> tuple[NDArray, tuple[int, ...]]:
    moved = np.moveaxis(array, axis, -1)
    return np.ascontiguousarray(moved.reshape(-1, moved.shape[-1])), moved.shape[:-1]


def _distinct(arrays: Mapping[str, NDArray]) -> Iterator[tuple[tuple[str, ...], NDArray]]:
    """Each finite floating-point array once, with all of its names."""
    found: dict[tuple, tuple[list[str], NDArray]] = {}
    for name, given in arrays.items():
        array = np.asarray(given)
        if str(array.dtype) == "bfloat16":
            array = array.astype(np.float32)
        if array.dtype.kind == "f" and array.size and np.isfinite(array).all():
            found.setdefault((array.shape, array.tobytes()), ([], array))[0].append(name)
    for names, array in found.values():
        yield tuple(names), array
