"""Hooks on PyTorch's modules for `mha.capture`, and adapters that read the calls of attention layers."""

import copy
import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from backends.torch.layers import MultiHeadAttention
from backends.torch.native import convert as native
from backends.torch.native import live_probe
from backends.torch.native import modules as modules
from backends.torch.native.seam import intercept_attention as intercept_attention
from backends.torch.ops import framework
from backends.torch.weights import to_weights
from mha_core import AttentionInputs, AttentionMask, SpecError, layouts
from mha_core.capture import (
    LayerAdapter,
    ReadCall,
    arguments_of,
    as_called,
    d2l_call,
    has_d2l_parts,
    none_found,
    one_dtype,
    outermost,
    own_call,
    refuse_dropout,
)


def versions() -> dict[str, str]:
    """Return package -> version, of the packages that compute."""
    return {"torch": torch.__version__}


def parts_of(module: nn.Module) -> tuple[list[str], Callable[[], list[int]]]:
    """Return (names of direct submodules with parameters, function that returns the `id`s of all modules inside)."""
    parts = [name for name, part in module._modules.items() if part is not None and _holds(part)]
    parts += [name for name, parameter in module._parameters.items() if parameter is not None]
    return parts, lambda: [id(part) for part in module.modules()]


def modules_in(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of all modules inside a module, with names relative to it."""
    return [(name, part) for name, part in module.named_modules() if name]


def projects(module: nn.Module) -> bool:
    """Return whether a module is a linear projection: nn.Linear, or transformers' Conv1D, whose matrix is (in, out)."""
    return isinstance(module, nn.Linear) or _is_transposed(module)


def matrix_of(module: Any) -> tuple[Tensor, Tensor | None]:
    """Return the matrix of a projection, (out, in), and its bias, (out,) or None."""
    return module.weight.T if _is_transposed(module) else module.weight, module.bias


def _is_transposed(module: Any) -> bool:
    own = [type(module).__name__, *module._parameters]
    return own == ["Conv1D", "weight", "bias"] and module.weight.dim() == 2


def as_array(value: Any) -> tuple[NDArray, str] | None:
    """Return a NumPy copy of a tensor and the name of its dtype; None for anything else."""
    return (_array(value), str(value.dtype).removeprefix("torch.")) if isinstance(value, Tensor) else None


def is_random(module: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """Return whether a module's output is random: equal in two runs with one seed, different with another seed.

    The runs are on copies. False if the module or its arguments can't be copied or run again.
    """
    inside = set(module.modules()) - {module}  # its own hooks are running
    for watched in _WATCHED:
        watched.detach(inside)
    try:
        devices = {tensor.device for tensor in module.parameters() if tensor.is_cuda}
        found = []
        with torch.random.fork_rng(devices=list(devices)), torch.no_grad():
            for seed in (0, 0, 1):
                one, given = copy.deepcopy((module, dict(arguments)))
                torch.manual_seed(seed)
                output = one.forward(**given)
                found.append(output[0] if isinstance(output, tuple) else output)
        first, again, other = found
        return torch.equal(first, again) and not torch.equal(first, other)
    except Exception:  # of somebody's module, which may not be made for this
        return False
    finally:
        for watched in _WATCHED:
            watched.attach(inside)


def _holds(module: nn.Module) -> bool:
    """Whether a module has parameters or a state_dict; a quantized layer has its numbers in the latter alone."""
    return any(True for _ in module.parameters()) or bool(module.state_dict())


@contextmanager
def watch(
    target: nn.Module,
    choose: Callable[[str, Any], Any],
    seen: Callable[..., Any],
    begun: Callable[..., None] | None = None,
) -> Iterator[None]:
    """Return a context that calls `begun` before and `seen` after each call of a module that `choose` accepts.

    `mha.recordings.hooks.Hooks.watch` explains these functions. Forward hooks disable fast paths that skip modules. So
    nn.TransformerEncoder runs twice in eval() with a padding mask. The second run, without hooks, gives its output.
    """
    if hasattr(target, "_orig_mod"):
        raise SpecError("capture needs the module itself, not what torch.compile made of it: give module._orig_mod")
    chosen = list(outermost(target.named_modules(), choose, "."))
    if not chosen:
        raise none_found(target)
    with ExitStack() as hooks:
        watched = _Watched([(name, adapter, module) for name, module, adapter in chosen], seen, begun)
        _WATCHED.append(watched)
        hooks.callback(_WATCHED.remove, watched)
        watched.attach()
        hooks.callback(watched.detach)
        for encoder in target.modules():
            if isinstance(encoder, nn.TransformerEncoder) and encoder.use_nested_tensor:
                hooks.callback(setattr, encoder, "use_nested_tensor", True)
                encoder.use_nested_tensor = False
                again = encoder.register_forward_hook(_without_hooks, prepend=True, with_kwargs=True)
                hooks.callback(again.remove)
        yield


class _Watched:
    """The hooks of one `watch`."""

    def __init__(
        self, modules: list[tuple[str, Any, nn.Module]], seen: Callable[..., Any], begun: Callable[..., None] | None
    ) -> None:
        self._modules, self._seen, self._begun = modules, seen, begun
        self._handles: dict[nn.Module, list[Any]] = {}

    def attach(self, within: Collection[nn.Module] | None = None) -> None:
        """Add the hooks of the modules in `within`, or of all."""
        for name, adapter, module in self._modules:
            if within is not None and module not in within:
                continue
            signature = inspect.signature(module.forward)
            handles = self._handles.setdefault(module, [])
            if self._begun is not None:
                before = self._before(name, signature)
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            after = self._after(name, adapter, signature)
            handles.append(module.register_forward_hook(after, with_kwargs=True))

    def detach(self, within: Collection[nn.Module] | None = None) -> None:
        """Remove the hooks of the modules in `within`, or of all."""
        for module in [module for module in self._handles if within is None or module in within]:
            for handle in self._handles.pop(module):
                handle.remove()

    def _before(self, name: str, signature: inspect.Signature) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            framework.refuse_autocast(module)
            assert self._begun is not None
            self._begun(name, module, as_called(signature, args, kwargs))

        return hook

    def _after(self, name: str, adapter: Any, signature: inspect.Signature) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            framework.refuse_autocast(module)
            arguments = arguments_of(signature, args, kwargs) if getattr(adapter, "reads", True) else {}
            return self._seen(name, module, arguments, output)

        return hook


_WATCHED: list[_Watched] = []
"""Every `watch` that lasts."""


def _without_hooks(encoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """A hook that replaces an encoder's output by its output without any of our hooks in it."""
    bound = inspect.signature(encoder.forward).bind(*args, **kwargs)
    if encoder.training or bound.arguments.get("src_key_padding_mask") is None:
        return output  # without hooks no other path would be taken
    inside = set(encoder.modules()) - {encoder}  # its own hooks are running
    for watched in _WATCHED:
        watched.detach(inside)
    encoder.use_nested_tensor = True
    try:
        with warnings.catch_warnings():
            # A warning about nested tensors, which says nothing about the captured layers.
            warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors", category=UserWarning)
            return encoder.forward(*args, **kwargs)
    finally:
        encoder.use_nested_tensor = False
        for watched in _WATCHED:
            watched.attach(inside)


_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(nn.MultiheadAttention.forward).parameters.items()
    if parameter.default is not inspect.Parameter.empty
}
"""Argument of torch.nn.MultiheadAttention.forward -> its default."""


class TorchLayer(LayerAdapter):
    """An adapter that reads calls of torch.nn.MultiheadAttention."""

    kind = "torch.nn.MultiheadAttention"
    layer_type = nn.MultiheadAttention

    def check(self, layer: nn.MultiheadAttention) -> None:
        native.layout_of(layer)

    def probe(self, layer: nn.MultiheadAttention) -> None:
        native.from_native(layer)

    def read(self, layer: nn.MultiheadAttention, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        config, weights = native.from_native(layer, probe=False)
        refuse_dropout(training=layer.training, rate=config.dropout)
        arguments = {**_DEFAULTS, **arguments}  # a subclass may hand down **kwargs
        query, key, value = (arguments[name] for name in ("query", "key", "value"))
        if not (isinstance(output, tuple) and len(output) == 2):
            raise SpecError(f"{type(layer).__qualname__} does not return (output, weights), as its class does")
        result, returned = output
        dtypes = _dtypes(layer, query, key, value, result)
        batched = query.dim() == 3

        def in_order(tensor: Tensor) -> NDArray:
            """Return the tensor as (B, L, width), from whichever order of axes the layer uses."""
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
        return ReadCall(config, weights, AttentionInputs(queries, keys, values, mask), outputs, *dtypes)


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
    """Bool, True = excluded, of a bool mask or one of zeros and -inf, as PyTorch makes; other masks as they are."""
    if mask.dtype == bool:
        return mask
    excluded = np.isneginf(mask)
    return excluded if (excluded | (mask == 0.0)).all() else mask


def _check_causal(attn_mask: Tensor, query_len: int, key_len: int) -> None:
    """SpecError unless attn_mask is the causal mask, as is_causal says: if they differ, PyTorch may use either."""
    if attn_mask is None:
        raise SpecError(
            "is_causal=True needs an attn_mask beside it: without one PyTorch attends to every key on its fast path "
            "and raises an error off it"
        )
    excluded = _as_bool(_array(attn_mask))
    wanted = np.triu(np.ones((query_len, key_len), dtype=bool), k=1)
    if excluded.dtype != bool or not (excluded == wanted).all():
        raise SpecError(
            "is_causal=True says that attn_mask is the causal mask, and it is another one: whether "
            "torch.nn.MultiheadAttention follows the one or the other depends on need_weights. Leave is_causal out."
        )


class OwnLayer(LayerAdapter):
    """An adapter that reads calls of backends.torch.MultiHeadAttention. It records them unchanged."""

    kind = "backends.torch.MultiHeadAttention"
    layer_type = MultiHeadAttention

    def read(self, layer: MultiHeadAttention, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        result = output[0] if isinstance(output, tuple) else output
        dtypes = _dtypes(layer, arguments["queries"], result)
        call = arguments, output, _array
        return own_call(layer.config, to_weights(layer), *call, training=layer.training, dtypes=dtypes)


class D2lLayer(LayerAdapter):
    """An adapter for layers like d2l.ai's: the same arguments, and the attributes W_q, W_k, W_v, W_o and num_heads."""

    kind = "d2l.torch.MultiHeadAttention"

    def matches(self, layer: nn.Module) -> bool:
        return has_d2l_parts(layer, layer.forward, nn.Linear)

    def probe(self, layer: Any) -> None:
        if any(nn.parameter.is_lazy(parameter) for parameter in layer.parameters()):
            return  # its first call decides its widths
        config, weights = layouts.get("d2l-torch").read(_d2l_arrays(layer), num_heads=int(layer.num_heads))
        live_probe.check_d2l(layer, config, weights)

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        rates = [part.p for part in layer.modules() if isinstance(part, nn.Dropout)]
        refuse_dropout(training=layer.training, rate=max(rates, default=0.0))
        arrays = _d2l_arrays(layer)
        dtypes = _dtypes(layer, next(iter(arguments.values())), output)
        inner = getattr(getattr(layer, "attention", None), "attention_weights", None)
        call = arguments, output, inner, _array
        return d2l_call(arrays, *call, layout="d2l-torch", num_heads=int(layer.num_heads), dtypes=dtypes)


ADAPTERS = (TorchLayer(), OwnLayer(), D2lLayer())
"""The adapters of the layers that can be captured; each reads the calls of one kind of layer."""


def _d2l_arrays(layer: nn.Module) -> dict[str, NDArray]:
    return {name: _array(tensor) for name, tensor in layer.state_dict().items() if name.startswith("W_")}


def _array(tensor: Any) -> NDArray:
    """A copy in NumPy, which the model can't change afterwards."""
    return framework.copied(tensor) if isinstance(tensor, Tensor) else np.array(tensor)


def _dtypes(layer: nn.Module, *tensors: Tensor) -> tuple[str, str]:
    """The dtype of the computation and that of the parameters, which must be one and the same; SpecError if not."""
    dtype = one_dtype(str(tensor.dtype).removeprefix("torch.") for tensor in (*tensors, *layer.parameters()))
    return dtype, dtype
