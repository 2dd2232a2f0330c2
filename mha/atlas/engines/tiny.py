"""tinygrad on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinygrad import Tensor, dtypes

DTYPES = ("float64", "float32", "bfloat16", "float16")


def run(
    attend: Callable[..., Any], given: Sequence[NDArray], options: Mapping[str, Any], dtype: str, cotangent: Any
) -> list[Any]:
    """Return the output, and gradients if there is a cotangent."""

    def tensor(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        made = Tensor(value)
        return made.cast(getattr(dtypes, dtype)) if value.dtype.kind == "f" else made

    made = {name: tensor(value) for name, value in options.items()}
    leaves = [tensor(value) for value in given]
    found = [attend(*leaves, **made)]
    if cotangent is not None:
        found += found[0].gradient(*leaves, gradient=tensor(cotangent))
    return [(one.float() if dtype == "bfloat16" else one).numpy() for one in found]


def sdpa(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False) -> Any:
    grouped = q.shape[1] != k.shape[1]
    return q.scaled_dot_product_attention(k, v, mask, is_causal=causal, enable_gqa=grouped)
