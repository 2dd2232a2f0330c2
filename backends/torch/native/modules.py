"""Any PyTorch module, run by itself in another dtype: what `mha where` asks of an original."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from backends.torch.ops.framework import TORCH_DTYPES, to_numpy
from mha_core.errors import SpecError


def hold(module: nn.Module) -> nn.Module:
    """What stands for a module after its call: the module itself."""
    return module


def parameters_of(held: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter in a module by its name. SpecError for one without numbers."""
    found = dict(held.named_parameters(remove_duplicate=False))
    for name, parameter in found.items():
        if nn.parameter.is_lazy(parameter) or parameter.is_meta:
            raise SpecError(f"{name} has no numbers: it is on the meta device, offloaded, or not initialised")
    return found


def numbers_in(parameter: nn.Parameter) -> NDArray:
    """The numbers of a parameter in NumPy."""
    return to_numpy(parameter)


def is_training(module: nn.Module) -> bool:
    """Whether a call of the module may draw random numbers."""
    rates = (part.p if isinstance(part, nn.modules.dropout._DropoutNd) else 0.0 for part in module.modules())
    return module.training and any(rate > 0.0 for rate in rates)


def is_part(held: nn.Module, outer: nn.Module, name: str, module: nn.Module) -> bool:
    """Whether the `module` that `watch(outer)` tells by this name is the held one."""
    return module is held


@contextmanager
def computing(held: nn.Module, dtype: str) -> Iterator[Callable[..., Any]]:
    """The module as a function, with its floating-point parameters and buffers in `dtype`; they are put back after."""
    own = [*held.parameters(), *held.buffers()]
    before = [(tensor, tensor.data) for tensor in own if tensor.is_floating_point()]
    try:
        for tensor, data in before:
            tensor.data = data.to(TORCH_DTYPES[dtype])
        with torch.no_grad():
            yield held
    finally:
        for tensor, data in before:
            tensor.data = data


def to_native(array: NDArray, dtype: str | None) -> torch.Tensor:
    """The array as a tensor; floating-point numbers in `dtype`."""
    tensor = torch.from_numpy(array.copy())
    return tensor.to(TORCH_DTYPES[dtype]) if dtype is not None and tensor.is_floating_point() else tensor
