"""Query-key norm as a Gluon block; see `mha_core.parts.query_key_norm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backends.mxnet.ops.framework import check_computes, mx, nothing
from mha_core.parts.query_key_norm import Order, QueryKeyNorm, by_head, mean_axes

Unnormed = Callable[[Any, Order], Any]


def unnormed(x: mx.np.ndarray, order: Order) -> mx.np.ndarray:
    """Return x: a layer without a norm calls this in its place."""
    return x


@mx.util.use_np
class HeadNorm(mx.gluon.Block):
    """The norm of the queries or of the keys of a layer: `q_norm` or `k_norm`.

    Args:
        settings: those of the layer.
        size: of weight and bias, (d,) or (heads * d,); None without them.
        dtype: of the parameters.
        **kwargs: `prefix` and `params`, as of every Block.
    """

    def __init__(self, settings: QueryKeyNorm, size: int | None, *, dtype: Any = "float32", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.settings = settings
        self.weight = self.bias = None
        if size is not None:
            check_computes("parameters", dtype)
            start = mx.init.Constant(settings.start)
            self.weight = self.params.get("weight", shape=(size,), init=start, dtype=dtype)
            if settings.bias:
                self.bias = self.params.get("bias", shape=(size,), init=mx.init.Zero(), dtype=dtype)

    def forward(self, x: mx.np.ndarray, order: Order) -> mx.np.ndarray:
        """(B, heads, L, d): x normed, if the layer norms in this order: "before" or "after" the rotation; else x."""
        settings = self.settings
        if settings.order != order:
            return x
        weight, bias = (None if own is None else own.data(x.ctx) for own in (self.weight, self.bias))
        if x.size == 0:
            return nothing(x.shape, x, *(own for own in (weight, bias) if own is not None))
        axes = mean_axes(settings)
        if settings.kind == "layer":
            x = x - mx.np.mean(x, axis=axes, keepdims=True)
        # settings.product has no effect: there is no half precision in MXNet's layers.
        normed = x / mx.np.sqrt(mx.np.mean(mx.np.square(x), axis=axes, keepdims=True) + settings.eps)
        if weight is not None:
            normed = normed * (settings.offset + by_head(weight, x.shape))
        return normed if bias is None else normed + by_head(bias, x.shape)
