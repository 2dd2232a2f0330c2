"""Value norm and value scale: each value is divided by its size, or multiplied by a number, before the cache holds it.

    normed_values   x / sqrt(mean(x ** 2) + eps), the mean over the channels of one head
    new_values      normed_values * scale

There are no weights.
"""

from __future__ import annotations

from numpy.typing import NDArray

from mha_core.parts.query_key_norm import QueryKeyNorm, norm, norm_back


def norm_values(x: NDArray, eps: float | None) -> NDArray:
    """The heads x (B, G, L, dv), each divided by the root of its mean square; x itself without eps.

    >>> import numpy as np
    >>> norm_values(np.array([[[[3.0, 4.0]]]]), 1e-12).round(3)
    array([[[[0.849, 1.131]]]])
    """
    return x if eps is None else norm(x, norm_of(eps), None, None).result


def norm_values_back(gradient: NDArray, x: NDArray, eps: float | None) -> NDArray:
    """The gradient of x, from that of `norm_values(x, eps)`."""
    if eps is None:
        return gradient
    return norm_back(gradient, norm(x, norm_of(eps), None, None), norm_of(eps)).x


def scale_values(x: NDArray, scale: float | None) -> NDArray:
    """X * scale, values forward or their gradient backward; x itself without a scale."""
    return x if scale is None else x * scale


def norm_of(eps: float) -> QueryKeyNorm:
    """The same norm as settings of the norm of queries and keys: over one head, without weights."""
    return QueryKeyNorm("rms", weight="none", eps=eps)
