"""Gradients of another layer's own parameters, under the canonical names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mha_core.config import AttentionConfig
from mha_core.errors import SpecError
from mha_core.layouts.layout import Layout
from mha_core.weights import weight_shapes


def canonical_gradients(
    layout: Layout, config: AttentionConfig, gradients: Mapping[str, NDArray]
) -> dict[str, NDArray]:
    """Return copies of the gradients with canonical names, order and shapes, in their own dtype.

    Gradients may be NaN or infinite, but weights may not. So the layout moves the index of each number, and the
    gradients are taken in that order: a layout never changes a number. Biases that the layer has but the config lacks
    (a layer with one switch for all biases) are left out.

    Args:
        layout: the layout of the layer.
        config: the config of the weights from which the layer was made.
        gradients: one for each of the layer's arrays, by relative name.

    Raises:
        SpecError: an array is missing, unknown, or fits no such layer; or the layer is not one of this config.

    >>> import numpy as np
    >>> from mha_core import AttentionConfig
    >>> from mha_core.layouts import get
    >>> gradients = {"in_proj_weight": np.arange(12.0).reshape(6, 2), "out_proj.weight": np.full((2, 2), np.nan)}
    >>> found = canonical_gradients(get("torch"), AttentionConfig(2, 1), gradients)
    >>> found["k_proj.weight"].tolist(), found["out_proj.weight"].tolist()
    ([[4.0, 5.0], [6.0, 7.0]], [[nan, nan], [nan, nan]])
    """
    arrays = {name: np.asarray(gradient) for name, gradient in gradients.items()}
    places, start = {}, 0
    for name, array in arrays.items():
        # float64, as weights may be; it holds every whole number up to 2**53.
        places[name] = np.arange(start, start + array.size, dtype=np.float64).reshape(array.shape)
        start += array.size
    _, moved = layout.read(places, num_heads=config.num_heads, num_kv_heads=config.num_kv_heads)
    flat = np.concatenate([array.ravel() for array in arrays.values()])
    found = {}
    for name, shape in weight_shapes(config).items():
        if name not in moved or moved[name].shape != shape:
            given = f"shape {moved[name].shape}" if name in moved else "none"
            raise SpecError(f"the gradient of {name} must have shape {shape}, as this config says. Got {given}.")
        found[name] = flat[moved[name].astype(np.int64)]
    return found
