"""The seam in PyTorch: calls of `scaled_dot_product_attention` inside a model, by whatever name it is called."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from backends.torch.ops import framework
from mha_core.capture import one_dtype
from mha_core.errors import SpecError, one_line
from mha_core.seam import Handover, Seen, number

_ARGUMENTS = inspect.signature(
    lambda query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False: None
)
"""The signature of `scaled_dot_product_attention`, which is built in and has none to ask for."""


@contextmanager
def watch_attention(target: nn.Module, seen: Seen) -> Iterator[None]:
    """Tell `seen` of each call of `scaled_dot_product_attention` inside the target, where no outer function is watched.

    The call belongs to the innermost module of the target that is running. What the function gives stays as it is.
    """
    names = {id(module): (name, module) for name, module in target.named_modules()}
    with _Mode(names, seen):
        yield


class _Mode(TorchFunctionMode):
    def __init__(self, names: Mapping[int, tuple[str, nn.Module]], seen: Seen) -> None:
        super().__init__()
        self._names, self._seen = names, seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is not F.scaled_dot_product_attention or _outer:
            return func(*args, **given)
        return watched_call(
            lambda: func(*args, **given), lambda: _of_sdpa(args, given), self._seen, *self._caller(sys._getframe(1))
        )

    def _caller(self, frame: Any) -> tuple[str, Any]:
        """Name and module of the innermost frame that runs a module of the target; ("", None) for none."""
        while frame is not None:
            found = self._names.get(id(frame.f_locals.get("self")))
            if found is not None:
                return found
            frame = frame.f_back
        return "", None


_outer: list[None] = []
"""Not empty while a function that is watched itself runs: what it calls is a part of it."""


def watched_call(
    call: Callable[[], Any],
    read: Callable[[], Callable[[Any], Handover]],
    seen: Seen,
    name: str,
    module: Any,
) -> Any:
    """Run one call of an attention function, and tell `seen` what it was handed and gave, or why it can't be read.

    Args:
        call: runs it.
        read: copies what it is handed, before it runs, and returns what makes a Handover of its result.
        seen: is told.
        name, module: who calls it.
    """
    found: Callable[[Any], Handover] | SpecError
    try:
        found = read()
    except Exception as error:  # of arguments that are not what the function takes, which it says itself
        found = error if isinstance(error, SpecError) else SpecError(one_line(error))
    _outer.append(None)
    try:
        result = call()
    finally:
        _outer.pop()
    if not isinstance(found, SpecError):
        try:
            seen(name, module, found(result))
            return result
        except Exception as error:
            found = error if isinstance(error, SpecError) else SpecError(one_line(error))
    seen(name, module, found)
    return result


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
) -> Callable[[Any], Handover]:
    """Copy what a call is handed, (B, H, Lq, d) and so on; returns what makes a Handover of its output, (B, H, Lq, dv).

    Raises:
        SpecError: dropout is active, the tensors have no numbers, or are of several dtypes.
    """
    if dropout:
        raise SpecError(f"dropout={dropout:g} is active; call model.eval()")
    if query.is_meta:
        raise SpecError("it is on the meta device and has no numbers")
    arrays = [_in_heads(tensor) for tensor in (query, key, value)]
    of_masks = tuple(framework.copied(mask) for mask in masks)
    of_sinks = None if sinks is None else framework.copied(sinks)

    def with_output(output: Any, weights: Any = None) -> Handover:
        if torch.is_autocast_enabled(query.device.type):
            raise SpecError("it runs under torch.autocast, in mixed precision; run it without")
        dtype = one_dtype(str(tensor.dtype).removeprefix("torch.") for tensor in (query, key, value, output))
        returned = None if weights is None else framework.copied(weights)
        return Handover(
            *arrays, _in_heads(output), dtype, of_masks, causal, scale, softcap, of_sinks, returned
        )

    return with_output


def _in_heads(tensor: Tensor) -> NDArray:
    """A copy as (B, heads, L, d); what has three axes is of one head, or of items and heads in one axis."""
    if tensor.dim() == 3:
        tensor = tensor[:, None]
    if tensor.dim() != 4:
        raise SpecError(f"its attention function is handed {tensor.dim()} axes; (B, heads, L, d) are read")
    return framework.copied(tensor)
