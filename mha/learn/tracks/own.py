"""Mistakes of single exercises that are no bug of the zoo."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def _products(queries: NDArray, keys: NDArray) -> NDArray:
    return queries @ keys.swapaxes(-1, -2)


def _weights(query: float, keys: NDArray) -> NDArray:
    """The weights of keys on a circle, all angles in radians."""
    powers = np.exp(np.cos(query - keys) / np.sqrt(2.0))
    return np.asarray(powers / powers.sum())


_DEGREES = 36.0 * np.arange(10)
_RADIANS = "np.cos and np.sin take radians, and were given degrees: np.deg2rad(degrees)."

OWN: dict[str, tuple[tuple[str, Callable[..., NDArray]], ...]] = {
    "weighted-sum": (
        (
            "It is divided by the sum of the weights. A row may be all 0, and 0 / 0 is NaN: take weights as they come.",
            lambda weights, values: weights @ values / weights.sum(-1, keepdims=True),
        ),
    ),
    "scores": (
        (
            "A scale of 0 is taken for none, as by `if scale:`. Ask `scale is None`.",
            lambda queries, keys, scale: _products(queries, keys) * (scale or keys.shape[-1] ** -0.5),
        ),
        (
            "Products are divided by a scale that is given. Multiply by it.",
            lambda queries, keys, scale: _products(queries, keys) / (keys.shape[-1] ** 0.5 if scale is None else scale),
        ),
    ),
    "weights-by-angle": (
        (_RADIANS, lambda degrees: _weights(degrees, _DEGREES)),
        (f"Of the query: {_RADIANS}", lambda degrees: _weights(degrees, np.deg2rad(_DEGREES))),
        (f"Of the keys: {_RADIANS}", lambda degrees: _weights(np.deg2rad(degrees), _DEGREES)),
    ),
}
"""Exercise -> sentences, each with the function that has the mistake."""
