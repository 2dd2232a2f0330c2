"""TensorFlow: what runs its functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

DTYPES = ("float64", "float32", "bfloat16", "float16")


def run(
    attend: Callable[..., Any], given: Sequence[NDArray], options: Mapping[str, Any], dtype: str, cotangent: Any
) -> list[Any]:
    """Return the output, and gradients if there is a cotangent."""

    def tensor(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        made = tf.constant(value)
        return tf.cast(made, dtype) if made.dtype.is_floating else made

    made = {name: tensor(value) for name, value in options.items()}
    leaves = [tensor(value) for value in given]
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        found = [attend(*leaves, **made)]
    if cotangent is not None:
        found += tape.gradient(found[0], leaves, tensor(cotangent))
    return [(tf.cast(one, "float32") if one.dtype == "bfloat16" else one).numpy() for one in found]
