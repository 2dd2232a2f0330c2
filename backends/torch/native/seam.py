"""The seam in PyTorch: calls of `scaled_dot_product_attention` inside a model, by whatever name it is called.

That includes those which `multi_head_attention_forward` makes, where a layer calls this with parameters of its own.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from backends.torch.ops import framework
from mha_core.capture import one_dtype
from mha_core.errors import SpecError
from mha_core.seam import AttentionCall, Handle, Handover, caller, number

_ARGUMENTS = inspect.signature(
    lambda query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False: None
)
"""The signature of `scaled_dot_product_attention`, which is built in and has none to ask for."""


CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Classes of PyTorch that hold modules of others."""


@contextmanager
def intercept_attention(target: nn.Module, handle: Handle) -> Iterator[None]:
    """Return a context in which `handle` runs in place of each call of `scaled_dot_product_attention` in the target.

    `handle(AttentionCall)` returns the call's result. `AttentionCall.module` is the innermost running module.
    """
    names = {id(module): name for name, module in target.named_modules()}
    mode = _Mode(names, handle)
    regions = list(_without_own_layers(target))
    if regions == [target]:
        with mode:
            yield
        return
    with ExitStack() as hooks:
        for region in regions:
            for add, run in (
                (region.register_forward_pre_hook, lambda *_: mode.__enter__() and None),
                (partial(region.register_forward_hook, always_call=True), lambda *_: mode.__exit__(None, None, None)),
            ):
                hooks.callback(add(run).remove)
        yield


def _without_own_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The largest parts of a model without PyTorch's own attention layers, which run another way inside a mode."""
    if not any(isinstance(part, nn.MultiheadAttention) for part in module.modules()):
        yield module
    elif not type(module).__module__.startswith("torch.nn.modules.") or isinstance(module, CONTAINERS):
        for part in module.children():
            yield from _without_own_layers(part)


class _Mode(TorchFunctionMode):
    def __init__(self, names: Mapping[int, str], handle: Handle) -> None:
        super().__init__()
        self._names, self._handle = names, handle

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is F.multi_head_attention_forward and not _parts:
            return self._inside(func, args, given)
        if func is not F.scaled_dot_product_attention or _parts:
            return func(*args, **given)
        return self._taken(func, args, given, _of_sdpa)

    def _inside(self, func: Any, args: Any, given: Any) -> Any:
        """Run `multi_head_attention_forward`, and take the call of the attention function in it.

        No mode is active in there. With `need_weights` it has a softmax of its own: the call is reported as not read.
        """
        if inspect.signature(func).bind(*args, **given).arguments.get("need_weights", True):
            return self._taken(func, args, given, _without_function)
        attend = F.scaled_dot_product_attention

        def taken(*args: Any, **given: Any) -> Any:
            if _parts:
                return attend(*args, **given)
            with as_a_part():
                return self._taken(attend, args, given, _of_sdpa)

        with mock.patch.object(F, attend.__name__, taken):
            return func(*args, **given)

    def _taken(self, func: Any, args: Any, given: Any, read: Callable[..., Callable[[Any], Handover]]) -> Any:
        name, module = caller(lambda one: self._names.get(id(one)), sys._getframe(1))
        return self._handle(
            AttentionCall(
                name,
                module,
                read=lambda: read(args, given),
                run=lambda: func(*args, **given),
                give=lambda output: _as_output(output, _ARGUMENTS.bind(*args, **given).arguments["query"]),
            )
        )


_parts: list[None] = []


@contextmanager
def as_a_part() -> Iterator[None]:
    """Return a context in which `intercept_attention` replaces no call. It is used while an intercepted call runs."""
    _parts.append(None)
    try:
        yield
    finally:
        _parts.pop()


def to_output(array: NDArray, query: Tensor) -> Tensor:
    """Return an output (B, H, Lq, dv) as a tensor with the queries' dtype and device. SpecError under autograd."""
    if torch.is_grad_enabled() and query.requires_grad:
        raise SpecError("another backend's attention has no gradients in PyTorch; run the model under torch.no_grad()")
    return torch.from_numpy(np.array(array)).to(device=query.device, dtype=query.dtype)


def _as_output(array: NDArray, query: Tensor) -> Tensor:
    output = to_output(array, query)
    return output[:, 0] if query.dim() == 3 else output


def _without_function(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Any], Handover]:
    raise SpecError(
        "multi_head_attention_forward(..., need_weights=True) computes its weights itself, and calls no attention "
        "function; say need_weights=False, and its call is read"
    )


def _of_sdpa(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Any], Handover]:
    bound = _ARGUMENTS.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    mask = given["attn_mask"]
    return handed(
        *(given[name] for name in ("query", "key", "value")),
        masks=[] if mask is None else [mask],
        causal=bool(given["is_causal"]),
        scale=number("scale", given["scale"]),
        dropout=float(given["dropout_p"]),
    )


def handed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    masks: list[Tensor],
    causal: bool,
    scale: float | None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Callable[..., Handover]:
    """Copy a call's arguments. Return a function: output (B, H, Lq, dv) -> Handover (a record of arguments and output).

    Raises:
        SpecError: dropout is active, a tensor is on the meta device, or the tensors' dtypes differ.
    """
    if dropout:
        raise SpecError(f"dropout={dropout:g} is active; call model.eval()")
    if query.is_meta:
        raise SpecError("it is on the meta device and has no numbers")
    queries, keys, values = map(_in_heads, (query, key, value))
    by_item = [mask[:, None] if mask.dim() == query.dim() == 3 else mask for mask in masks]
    of_masks = tuple(framework.copied(mask) for mask in by_item)
    of_sinks = None if sinks is None else framework.copied(sinks)

    def with_output(output: Any, weights: Any = None) -> Handover:
        if torch.is_autocast_enabled(query.device.type):
            raise SpecError("it runs under torch.autocast, in mixed precision; run it without")
        own = [query, key, value] if output is None else [query, key, value, output]
        dtype = one_dtype(framework.dtype_name(tensor.dtype) for tensor in own)
        given = None if output is None else _in_heads(output)
        returned = None if weights is None else framework.copied(weights)
        return Handover(queries, keys, values, given, dtype, of_masks, causal, scale, softcap, of_sinks, returned)

    return with_output


def _in_heads(tensor: Tensor) -> NDArray:
    """A copy as (B, heads, L, d); what has three axes is of one head, or of items and heads in one axis."""
    if tensor.dim() == 3:
        tensor = tensor[:, None]
    if tensor.dim() != 4:
        raise SpecError(f"its attention function is handed {tensor.dim()} axes; (B, heads, L, d) are read")
    return framework.copied(tensor)
