"""The contract in PyTorch: NumPy in, run on a device, NumPy out."""

from __future__ import annotations

import torch
from torch import Tensor

from backends.torch import framework
from backends.torch.attention import Stages
from backends.torch.framework import TORCH_DTYPES, to_numpy, to_tensor
from backends.torch.weights import from_weights
from mha_core.backend import Backend, Run
from mha_core.config import AttentionConfig
from mha_core.inputs import AttentionInputs
from mha_core.stages import Trace
from mha_core.weights import Weights


class TorchBackend(Backend):
    """backends.torch.MultiHeadAttention behind the contract."""

    name = "torch"

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    def devices(self) -> tuple[str, ...]:
        return framework.devices()

    def dtypes(self, device: str) -> tuple[str, ...]:
        return tuple(TORCH_DTYPES)

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str) -> Run:
        torch_device, torch_dtype = framework.device_of(device), TORCH_DTYPES[dtype]
        layer = from_weights(config, weights, device=torch_device, dtype=torch_dtype)

        def run(inputs: AttentionInputs) -> Trace:
            layer.train(inputs.dropout_keep is not None)
            needs_gradients = inputs.cotangent is not None

            def tensor(array, dtype=torch_dtype):
                return to_tensor(array, dtype, torch_device).requires_grad_(needs_gradients and dtype is torch_dtype)

            mask = inputs.mask.map_arrays(
                lambda name, array: tensor(array) if name == "bias" else torch.as_tensor(array, device=torch_device)
            )
            arguments = {
                "queries": tensor(inputs.queries),
                "keys": tensor(inputs.keys),
                "values": tensor(inputs.values),
                **vars(mask),
            }
            keep = None if inputs.dropout_keep is None else tensor(inputs.dropout_keep, torch.bool)
            with framework.full_precision(), torch.set_grad_enabled(needs_gradients):
                stages = layer.stages(**arguments, dropout_keep=keep)
                gradients = None
                if needs_gradients:
                    gradients = _gradients(layer, arguments, stages, to_tensor(inputs.cotangent, torch_dtype, torch_device))
            arrays = {name: to_numpy(stage) for name, stage in stages._asdict().items()}
            return Trace(**arrays, gradients=gradients)

        return run


def _gradients(layer, arguments: dict, stages: Stages, cotangent: Tensor) -> dict:
    """Gradients by their public names: inputs, additive bias, parameters."""
    leaves = {
        name: tensor
        for name, tensor in arguments.items()
        if isinstance(tensor, Tensor) and tensor.requires_grad
    }
    leaves.update(layer.named_parameters())
    gradients = torch.autograd.grad(stages.output, list(leaves.values()), cotangent)
    return {name: to_numpy(gradient) for name, gradient in zip(leaves, gradients, strict=True)}
