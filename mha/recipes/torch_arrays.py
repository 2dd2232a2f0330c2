"""Convert tensors of PyTorch to NumPy arrays, and write arrays into the parameters of a module."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core import SpecError


def to_array(tensor: Any) -> NDArray:
    """Return a tensor as a NumPy copy; bfloat16 becomes float32. SpecError if it is no tensor or on the meta device."""
    import torch

    from backends.torch.ops.framework import copied

    if not isinstance(tensor, torch.Tensor):
        raise SpecError(f"a {type(tensor).__name__} is no tensor, and has no translation")
    return copied(tensor)


def dtype_name(tensor: Any) -> str:
    """Return the name of a tensor's dtype, such as "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def arrays_of(module: Any, names: Iterable[str]) -> dict[str, NDArray]:
    """Return name -> NumPy array, for the parameters of `module` in `names`; arrays may share the module's memory."""
    from backends.torch.ops.framework import to_numpy

    parameters = dict(module.named_parameters())
    for name in names:
        if name in parameters and parameters[name].is_meta:
            raise SpecError(f"{name} is on the meta device and has no numbers")
    return {name: to_numpy(parameters[name]) for name in names if name in parameters}


def assign(module: Any, arrays: Mapping[str, NDArray]) -> None:
    """Copy each array into the parameter of its name. All names and shapes are checked first.

    Raises:
        SpecError: a parameter does not exist or has another shape. Then nothing is written.
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
