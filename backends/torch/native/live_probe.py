"""Live modules of PyTorch run on probes (see `mha_core.live.probe`), and left as they were."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from backends.torch.ops.framework import (
    TORCH_DTYPES,
    dtype_name,
    full_precision,
    to_numpy,
    to_tensor,
    transforms_are_active,
)
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.masks import additive_bias, allowed_keys
from mha_core.live.probe import Reading, RunProbe, Words, cannot_run, check_reading
from mha_core.weights import Weights

TORCH_WORDS = Words(masks=("valid_lens", "allowed", "causal", "bias"))
D2L_WORDS = Words(masks=("valid_lens",))

SUBJECTS = "backends.torch.native.subjects"
TORCH = (f"{SUBJECTS}:MultiheadAttentionSubject", f"{SUBJECTS}:MultiheadAttentionWithoutWeightsSubject")
D2L = (f"{SUBJECTS}:D2lMultiHeadAttentionSubject",)


def check_torch(layer: nn.MultiheadAttention, config: AttentionConfig, weights: Weights) -> None:
    """Raise SpecError unless a torch.nn.MultiheadAttention computes attention with these weights."""

    def run(inputs: AttentionInputs) -> Mapping[str, NDArray]:
        given = tensors(layer, inputs.queries, inputs.keys, inputs.values)
        if not layer.batch_first:
            swapped = {id(x): x.transpose(0, 1) for x in given}
            given = [swapped[id(x)] for x in given]
        # Half of the probes with weights and half without, where the layer runs other code.
        need_weights = inputs.queries.shape[0] > 1
        told = _told(layer, config, inputs, need_weights)
        output, shown = layer(*given, **told, need_weights=need_weights, average_attn_weights=False)
        output = output if layer.batch_first else output.transpose(0, 1)
        return {"output": to_numpy(output)} | ({} if shown is None else {"weights": to_numpy(shown)})

    _check(layer, config, weights, run, TORCH_WORDS, TORCH)


def check_d2l(layer: nn.Module, config: AttentionConfig, weights: Weights) -> None:
    """Raise SpecError unless `layer(queries, keys, values, valid_lens)` computes attention with these weights."""

    def run(inputs: AttentionInputs) -> Mapping[str, NDArray]:
        lens = inputs.mask.valid_lens
        told = None if lens is None else torch.from_numpy(np.array(lens)).to(_device(layer))
        return {"output": to_numpy(layer(*tensors(layer, inputs.queries, inputs.keys, inputs.values), told))}

    _check(layer, config, weights, run, D2L_WORDS, D2L)


def _check(
    layer: nn.Module, config: AttentionConfig, weights: Weights, run: RunProbe, words: Words, natives: tuple[str, ...]
) -> None:
    reading = Reading(type(layer).__name__, config, weights, run, check_runs(layer), words, natives=natives)
    with as_found(layer):
        check_reading(reading)


def check_runs(layer: nn.Module) -> str:
    """Return the name of a module's parameter dtype. SpecError if the module can't be run on test inputs."""
    name = type(layer).__name__
    if torch.compiler.is_compiling() or transforms_are_active():
        raise cannot_run(name, "this runs while PyTorch traces or transforms a program, where arrays have no numbers")
    if _device(layer).type == "meta":
        raise cannot_run(name, "its parameters are on the meta device, where arrays have no numbers")
    dtypes = {dtype_name(parameter.dtype) for parameter in layer.parameters() if parameter.is_floating_point()}
    if len(dtypes) != 1:
        raise cannot_run(name, f"its parameters have not one dtype but {', '.join(sorted(dtypes)) or 'none'}")
    return dtypes.pop()


def tensors(layer: nn.Module, *arrays: NDArray) -> list[Tensor]:
    """Return the arrays as tensors of the module's dtype and device; an array given twice becomes one tensor."""
    dtype, device = TORCH_DTYPES[check_runs(layer)], _device(layer)
    made = {id(array): to_tensor(array, dtype, device) for array in arrays}
    return [made[id(array)] for array in arrays]


@contextmanager
def as_found(*layers: nn.Module) -> Iterator[None]:
    """Return a context in evaluation mode without gradients and autocast. Its end restores the modules' state.

    The state: mode, attributes, buffers, and PyTorch's random state. `train()` is not called, because some modules
    change their weights in it.
    """
    modules = list({id(module): module for layer in layers for module in layer.modules()}.values())
    attributes = [(module, dict(vars(module)), dict(module._buffers)) for module in modules]
    buffers = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
    device = _device(layers[0])
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(full_precision())
        stack.callback(_restore, attributes, buffers)
        for module in modules:
            module.training = False
        yield


def _restore(attributes: list[Any], buffers: list[tuple[Tensor, Tensor]]) -> None:
    for buffer, before in buffers:
        if not torch.equal(buffer, before):
            buffer.copy_(before)
    for module, own, own_buffers in attributes:
        for name in [name for name in vars(module) if name not in own]:
            del vars(module)[name]
        vars(module).update(own)
        module._buffers.clear()
        module._buffers.update(own_buffers)


def _device(layer: nn.Module) -> torch.device:
    return next((parameter.device for parameter in layer.parameters()), torch.device("cpu"))


def _told(
    layer: nn.MultiheadAttention, config: AttentionConfig, inputs: AttentionInputs, need_weights: bool
) -> dict[str, Any]:
    """The keyword arguments of the layer for the mask: True where attention is not allowed, or numbers to add."""
    mask, device = inputs.mask, _device(layer)
    allowed = allowed_keys(mask, inputs.check(config), config.num_heads)
    if mask.valid_lens is not None:
        return {"key_padding_mask": torch.from_numpy(~allowed[:, 0, 0]).to(device)}
    if mask.causal:
        hint = {} if need_weights else {"is_causal": True}
        return {"attn_mask": torch.from_numpy(~allowed[0, 0]).to(device), **hint}
    if mask.bias is not None:
        bias = np.broadcast_to(additive_bias(mask), allowed.shape).reshape(-1, *allowed.shape[2:])
        return {"attn_mask": tensors(layer, bias)[0]}
    if mask.allowed is not None:
        return {"attn_mask": torch.from_numpy(~allowed.reshape(-1, *allowed.shape[2:])).to(device)}
    return {}
