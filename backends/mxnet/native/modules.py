"""Any Gluon block, run by itself in another dtype: what `mha where` asks of an original."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.mxnet.ops.framework import mx, to_numpy


def hold(block: mx.gluon.Block) -> mx.gluon.Block:
    """What stands for a block after its call: the block itself."""
    return block


def parameters_of(held: mx.gluon.Block) -> dict[str, mx.gluon.Parameter]:
    """Every parameter in a block by its name."""
    return dict(held.collect_params().items())


def numbers_in(parameter: mx.gluon.Parameter) -> NDArray:
    """The numbers of a parameter in NumPy."""
    return to_numpy(parameter.data())


def is_training(block: mx.gluon.Block) -> bool:
    """Whether a call of the block may draw random numbers."""
    return bool(mx.autograd.is_training())


def is_part(held: mx.gluon.Block, outer: mx.gluon.Block, name: str, module: mx.gluon.Block) -> bool:
    """Whether the `module` that `watch(outer)` tells by this name is the held one."""
    return module is held


@contextmanager
def computing(held: mx.gluon.Block, dtype: str) -> Iterator[Callable[..., Any]]:
    """The block as a function, with its parameters in `dtype`; they are put back after.

    It takes keywords too, which Gluon's blocks do not.
    """
    before = {id(one): (one, one.dtype, one.data()) for one in held.collect_params().values()}
    try:
        for parameter, own, _ in before.values():
            if np.dtype(own).kind == "f":
                parameter.cast(dtype)
        yield lambda *args, **kwargs: held(*inspect.signature(held.forward).bind(*args, **kwargs).args)
    finally:
        for parameter, own, data in before.values():
            parameter.cast(own)
            parameter.set_data(data)


@mx.util.use_np
def to_native(array: NDArray, dtype: str | None) -> Any:
    """The array as one of MXNet; floating-point numbers in `dtype`."""
    return mx.np.array(array, dtype=dtype if dtype is not None and array.dtype.kind == "f" else array.dtype)
