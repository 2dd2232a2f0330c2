"""Clipped projections in JAX; see `mha_core.parts.clip_qkv`."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def clip(x: Array, limit: float | None) -> Array:
    """X with numbers beyond +-limit replaced by that; x itself without a limit. At the limit, the gradient passes."""
    if limit is None:
        return x
    return jnp.where(x > limit, limit, jnp.where(x < -limit, -limit, x))  # jnp.clip passes half of it at the limit
