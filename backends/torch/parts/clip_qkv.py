"""Clipped projections in PyTorch; see `mha_core.parts.clip_qkv`."""

from __future__ import annotations

from torch import Tensor


def clip(x: Tensor, limit: float | None) -> Tensor:
    """X with numbers beyond +-limit replaced by that; x itself without a limit. At the limit, the gradient passes."""
    return x if limit is None else x.clamp(-limit, limit)
