"""MLX on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from conformance.subjects.ask import CannotExpress

DTYPES = ("float64", "float32", "bfloat16", "float16")


def run(
    attend: Callable[..., Any], given: Sequence[NDArray], options: Mapping[str, Any], dtype: str, cotangent: Any
) -> list[Any]:
    """Return the output, and gradients if there is a cotangent."""
    mx.set_default_device(mx.cpu)

    def array(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return mx.array(value, getattr(mx, dtype)) if value.dtype.kind == "f" else mx.array(value)

    made = {name: array(value) for name, value in options.items()}
    leaves = [array(value) for value in given]
    if cotangent is None:
        found = [attend(*leaves, **made)]
    else:
        outputs, gradients = mx.vjp(lambda *leaves: attend(*leaves, **made), leaves, [array(cotangent)])
        found = [*outputs, *gradients]
    return [np.array(one.astype(mx.float32) if one.dtype == mx.bfloat16 else one) for one in found]


def sdpa(
    q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False, scale: float | None = None, sinks: Any = None
) -> Any:
    if causal and mask is not None:
        raise CannotExpress("a mask and causal are one argument")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal" if causal else mask, sinks=sinks)
