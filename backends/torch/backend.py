"""The contract in PyTorch: NumPy in, run on a device, NumPy out."""

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch

from backends.torch.layers import MultiHeadAttention
from backends.torch.ops import framework
from backends.torch.ops.framework import TORCH_DTYPES, to_numpy, to_tensor
from backends.torch.weights import from_weights
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, RotaryInputs, Trace
from mha_core.backend import BLOCK, Backend, Prepared, Run, SoftmaxKernel
from mha_core.call.call import Call
from mha_core.call.results import Attended, Stages, exposed
from mha_core.call.symbols import Rules, put_together, shapes_at, symbols_of, taken_apart
from mha_core.weights import Weights

OTHER_SIZES = {"b": 5, "q": 11, "n": 13, "p": 17}
"""Symbol -> the size with which a program for every size is made."""

Compute = Callable[[Call[torch.Tensor]], Stages[torch.Tensor] | Attended[torch.Tensor]]


class TorchBackend(Backend):
    """A backend that runs backends.torch.MultiHeadAttention, eagerly or compiled by torch.compile as one graph."""

    name = "torch"

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    def devices(self) -> tuple[str, ...]:
        return framework.devices()

    def dtypes(self, device: str) -> tuple[str, ...]:
        return tuple(TORCH_DTYPES)

    def paths(self) -> tuple[str, ...]:
        return ("eager", "compiled", "fast", "fast-compiled", "blocks", "exported")

    def softmax_kernel(self, device: str, path: str) -> SoftmaxKernel:
        # The fused kernel of the CPU has a faster exponential, and an online softmax over blocks of 512 keys.
        fused = path.startswith("fast") or path == "exported"
        return SoftmaxKernel(exp_ulps=20.0, key_block=512) if fused else SoftmaxKernel()

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        torch_device, torch_dtype = framework.device_of(device), TORCH_DTYPES[dtype]
        layer = from_weights(config, weights, device=torch_device, dtype=torch_dtype)
        compute: Compute = layer.stages if path in ("eager", "compiled") else layer.attend
        if path == "blocks":
            compute = partial(layer.attend, query_block=BLOCK)
        elif path.endswith("compiled"):
            compute = _compiled(layer, compute)
        elif path == "exported":
            compute = _exported(layer)

        def run(inputs: AttentionInputs) -> Trace:
            wanted = inputs.cotangent is not None
            leaves = {name: to_tensor(array, torch_dtype, torch_device) for name, array in inputs.leaves().items()}
            tables = {name: to_tensor(array, torch_dtype, torch_device) for name, array in inputs.tables().items()}
            given = leaves | tables
            call = inputs.call_with(given, lambda _, array: torch.tensor(np.array(array), device=torch_device))
            layer.train(inputs.is_training)
            gradients = None
            with framework.full_precision(), torch.set_grad_enabled(wanted):
                for leaf in leaves.values():
                    leaf.requires_grad_(wanted)
                made = compute(call)
                if inputs.cotangent is not None:
                    leaves |= dict(layer.named_parameters())
                    cotangent = to_tensor(inputs.cotangent, torch_dtype, torch_device)
                    found = torch.autograd.grad(made.output, list(leaves.values()), cotangent)
                    gradients = {name: to_numpy(array) for name, array in zip(leaves, found, strict=True)}
            return Trace(**{name: to_numpy(stage) for name, stage in exposed(made).items()}, gradients=gradients)

        def set_weights(weights: Weights) -> None:
            layer.load_state_dict(from_weights(config, weights, device=torch_device, dtype=torch_dtype).state_dict())

        return Prepared(run, set_weights)


def _compiled(layer: MultiHeadAttention, compute: Compute) -> Compute:
    """A method of the layer, compiled once for each form of call: shapes, dtypes, masks, training or not.

    PyTorch keeps what it compiles with the code object, and stops at eight programs for one of them.
    Each form therefore gets a copy of the code, whose programs go with the layer.
    """

    def run(call: Call[torch.Tensor]) -> Stages[torch.Tensor] | Attended[torch.Tensor]:
        return compute(call)

    programs: dict[Any, Compute] = {}

    def compiled(call: Call[torch.Tensor]) -> Stages[torch.Tensor] | Attended[torch.Tensor]:
        rotary = () if call.rotary is None else _form(call.rotary)
        form = (layer.training, torch.is_grad_enabled(), *_form(call), *_form(call.mask), *rotary)
        if form not in programs:
            copy = FunctionType(run.__code__.replace(), globals(), closure=run.__closure__)
            programs[form] = torch.compile(copy, fullgraph=True, dynamic=False, backend=_compiler())
        return programs[form](call)

    return compiled


def _exported(layer: MultiHeadAttention) -> Compute:
    """Return the output by programs of torch.export, each made with arrays of other sizes than it is run with."""

    class Program(torch.nn.Module):
        def __init__(self, rules: Rules) -> None:
            super().__init__()
            self.layer, self.rules = layer, rules

        def forward(self, arrays: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.layer.attend(put_together(arrays, self.rules)).output

    programs: dict[Any, Callable[[dict[str, torch.Tensor]], torch.Tensor]] = {}

    def exported(call: Call[torch.Tensor]) -> Attended[torch.Tensor]:
        arrays, rules = taken_apart(call, torch.Tensor)
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        symbols = symbols_of(shapes)
        others = shapes_at(symbols, shapes, OTHER_SIZES)
        dtypes = (array.dtype for array in arrays.values())
        form = (layer.training, torch.is_grad_enabled(), rules, *symbols.items(), *others.items(), *dtypes)
        if form not in programs:
            given = {name: arrays[name].new_zeros(shape) for name, shape in others.items()}
            axes = {
                name: {axis: torch.export.Dim.DYNAMIC for axis, symbol in enumerate(own) if symbol is not None}
                for name, own in symbols.items()
            }
            programs[form] = torch.export.export(Program(rules), (given,), dynamic_shapes=(axes,)).module()
        return Attended(programs[form](arrays), None)

    return exported


def _form(given: Call[torch.Tensor] | AttentionMask | RotaryInputs) -> list[Any]:
    """The part of a call that a program depends on: shape and dtype of each tensor, other fields but nested ones."""
    values = ((name, value) for name, value in vars(given).items() if name not in ("mask", "rotary"))
    return [
        (name, value.shape, value.dtype) if isinstance(value, torch.Tensor) else (name, value) for name, value in values
    ]


def _compiler() -> str:
    """The backend of torch.compile: "inductor", or "aot_eager" without the C++ compiler that inductor needs."""
    cxx = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    return "inductor" if shutil.which(cxx) else "aot_eager"
