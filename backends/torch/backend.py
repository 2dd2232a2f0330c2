"""The contract in PyTorch: NumPy in, run on a device, NumPy out."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch

from backends.torch.fast.attend import Attended
from backends.torch.layers import MultiHeadAttention
from backends.torch.ops import framework
from backends.torch.ops.attention import Stages
from backends.torch.ops.framework import TORCH_DTYPES, to_numpy, to_tensor
from backends.torch.weights import from_weights
from mha_core.backend import Backend, Run, SoftmaxKernel
from mha_core.call.inputs import AttentionInputs
from mha_core.config import AttentionConfig
from mha_core.stages import STAGES, Trace
from mha_core.weights import Weights


class TorchBackend(Backend):
    """backends.torch.MultiHeadAttention behind the contract, as it is or under torch.compile as one whole graph."""

    name = "torch"

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    def devices(self) -> tuple[str, ...]:
        return framework.devices()

    def dtypes(self, device: str) -> tuple[str, ...]:
        return tuple(TORCH_DTYPES)

    def paths(self) -> tuple[str, ...]:
        return ("eager", "compiled", "fast", "fast-compiled", "blocks")

    def softmax_kernel(self, device: str, path: str) -> SoftmaxKernel:
        # The fused kernel of the CPU has a faster exponential, and an online softmax over blocks of 512 keys.
        return SoftmaxKernel(exp_ulps=20.0, key_block=512) if path.startswith("fast") else SoftmaxKernel()

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        torch_device, torch_dtype = framework.device_of(device), TORCH_DTYPES[dtype]
        layer = from_weights(config, weights, device=torch_device, dtype=torch_dtype)
        compute: Callable[..., Stages | Attended] = layer.stages if path in ("eager", "compiled") else layer.attend
        if path == "blocks":
            compute = partial(layer.attend, query_block=2)
        elif path.endswith("compiled"):
            compute = _compiled(layer, compute)

        def run(inputs: AttentionInputs) -> Trace:
            floats = {
                name: to_tensor(array, torch_dtype, torch_device)
                for name, array in (
                    ("queries", inputs.queries),
                    ("keys", inputs.keys),
                    ("values", inputs.values),
                    ("past_keys", inputs.past_keys),
                    ("past_values", inputs.past_values),
                    ("bias", inputs.mask.bias),
                )
                if array is not None
            }
            mask = inputs.mask.map_arrays(lambda _, array: torch.tensor(np.array(array), device=torch_device))
            arguments = {**vars(mask), "dropout_keep": None, **floats}
            if inputs.dropout_keep is not None:
                arguments["dropout_keep"] = to_tensor(inputs.dropout_keep, torch.bool, torch_device)
            layer.train(inputs.dropout_keep is not None)
            gradients = None
            with framework.full_precision(), torch.set_grad_enabled(inputs.cotangent is not None):
                for leaf in floats.values():
                    leaf.requires_grad_(inputs.cotangent is not None)
                computed = compute(**arguments)
                if inputs.cotangent is not None:
                    leaves = {**floats, **dict(layer.named_parameters())}
                    cotangent = to_tensor(inputs.cotangent, torch_dtype, torch_device)
                    found = torch.autograd.grad(computed.output, list(leaves.values()), cotangent)
                    gradients = {name: to_numpy(array) for name, array in zip(leaves, found, strict=True)}
            stages = {name: to_numpy(stage) for name, stage in computed._asdict().items() if name in STAGES}
            return Trace(**stages, gradients=gradients)

        return run


def _compiled(layer: MultiHeadAttention, compute: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the layer as one compiled program for each form of call: shapes, dtypes, masks, training or not.

    PyTorch keeps what it compiles with the code object, and stops at eight programs for one of them.
    Each form therefore gets a copy of the code, whose programs go with the layer.
    """

    def run(**arguments: Any) -> Any:
        return compute(**arguments)

    programs: dict[Any, Callable[..., Any]] = {}

    def call(**arguments: Any) -> Any:
        form = (layer.training, torch.is_grad_enabled(), *(_form(name, value) for name, value in arguments.items()))
        if form not in programs:
            copy = FunctionType(run.__code__.replace(), globals(), closure=run.__closure__)
            programs[form] = torch.compile(copy, fullgraph=True, dynamic=False, backend=_compiler())
        return programs[form](**arguments)

    return call


def _form(name: str, value: Any) -> Any:
    """What a compiled program depends on: the shape and dtype of a tensor, anything else itself."""
    return (name, value.shape, value.dtype) if isinstance(value, torch.Tensor) else (name, value)


def _compiler() -> str:
    """PyTorch's own compiler; where there is no C++ compiler, which it needs, its graphs op by op."""
    cxx = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    return "inductor" if shutil.which(cxx) else "aot_eager"
