"""Value norm and value scale in JAX; see `mha_core.parts.value_norm`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


def norm_values(x: Array, eps: float | None) -> Array:
    """The heads x (B, G, L, dv), each divided by the root of its mean square; x itself without eps."""
    if eps is None:
        return x
    exact = x.astype(jnp.promote_types(x.dtype, jnp.float32))  # half precision is too coarse for a mean of squares
    return (exact * lax.rsqrt(jnp.square(exact).mean(-1, keepdims=True) + eps)).astype(x.dtype)


def scale_values(x: Array, scale: float | None) -> Array:
    """X * scale; x itself without a scale."""
    return x if scale is None else x * scale
