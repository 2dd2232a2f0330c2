"""Hooks on PyTorch's modules for `mha.capture`, and how the attention layers among them are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from backends.capturing import (
    Read,
    has_seed_parts,
    none_found,
    one_dtype,
    outermost,
    own_call,
    refuse_dropout,
    seed_call,
)
from backends.torch import framework, live_probe, native
from backends.torch.layers import MultiHeadAttention
from backends.torch.weights import to_weights
from mha_core import layouts
from mha_core.errors import SpecError
from mha_core.inputs import AttentionInputs
from mha_core.masks import AttentionMask


def versions() -> dict[str, str]:
    """Package -> version of what computes."""
    return {"torch": torch.__version__}


def parts_of(module: nn.Module) -> tuple[list[str], Callable[[], list[int]]]:
    """The names of a module's direct parts that hold parameters, and what gives the ids of all modules in it."""
    parts = [name for name, part in module._modules.items() if part is not None and _holds(part)]
    parts += [name for name, parameter in module._parameters.items() if parameter is not None]
    return parts, lambda: [id(part) for part in module.modules()]


def _holds(module: nn.Module) -> bool:
    """Whether there are numbers in it; those of a quantized layer are no parameters."""
    return any(True for _ in module.parameters()) or bool(module.state_dict())


@contextmanager
def watch(target: nn.Module, choose: Callable[[str, Any], Any], seen: Callable[..., None]) -> Iterator[None]:
    """Tell `seen` of every call of a chosen module: name, adapter, module, arguments by name, output.

    A module with forward hooks takes none of the fast paths that would go around the modules in it. The one
    that drops padding first, and which hooks don't stop, is switched off meanwhile.
    """
    if hasattr(target, "_orig_mod"):
        raise SpecError("capture needs the module itself, not what torch.compile made of it: give module._orig_mod")
    chosen = list(outermost(target.named_modules(), choose, "."))
    if not chosen:
        raise none_found(target)
    with ExitStack() as hooks:
        for name, module, adapter in chosen:
            handle = module.register_forward_hook(_hook(name, adapter, seen), with_kwargs=True)
            hooks.callback(handle.remove)
        for encoder in target.modules():
            if isinstance(encoder, nn.TransformerEncoder) and encoder.use_nested_tensor:
                hooks.callback(setattr, encoder, "use_nested_tensor", True)
                encoder.use_nested_tensor = False
        yield


