"""PyTorch: its dtypes by name, its devices, and full-precision matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mha_core.checks import ArraySpec
from mha_core.dtypes import DTYPES

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


def devices() -> tuple[str, ...]:
    """The CPU, then "gpu:0" and so on for what torch.cuda sees (CUDA or ROCm)."""
    return ("cpu", *(f"gpu:{index}" for index in range(torch.cuda.device_count())))


def device_of(name: str) -> torch.device:
    """The torch.device of a name in `devices()`."""
    return torch.device(name.replace("gpu", "cuda"))


def dtype_name(dtype: Any) -> str:
    """The name without "torch.": that of torch.float32 is "float32"."""
    return str(dtype).removeprefix("torch.")


def describe(array: Any) -> ArraySpec:
    """Shape and dtype, for mha_core's checks."""
    return ArraySpec(tuple(array.shape), dtype_name(array.dtype))


def to_numpy(tensor: torch.Tensor) -> NDArray:
    """The same numbers in NumPy, which has no bfloat16: float32 holds each of them."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.to(torch.float32)
    return tensor.cpu().numpy()


def to_tensor(array: NDArray, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A copy, so that nothing PyTorch does in place can reach the caller's array."""
    return torch.from_numpy(np.array(array)).to(device=device, dtype=dtype)


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32 and no reduced-precision accumulation inside; the settings return afterwards."""
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
