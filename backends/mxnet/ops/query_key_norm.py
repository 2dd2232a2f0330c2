"""Query-key norm as a Gluon block; see `mha_core.parts.query_key_norm`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backends.mxnet.ops.framework import check_computes, mx, nothing
from backends.mxnet.ops.operators import operator, record, view
from mha_core.parts.query_key_norm import Order, QueryKeyNorm, by_head

Unnormed = Callable[[Any, Order], Any]

_connected = operator("_npx_fully_connected", no_bias=True, flatten=False)
_matmul = operator("_linalg_gemm2")


def unnormed(x: mx.np.ndarray, order: Order) -> mx.np.ndarray:
    """Return x: a layer without a norm calls this in its place."""
    return x


@mx.util.use_np
class HeadNorm(mx.gluon.Block):
    """A norm of a layer's projected queries (`q_norm`) or keys (`k_norm`).

    Args:
        settings: the kind of norm, its eps and its place, before or after rotation.
        size: the shape of weight and bias, (d,) or (heads * d,); None without them.
        dtype: the dtype of the parameters.
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
        """Return x (B, heads, L, d), normalized if `order` ("before" or "after" rotation) equals `settings.order`."""
        settings = self.settings
        if settings.order != order:
            return x
        weight, bias = (None if own is None else own.data(x.ctx) for own in (self.weight, self.bias))
        if x.size == 0:
            return nothing(x.shape, x, *(own for own in (weight, bias) if own is not None))
        settings.eps_in(float(np.finfo(x.dtype).tiny))
        # settings.product has no effect: there is no half precision in MXNet's layers.
        return _normed(x, weight, bias, settings)


def _normed(
    x: mx.np.ndarray, weight: mx.np.ndarray | None, bias: mx.np.ndarray | None, settings: QueryKeyNorm
) -> mx.np.ndarray:
    """(B, heads, L, d): x normed, with a gradient of its own: MXNet's sums along the last axis are slow."""
    present = [own for own in (weight, bias) if own is not None]
    with mx.autograd.pause(train_mode=True):  # in prediction FullyConnected would reorder its weights in place
        centred = x - _mean(x, settings) if settings.kind == "layer" else x.detach()
        factor = 1.0 / mx.np.sqrt(_mean(mx.np.square(centred), settings) + settings.eps)  # (B, heads or 1, L, 1)
        unit = centred * factor
        scale = None if weight is None else settings.offset + by_head(weight, x.shape)
        normed = unit if scale is None else unit * scale
        normed = normed if bias is None else normed + by_head(bias, x.shape)

    def backward(cotangents: Sequence[mx.np.ndarray], wanted: Sequence[bool]) -> list[mx.np.ndarray]:
        cotangent = cotangents[0]
        with mx.autograd.pause(train_mode=True):
            through = cotangent if scale is None else cotangent * scale
            inside = through - unit * _mean(through * unit, settings)
            if settings.kind == "layer":
                inside = inside - _mean(through, settings)
            of_parameters = [_to_parameter(one, settings) for one in (cotangent * unit, cotangent)[: len(present)]]
            return [inside * factor, *of_parameters]

    record([x, *present], [normed], backward)
    return normed


def _mean(x: mx.np.ndarray, settings: QueryKeyNorm) -> mx.np.ndarray:
    """The mean over a head, (B, heads, L, 1), or over all heads of a token, (B, 1, L, 1): a product with ones."""
    width = x.shape[3]
    ones = mx.np.full((1, width), 1.0 / width, x.dtype, ctx=x.ctx)
    of_heads = _connected(x, ones, num_hidden=1)
    return mx.np.mean(of_heads, axis=1, keepdims=True) if settings.scope == "all" else of_heads


def _to_parameter(x: mx.np.ndarray, settings: QueryKeyNorm) -> mx.np.ndarray:
    """(B, heads, L, d) -> (d,) or (heads * d,): the sum over everything that shares one number of a weight."""
    batch, heads, length, width = x.shape
    if settings.weight == "shared":
        return _rows_summed(view(x, (1, -1, width))).reshape(-1)
    return mx.np.sum(_rows_summed(view(x, (-1, length, width))).reshape(batch, heads, width), axis=0).reshape(-1)


def _rows_summed(x: mx.np.ndarray) -> mx.np.ndarray:
    """(n, rows, d) -> (n, 1, d): a product with ones."""
    return _matmul(mx.np.ones((x.shape[0], 1, x.shape[1]), x.dtype, ctx=x.ctx), x)
