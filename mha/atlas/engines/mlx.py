"""MLX on the CPU."""

import mlx.core as mx
import numpy as np

from conformance.subjects.ask import CannotExpress

DTYPES = ("float64", "float32", "bfloat16", "float16")


def of(array, dtype):
    mx.set_default_device(mx.cpu)
    return mx.array(array, getattr(mx, dtype)) if array.dtype.kind == "f" else mx.array(array)


def computed(attend, leaves, cotangent):
    if cotangent is None:
        return [attend(*leaves)]
    outputs, gradients = mx.vjp(attend, leaves, [cotangent])
    return [*outputs, *gradients]


def back(array):
    return np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)


def sdpa(q, k, v, *, mask=None, causal=False, scale=None, sinks=None):
    if causal and mask is not None:
        raise CannotExpress("a mask and causal are one argument")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal" if causal else mask, sinks=sinks)
