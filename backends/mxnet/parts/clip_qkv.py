"""Clipped projections in MXNet; see `mha_core.parts.clip_qkv`."""

from __future__ import annotations

from backends.mxnet.ops.framework import mx


def clip(x: mx.np.ndarray, limit: float | None) -> mx.np.ndarray:
    """X with numbers beyond +-limit replaced by that; x itself without a limit. At the limit, the gradient passes."""
    if limit is None or x.size == 0:
        return x
    return mx.np.maximum(mx.np.minimum(x, limit), -limit)  # mx.np.clip rounds the limit to float32
