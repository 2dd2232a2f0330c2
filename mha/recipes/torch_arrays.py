"""Convert tensors of PyTorch to NumPy arrays, and write arrays into the parameters of a module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core import SpecError


def to_array(tensor: Any) -> NDArray:
    """Return a NumPy copy of a tensor; bfloat16 becomes float32. SpecError if it is no tensor, or has no numbers."""
    import torch

    from backends.torch.ops.framework import copied

    if not isinstance(tensor, torch.Tensor):
        raise SpecError(f"a {type(tensor).__name__} is no tensor, and has no translation")
    return copied(tensor)


def dtype_name(tensor: Any) -> str:
    """Return the name of a tensor's dtype, such as "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def arrays_of(module: Any, names: Iterable[str]) -> dict[str, NDArray]:
    """Return name -> array, for each of these names that is a parameter of `module`. Arrays may share its memory."""
    from backends.torch.ops.framework import to_numpy

    parameters = dict(module.named_parameters())
    for name in names:
        if name in parameters and parameters[name].is_meta:
            raise SpecError(f"{name} is on the meta device and has no numbers")
    return {name: to_numpy(parameters[name]) for name in names if name in parameters}


def assign(module: Any, arrays: Mapping[str, NDArray]) -> None:
    """Write arrays into the parameters that have their names, in place. All names and shapes are checked first.

    Raises:
        SpecError: there is no such parameter, or it has another shape. Then nothing is written.
    """
    import torch

    parameters = dict(module.named_parameters())
    for name, array in arrays.items():
        if name not in parameters:
            raise SpecError(f"{type(module).__name__} has no parameter {name!r} (it has: {', '.join(parameters)})")
        if tuple(parameters[name].shape) != array.shape:
            raise SpecError(f"{name} must have shape {tuple(parameters[name].shape)}. Got {array.shape}.")
    with torch.no_grad():
        for name, array in arrays.items():
            parameters[name].copy_(torch.from_numpy(np.array(array)))
