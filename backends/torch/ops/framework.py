"""PyTorch: its dtypes by name, its devices, Linears of open width, and full-precision matrix products."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import UninitializedParameter

from mha_core.call.arguments import ArraySpec, describe_array, holds_arrays, is_convertible, settled
from mha_core.dtypes import DTYPES
from mha_core.errors import SpecError

Function = TypeVar("Function", bound=Callable[..., Any])

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


def devices() -> tuple[str, ...]:
    """Return "cpu", then "gpu:0" and so on for the devices of torch.cuda (CUDA or ROCm)."""
    return ("cpu", *(f"gpu:{index}" for index in range(torch.cuda.device_count())))


def device_of(name: str) -> torch.device:
    """Return the torch.device of a name in `devices()`."""
    return torch.device(name.replace("gpu", "cuda"))


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype, such as "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def describe(array: Any) -> ArraySpec | None:
    """Return shape and dtype of an array of PyTorch or NumPy, for mha_core's checks; None for anything else."""
    if isinstance(array, torch.Tensor):
        return ArraySpec(tuple(array.shape), dtype_name(array.dtype))
    return describe_array(array) if isinstance(array, np.ndarray) else None


def to_numpy(tensor: torch.Tensor) -> NDArray:
    """Return the tensor as a NumPy array; bfloat16 becomes float32, which holds each of its numbers exactly."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.to(torch.float32)
    return tensor.cpu().numpy()


def copied(tensor: torch.Tensor) -> NDArray:
    """Return a NumPy copy of a layer's input or output. SpecError if it is nested, or has no numbers to copy."""
    if tensor.is_nested:
        raise SpecError(
            "a nested tensor, whose rows have different lengths, can't be recorded; give a padded tensor and a mask"
        )
    if tensor.layout != torch.strided:
        raise SpecError(f"a tensor of layout {str(tensor.layout).removeprefix('torch.')} can't be recorded")
    if tensor.is_meta:
        raise SpecError("a tensor on the meta device has no numbers to record")
    return np.array(to_numpy(tensor))


def refuse_autocast(module: torch.nn.Module) -> None:
    """Raise SpecError if torch.autocast is on where a module is called: it chooses a dtype for each operation."""
    if not torch._C._is_any_autocast_enabled():  # asked at every call of every module
        return
    device = next((parameter.device.type for parameter in module.parameters()), "cpu")
    if device != "meta" and torch.is_autocast_enabled(device):
        raise SpecError(
            f"torch.autocast is on: {type(module).__qualname__} computes some operations in "
            f"{dtype_name(torch.get_autocast_dtype(device))} and some not, as no one dtype says. "
            "Run it without, or convert the model: model.to(dtype)"
        )


def to_tensor(array: NDArray, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a copy as a tensor, so that nothing PyTorch does in place can reach the caller's array."""
    return torch.from_numpy(np.array(array)).to(device=device, dtype=dtype)


def as_tensor(array: Any, device: torch.device, dtype: str | None = None) -> Any:
    """Return a tensor on `device`, of `dtype` (None: its own), made from a NumPy array or a list of tensors.

    Anything else is returned unchanged, and so is an array that `mha_core` refuses.
    """
    if array is None or isinstance(array, torch.Tensor):
        return array
    if isinstance(array, (list, tuple)) and holds_arrays(array):
        return torch.stack([torch.as_tensor(as_tensor(part, device), device=device) for part in array])
    if not is_convertible(array):
        return array
    array = settled("", array)
    if array.dtype.name == "bfloat16":  # of a NumPy dtype that PyTorch does not know
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).to(device)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # PyTorch warns of the one, and does not take the other
    return torch.as_tensor(array, dtype=None if dtype is None else TORCH_DTYPES[dtype], device=device)


def device_of_call(layer: torch.nn.Module, *inputs: Any) -> torch.device:
    """Return the device of a call: of its first tensor, else of the layer's parameters, else the default device."""
    for array in inputs:
        if isinstance(array, torch.Tensor):
            return array.device
    found = next(layer.parameters(), None)
    return torch.get_default_device() if found is None else found.device


def numbers(array: Any) -> NDArray | None:
    """Return an array in NumPy; None if reading it would wait for a device, or while PyTorch traces."""
    if not isinstance(array, torch.Tensor):
        return None if torch.compiler.is_compiling() else np.asarray(array)
    if torch.compiler.is_compiling() or array.device.type != "cpu" or transforms_are_active():
        return None
    return array.detach().numpy()


def transforms_are_active() -> bool:
    """Return whether this runs inside a transform of torch.func, where tensors have no numbers to look at."""
    return torch._C._are_functorch_transforms_active()


def has_tangent(x: torch.Tensor | None) -> bool:
    """Return whether x has a tangent, as in forward-mode differentiation."""
    return x is not None and torch.autograd.forward_ad.unpack_dual(x).tangent is not None


def linear(
    in_features: int | None,
    out_features: int,
    bias: bool,
    *,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.Linear:
    """Return a Linear; if `in_features` is None, a LazyLinear, whose first call decides the width."""
    if in_features is None:
        return nn.LazyLinear(out_features, bias, device, dtype)
    return nn.Linear(in_features, out_features, bias, device, dtype)


def in_width(layer: nn.Linear) -> int | None:
    """Return the input width of a Linear, or None while a LazyLinear does not know it."""
    # Not in_features: a LazyLinear that got its weight from a state_dict leaves that at 0 until it is called.
    return None if isinstance(layer.weight, UninitializedParameter) else layer.weight.shape[1]


@contextmanager
def full_precision() -> Iterator[None]:
    """Return a context without TF32 and reduced-precision accumulation; the settings are restored afterwards."""
    matmul = torch.backends.cuda.matmul
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = {name: getattr(matmul, name) for name in names}
    try:
        for name in names:
            setattr(matmul, name, False)
        yield
    finally:
        for name, value in before.items():
            setattr(matmul, name, value)


def constant_result(function: Function) -> Function:
    """Return the function, marked as by `torch.compiler.assume_constant_result`: its result is constant in a trace.

    PyTorch's own decorator imports the whole compiler, which takes as long as all the rest of PyTorch.
    """
    # Types know no attributes that are put on a function. tests/core/test_laziness.py: the name is PyTorch's own.
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
