"""Value norm and value scale in MXNet; see `mha_core.parts.value_norm`."""

from __future__ import annotations

from backends.mxnet.ops.framework import mx


def norm_values(x: mx.np.ndarray, eps: float | None) -> mx.np.ndarray:
    """The heads x (B, G, L, dv), each divided by the root of its mean square; x itself without eps."""
    if eps is None or x.size == 0:
        return x
    return x / mx.np.sqrt(mx.np.mean(mx.np.square(x), axis=-1, keepdims=True) + eps)


def scale_values(x: mx.np.ndarray, scale: float | None) -> mx.np.ndarray:
    """X * scale; x itself without a scale."""
    return x if scale is None or x.size == 0 else x * scale
