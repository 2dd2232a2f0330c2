"""Query-key norm as a Flax linen module; see `mha_core.parts.query_key_norm`."""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.typing import Dtype
from jax import Array, lax

from mha_core.parts.query_key_norm import Order, QueryKeyNorm, by_head, mean_axes

Unnormed = Callable[[Any, Order], Any]


def unnormed(x: Array, order: Order) -> Array:
    """Return x: a layer without a norm calls this in its place."""
    return x


class HeadNorm(nn.Module):
    """A norm of a layer's projected queries (`q_norm`) or keys (`k_norm`), with parameters "weight" and "bias".

    Attributes:
        settings: the kind of norm, its eps and its place, before or after rotation.
        size: the shape of weight and bias, (d,) or (heads * d,); None without them.
        param_dtype: the dtype of the parameters.
    """

    settings: QueryKeyNorm
    size: int | None
    _: KW_ONLY
    param_dtype: Dtype = jnp.float32

    def setup(self) -> None:
        self.weight = self.bias = None
        if self.size is not None:
            start, shape = nn.initializers.constant(self.settings.start), (self.size,)
            self.weight = self.param("weight", start, shape, self.param_dtype)
            if self.settings.bias:
                self.bias = self.param("bias", nn.initializers.zeros, shape, self.param_dtype)

    def __call__(self, x: Array, order: Order) -> Array:
        """Return x (B, heads, L, d), normalized if `order` ("before" or "after" rotation) equals `settings.order`."""
        settings = self.settings
        if settings.order != order:
            return x
        axes = mean_axes(settings)
        exact = x.astype(jnp.promote_types(x.dtype, jnp.float32))  # half precision is too coarse for a mean of squares
        if settings.kind == "layer":
            exact = exact - exact.mean(axes, keepdims=True)
        eps = settings.eps_in(float(jnp.finfo(exact.dtype).tiny))
        normed = exact * lax.rsqrt(jnp.square(exact).mean(axes, keepdims=True) + eps)
        if settings.product == "dtype":
            normed = normed.astype(x.dtype)
        if self.weight is not None:
            normed = normed * (settings.offset + by_head(self.weight.astype(normed.dtype), x.shape))
        if self.bias is not None:
            normed = normed + by_head(self.bias.astype(normed.dtype), x.shape)
        return normed.astype(x.dtype)