def _hook(name: str, adapter: Any, seen: Callable[..., None]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        seen(name, adapter, module, bound.arguments, output)

    return hook


class TorchLayer:
    """torch.nn.MultiheadAttention."""

    kind = "torch.nn.MultiheadAttention"

    def matches(self, layer: nn.Module) -> bool:
        return isinstance(layer, nn.MultiheadAttention)

    def check(self, layer: nn.MultiheadAttention) -> None:
        native.layout_of(layer)

    def probe(self, layer: nn.MultiheadAttention) -> None:
        native.from_native(layer)

    def read(self, layer: nn.MultiheadAttention, arguments: Mapping[str, Any], output: Any) -> Read:
        config, weights = native.from_native(layer, probe=False)
        refuse_dropout(training=layer.training, rate=config.dropout)
        query, key, value = (arguments[name] for name in ("query", "key", "value"))
        result, returned = output
        dtype = _dtype(layer, query, key, value, result)
        batched = query.dim() == 3

        def in_order(tensor: Tensor) -> NDArray:
            """(B, L, width), however the layer has it."""
            array = _array(tensor)
            if not batched:
                return array[None]
            return array if layer.batch_first else np.array(array.swapaxes(0, 1), order="C")

        queries, keys, values = map(in_order, (query, key, value))
        batch, query_len, key_len = len(queries), queries.shape[1], keys.shape[1]
        mask = _mask(arguments, (batch, config.num_heads, query_len, key_len))
        outputs = {"output": in_order(result)}
        if returned is not None and (not arguments["average_attn_weights"] or config.num_heads == 1):
            outputs["weights"] = _array(returned).reshape(batch, config.num_heads, query_len, key_len)
        return config, weights, AttentionInputs(queries, keys, values, mask), outputs, dtype


def _mask(arguments: Mapping[str, Any], full: tuple[int, ...]) -> AttentionMask:
    """The mask in terms of the definition. A bool of PyTorch's says True where attention is *not* allowed."""
    batch, _, query_len, key_len = full
    attn_mask, padding = arguments["attn_mask"], arguments["key_padding_mask"]
    causal = bool(arguments["is_causal"])
    sources = []
    if causal:
        _check_causal(attn_mask, query_len, key_len)
    elif attn_mask is not None:
        sources.append(_array(attn_mask).reshape((query_len, key_len) if attn_mask.dim() == 2 else full))
    if padding is not None:
        sources.append(_array(padding).reshape(batch, 1, 1, key_len))
    sources = [_as_bool(array) for array in sources]
    excluded = [array for array in sources if array.dtype == bool]
    added = [array for array in sources if array.dtype != bool]
    return AttentionMask(
        allowed=~reduce(np.logical_or, excluded) if excluded else None,
        bias=reduce(np.add, added) if added else None,
        causal=causal,
    )


def _as_bool(mask: NDArray) -> NDArray:
    """A mask of zeros and -inf alone only excludes: True where it does. PyTorch's own layers make such ones."""
    if mask.dtype == bool:
        return mask
    excluded = np.isneginf(mask)
    return excluded if (excluded | (mask == 0.0)).all() else mask


def _check_causal(attn_mask: Tensor, query_len: int, key_len: int) -> None:
    """is_causal is a hint that attn_mask is the causal mask; with a wrong one PyTorch follows now this, now that."""
    excluded = _as_bool(_array(attn_mask))
    wanted = np.triu(np.ones((query_len, key_len), dtype=bool), k=1)
    if excluded.dtype != bool or not (excluded == wanted).all():
        raise SpecError(
            "is_causal=True says that attn_mask is the causal mask, and it is another one: whether "
            "torch.nn.MultiheadAttention follows the one or the other depends on need_weights. Leave is_causal out."
        )


class OwnLayer:
    """backends.torch.MultiHeadAttention: its call is the definition's."""

    kind = "backends.torch.MultiHeadAttention"

    def matches(self, layer: nn.Module) -> bool:
        return isinstance(layer, MultiHeadAttention)

    def check(self, layer: MultiHeadAttention) -> None:
        """Everything about it can be recorded."""

    def read(self, layer: MultiHeadAttention, arguments: Mapping[str, Any], output: Any) -> Read:
        result = output[0] if isinstance(output, tuple) else output
        dtype = _dtype(layer, arguments["queries"], result)
        call = arguments, output, _array
        return own_call(layer.config, to_weights(layer), *call, training=layer.training, dtype=dtype)


class SeedLayer:
    """d2l.ai's layer, or one that has its parameters and its call: W_q, W_k, W_v, W_o, num_heads."""

    kind = "d2l.torch.MultiHeadAttention"

    def matches(self, layer: nn.Module) -> bool:
        return has_seed_parts(layer, layer.forward, nn.Linear)

    def check(self, layer: nn.Module) -> None:
        """Everything about it can be recorded."""

    def probe(self, layer: Any) -> None:
        if any(nn.parameter.is_lazy(parameter) for parameter in layer.parameters()):
            return  # its first call decides its widths
        config, weights = layouts.get("d2l-torch").read(_seed_arrays(layer), num_heads=int(layer.num_heads))
        live_probe.check_seed(layer, config, weights)

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> Read:
        rates = [part.p for part in layer.modules() if isinstance(part, nn.Dropout)]
        refuse_dropout(training=layer.training, rate=max(rates, default=0.0))
        arrays = _seed_arrays(layer)
        dtype = _dtype(layer, next(iter(arguments.values())), output)
        inner = getattr(getattr(layer, "attention", None), "attention_weights", None)
        call = arguments, output, inner, _array
        return seed_call("d2l-torch", arrays, int(layer.num_heads), *call, dtype=dtype)


ADAPTERS = (TorchLayer(), OwnLayer(), SeedLayer())
"""How the layers that are known here are read."""


def _seed_arrays(layer: nn.Module) -> dict[str, NDArray]:
    return {name: _array(tensor) for name, tensor in layer.state_dict().items() if name.startswith("W_")}


def _array(tensor: Any) -> NDArray:
    """A copy, which what the model does next can't change."""
    return np.array(framework.to_numpy(tensor) if isinstance(tensor, Tensor) else tensor)


def _dtype(layer: nn.Module, *tensors: Tensor) -> str:
    return one_dtype(str(tensor.dtype).removeprefix("torch.") for tensor in (*tensors, *layer.parameters()))
