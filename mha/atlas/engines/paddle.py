"""PaddlePaddle's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.nn.functional import scaled_dot_product_attention

DTYPES = ("float64", "float32", "bfloat16", "float16")


def run(
    attend: Callable[..., Any], given: Sequence[NDArray], options: Mapping[str, Any], dtype: str, cotangent: Any
) -> list[Any]:
    """Return the output, and gradients if there is a cotangent."""

    def tensor(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        made = paddle.to_tensor(value)
        return made.astype(dtype) if made.is_floating_point() else made

    made = {name: tensor(value) for name, value in options.items()}
    leaves = [tensor(value) for value in given]
    for leaf in leaves:
        leaf.stop_gradient = cotangent is None
    found = [attend(*leaves, **made)]
    if cotangent is not None:
        found += paddle.grad(found, leaves, [tensor(cotangent)])
    return [(one.astype("float32") if one.dtype == paddle.bfloat16 else one).numpy() for one in found]


def sdpa(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False) -> Any:
    q, k, v = (one.transpose([0, 2, 1, 3]) for one in (q, k, v))
    return scaled_dot_product_attention(q, k, v, mask, is_causal=causal).transpose([0, 2, 1, 3])
