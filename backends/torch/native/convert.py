"""PyTorch's own attention layer, and d2l.ai's: their weights, exact to the bit.

`to_native(config, weights, "torch")` makes the layer, `from_native(layer)` reads one. How such a layer names
and packs its parameters stands in `mha_core.layouts`, not here.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import nn

from backends.torch.native import live_probe
from backends.torch.native.d2l import D2lMultiHeadAttention
from backends.torch.ops.framework import TORCH_DTYPES, to_numpy, to_tensor
from mha_core import AttentionConfig, SpecError, check_weights, layouts
from mha_core.layouts import Layout
from mha_core.subject import one_width
from mha_core.weights import Weights, common_dtype


def to_native(
    config: AttentionConfig,
    weights: Mapping[str, NDArray],
    layout: str = "torch",
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    **options: Any,
) -> nn.Module:
    """Return a layer of PyTorch or d2l.ai with copies of these weights, in training mode like every new module.

    Args:
        config, weights: see `mha_core.AttentionConfig` and `mha_core.check_weights`. A layer that has one
            switch for all biases gets zeros for those that the config does not have.
        layout: "torch" or its synonym "torch-separate" for torch.nn.MultiheadAttention, with kdim and vdim if
            the widths differ; "d2l-torch" for d2l.ai's layer.
        device: the device of the parameters.
        dtype: the dtype of the parameters. Default: the dtype of the arrays.
        options: further arguments of the layer's constructor, such as `batch_first` (here True unless given).

    Raises:
        SpecError: the layer can't hold these weights, or `layout` is unknown.

    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(6, 2, key_dim=5, value_dim=4)
    >>> to_native(config, init_weights(config, seed=0)).k_proj_weight.shape
    torch.Size([6, 5])
    """
    if layout not in MAKERS:
        raise SpecError(f"layout {layout!r} is of no layer in PyTorch (there are: {', '.join(MAKERS)})")
    checked = check_weights(config, weights)
    source = _torch_layout(config) if layout in TORCH else layouts.get(layout)
    arrays = source.write(config, checked)
    device = torch.device(device)
    dtype = TORCH_DTYPES[common_dtype(checked)] if dtype is None else dtype
    layer = MAKERS[layout](config, any(name.endswith("bias") for name in arrays), options)
    layer.load_state_dict({name: to_tensor(array, dtype, device) for name, array in arrays.items()}, assign=True)
    return layer


def from_native(layer: nn.Module, *, probe: bool = True) -> tuple[AttentionConfig, Weights]:
    """Return a layer's config, and its weights by canonical name, such as "q_proj.weight".

    The weights are read-only copies in the layer's dtype. bfloat16 parameters come out as float32, which holds each of
    them exactly. Besides sizes, the config has `num_heads` and `dropout`.

    Args:
        layer: a torch.nn.MultiheadAttention or a d2l.ai layer, in any mode and dtype, on any device.
        probe: whether to check, by a few small calls in its own dtype, that the layer computes what its weights say. A
            subclass, a hook or an adapter (LoRA) can change that. Hooks run too. The layer is left as it was.

    Raises:
        SpecError: the layer is of another class, has learned or zero keys of its own (bias_k, bias_v, add_zero_attn),
            does not know its widths yet, or has a parameter that is not finite; or, unless probe=False, the layer
            computes something else or can't be run (on the meta device, in torch.compile).

    >>> config, weights = from_native(nn.MultiheadAttention(6, 2, dropout=0.25))
    >>> config.num_heads, config.dropout, weights["k_proj.weight"].shape
    (2, 0.25, (6, 6))
    """
    layout = layout_of(layer)
    state = layer.state_dict()
    for name, tensor in state.items():
        if nn.parameter.is_lazy(tensor):
            raise SpecError(f"{name} has no size yet: call the layer once")
    arrays = {name: to_numpy(tensor) for name, tensor in state.items()}
    config, weights = layout.read(arrays, num_heads=cast(int, layer.num_heads))
    config = replace(config, dropout=_dropout_of(layer))
    if probe and isinstance(layer, nn.MultiheadAttention):
        live_probe.check_torch(layer, config, weights)
    elif probe:
        live_probe.check_d2l(layer, config, weights)
    return config, weights


def layout_of(layer: nn.Module) -> Layout:
    """Return the Layout (names and shapes of the parameters) of a layer. SpecError for a layer that can't be read.

    >>> layout_of(nn.MultiheadAttention(6, 2, kdim=5)).name
    'torch-separate'
    >>> layout_of(nn.MultiheadAttention(6, 2, add_zero_attn=True))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: this MultiheadAttention has add_zero_attn=True: a key of zeros beside the \
given ones, which the definition does not have
    """
    if isinstance(layer, D2lMultiHeadAttention):
        return layouts.get("d2l-torch")
    if not isinstance(layer, nn.MultiheadAttention):
        raise SpecError(
            f"{type(layer).__name__} is no layer that can be read here "
            "(there are: torch.nn.MultiheadAttention, D2lMultiHeadAttention)"
        )
    for name in ("bias_k", "bias_v"):
        if getattr(layer, name) is not None:
            raise SpecError(
                f"this MultiheadAttention has {name} (add_bias_kv=True): a learned key beside the given ones, "
                "which the definition does not have"
            )
    if layer.add_zero_attn:
        raise SpecError(
            "this MultiheadAttention has add_zero_attn=True: a key of zeros beside the given ones, "
            "which the definition does not have"
        )
    return layouts.get("torch" if layer.in_proj_weight is not None else "torch-separate")


TORCH = ("torch", "torch-separate")
"""Both layouts of torch.nn.MultiheadAttention."""


def _torch_layout(config: AttentionConfig) -> Layout:
    """The layout "torch", with packed weights, if all widths are equal, else "torch-separate", as the layer decides."""
    widths = {config.query_dim, config.key_dim, config.value_dim}
    return layouts.get("torch" if len(widths) == 1 else "torch-separate")


def _multihead_attention(config: AttentionConfig, bias: bool, options: Mapping[str, Any]) -> nn.Module:
    return nn.MultiheadAttention(
        config.query_dim,
        config.num_heads,
        config.dropout,
        bias,
        kdim=config.key_dim,
        vdim=config.value_dim,
        # On the meta device no parameter is drawn, so the global random state stays as it is.
        device="meta",
        **{"batch_first": True, **options},
    )


def _d2l_attention(config: AttentionConfig, bias: bool, options: Mapping[str, Any]) -> nn.Module:
    hiddens = one_width("d2l.ai's layer", config)
    with torch.device("meta"):
        return D2lMultiHeadAttention(hiddens, config.num_heads, config.dropout, bias, **options)


MAKERS: dict[str, Callable[[AttentionConfig, bool, Mapping[str, Any]], nn.Module]] = {
    "torch": _multihead_attention,
    "torch-separate": _multihead_attention,
    "d2l-torch": _d2l_attention,
}
"""Layout -> function (config, has biases, options) that makes a layer of it without values."""


def _dropout_of(layer: nn.Module) -> float:
    """The dropout rate: a field of nn.MultiheadAttention, that of a submodule in d2l.ai's layer."""
    if isinstance(layer, D2lMultiHeadAttention):
        return layer.attention.dropout.p
    return float(layer.dropout)  # type: ignore[arg-type]  # nn.Module types an attribute as a tensor or a module
