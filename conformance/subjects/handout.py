"""Handout: copies of a problem's arrays for a subject, with a check of whether it wrote into them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core import AttentionInputs


class Handout:
    """Copies of arrays to give to a subject; `changed()` then lists the copies that the subject wrote into.

    >>> handout = Handout({"keys": np.zeros(2), "values": np.zeros(2)})
    >>> handout.copies["values"][0] = 1.0
    >>> handout.changed()
    ['values']
    """

    def __init__(self, originals: Mapping[str, NDArray]) -> None:
        self.originals = originals
        # One array for several arguments stays one: layers have paths of their own for that.
        copies = {id(array): copy_in_layout(array) for array in originals.values()}
        self.copies = {name: copies[id(array)] for name, array in originals.items()}

    def changed(self) -> list[str]:
        """Return the names of the arrays that have changed in any bit."""
        return [name for name, array in self.originals.items() if array.tobytes() != self.copies[name].tobytes()]

    def rewrite(self, originals: Mapping[str, NDArray]) -> None:
        """Write `originals` into the copies handed out. An array of a new name, shape or dtype gets a new copy."""
        for name, array in originals.items():
            copy = self.copies.get(name)
            if copy is not None and (copy.shape, copy.dtype) == (array.shape, array.dtype):
                copy[...] = array
            else:
                self.copies[name] = copy_in_layout(array)
        self.copies = {name: self.copies[name] for name in originals}
        self.originals = originals


@contextmanager
def read_only(arrays: Iterable[NDArray]) -> Iterator[None]:
    """A context in which these arrays are read-only: NumPy raises an error at a line that writes into them."""
    writable = [array for array in arrays if array.flags.writeable]
    for array in writable:
        array.flags.writeable = False
    try:
        yield
    finally:
        for array in writable:
            array.flags.writeable = True


def copy_in_layout(array: NDArray, strides: tuple[int, ...] | None = None) -> NDArray:
    """Return a writable copy with the given strides. Default: those of `array`, so that a transpose stays one."""
    if array.size == 0:
        return array.copy()
    strides = array.strides if strides is None else strides
    usual = np.empty(array.shape, array.dtype)
    if usual.strides == strides:
        usual[...] = array
        return usual
    reach = [(size - 1) * stride for size, stride in zip(array.shape, strides, strict=True)]
    before = -sum(step for step in reach if step < 0)
    after = sum(step for step in reach if step > 0)
    buffer: Any = np.zeros(before + after + array.itemsize, np.uint8)
    copy: NDArray = np.ndarray(array.shape, array.dtype, buffer, before, strides)
    copy[...] = array
    return copy


def in_layout_of(arrays: Mapping[str, NDArray], given: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
    """Return `arrays` (the arrays of `given`, cast to another dtype) with the memory layout of `given`.

    Strides, in elements, are as in `given`. Names that share one array object in `given` share one in the result.

    >>> x = np.arange(6.0)[::2]
    >>> in_layout_of({"keys": x.astype("float32")}, {"keys": x})["keys"].strides
    (8,)
    """
    alone = len({id(array) for array in given.values()}) == len(given)
    if alone and all(array.flags.c_contiguous for array in given.values()):
        return arrays
    made: dict[int, NDArray] = {}
    for name, like in given.items():
        array = arrays[name]
        if id(like) not in made:
            steps = tuple(stride // like.itemsize * array.itemsize for stride in like.strides)
            made[id(like)] = array if like.flags.c_contiguous else copy_in_layout(array, steps)
    return {name: made[id(like)] for name, like in given.items()}


OWN_ARRAYS = tuple(field.name for field in fields(AttentionInputs) if field.name not in ("mask", "rotary"))
"""The arrays of AttentionInputs; the others are those of its mask, and of its rotary positions."""


def input_arrays(inputs: AttentionInputs) -> dict[str, NDArray]:
    """Return name -> NumPy array, for every array of a call: its inputs, and those of its mask and rotary positions."""
    return {name: np.asarray(array) for name, array in given_arrays(inputs).items()}


def given_arrays(inputs: AttentionInputs) -> dict[str, Any]:
    """Return the arrays of `input_arrays` unconverted."""
    found = {name: getattr(inputs, name) for name in OWN_ARRAYS}
    for nested in (inputs.mask, inputs.rotary):
        if nested is not None:
            nested.map_arrays(lambda name, array: found.setdefault(name, array))
    return {name: array for name, array in found.items() if array is not None}


def with_arrays(inputs: AttentionInputs, arrays: Mapping[str, NDArray]) -> AttentionInputs:
    """Return a copy of the call with these arrays, named as in `input_arrays`, in place of its own."""
    own: dict[str, Any] = {name: arrays.get(name) for name in OWN_ARRAYS}
    nested = {name: getattr(inputs, name) for name in ("mask", "rotary")}
    given = {name: x and x.map_arrays(lambda name, array: arrays[name]) for name, x in nested.items()}
    return replace(inputs, **own, **given)
