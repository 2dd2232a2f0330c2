"""Value norm and value scale in PyTorch; see `mha_core.parts.value_norm`."""

from __future__ import annotations

import torch
from torch import Tensor


def norm_values(x: Tensor, eps: float | None) -> Tensor:
    """The heads x (B, G, L, dv), each divided by the root of its mean square; x itself without eps."""
    if eps is None:
        return x
    exact = x.to(torch.promote_types(x.dtype, torch.float32))  # half precision is too coarse for a mean of squares
    return (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def scale_values(x: Tensor, scale: float | None) -> Tensor:
    """X * scale; x itself without a scale."""
    return x if scale is None else x * scale
