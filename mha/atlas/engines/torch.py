"""PyTorch: scaled_dot_product_attention by kernel and exported, and flex_attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

DTYPES = ("float64", "float32", "bfloat16", "float16")


def run(
    attend: Callable[..., Any], given: Sequence[NDArray], options: Mapping[str, Any], dtype: str, cotangent: Any
) -> list[Any]:
    """Return the output, and gradients if there is a cotangent."""

    def tensor(array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return array
        made = torch.from_numpy(array.copy())
        return made.to(getattr(torch, dtype)) if made.is_floating_point() else made

    leaves = [tensor(array).requires_grad_(cotangent is not None) for array in given]
    output = attend(*leaves, **{name: tensor(value) for name, value in options.items()})
    found = [output]
    if cotangent is not None:
        found += torch.autograd.grad(output, leaves, tensor(cotangent))
    return [(one.float() if one.dtype == torch.bfloat16 else one).detach().numpy() for one in found]


def sdpa(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False, scale: float | None = None) -> Any:
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped)


def sdpa_math(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False, scale: float | None = None) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(q, k, v, mask=mask, causal=causal, scale=scale)


def sdpa_flash(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False, scale: float | None = None) -> Any:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa(q, k, v, mask=mask, causal=causal, scale=scale)


class _Sdpa(torch.nn.Module):
    def __init__(self, causal: bool, scale: float | None) -> None:
        super().__init__()
        self.causal, self.scale = causal, scale

    def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return sdpa(q, k, v, mask=mask, causal=self.causal, scale=self.scale)


def sdpa_exported(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False, scale: float | None = None) -> Any:
    module = _Sdpa(causal, scale)
    return torch.export.export(module, (q, k, v, mask)).module()(q, k, v, mask)


def flex(
    q: Any,
    k: Any,
    v: Any,
    *,
    allowed: Any = None,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Any:
    """Return the output; mask, bias and softcap are written as functions, as its page does."""

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        s = s if softcap is None else softcap * torch.tanh(s / softcap)
        return s if bias is None else s + bias[b, h, i, j]

    block = None
    if allowed is not None:
        sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        block = create_block_mask(lambda b, h, i, j: allowed[b, h, i, j], *sizes, device="cpu")
    grouped = q.shape[1] != k.shape[1]
    plain = bias is None and softcap is None
    return flex_attention(q, k, v, None if plain else score, block, scale=scale, enable_gqa=grouped)
