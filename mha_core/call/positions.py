"""Sinusoidal positional encoding."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.call.arguments import ArraySpec, describe_array
from mha_core.call.checks import check_layer_dtype, describe_argument
from mha_core.dtypes import DTYPES
from mha_core.errors import SpecError


def sinusoidal_positions(length: int, embed_dim: int) -> NDArray[np.float64]:
    """Return the (length, embed_dim) table of "Attention Is All You Need", section 3.5, in float64.

    P[i, 2j] = sin(i / 10000^(2j / embed_dim)), P[i, 2j + 1] = cos(i / 10000^(2j / embed_dim)).
    With an odd `embed_dim` the last column is a sine without its cosine.

    >>> sinusoidal_positions(2, 4).round(4)
    array([[0.    , 1.    , 0.    , 1.    ],
           [0.8415, 0.5403, 0.01  , 1.    ]])
    """
    if length < 0 or embed_dim < 1:
        raise SpecError(f"length must be at least 0 and embed_dim at least 1. Got {length}, {embed_dim}.")
    position = np.arange(length, dtype=np.float64)[:, None]
    even = np.arange(0, embed_dim, 2, dtype=np.float64)
    angle = position / np.power(10000.0, even / embed_dim)
    table = np.empty((length, embed_dim))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, : embed_dim // 2])
    table.flags.writeable = False
    return table


def check_positions(length: int | None, width: int | None, *, embed_dim: int, max_len: int) -> None:
    """Raise SpecError unless a sequence (B, length, width) fits a table (max_len, embed_dim)."""
    if width is not None and width != embed_dim:
        raise SpecError(f"the input's width must be embed_dim={embed_dim}. Got {width}.")
    if length is not None and length > max_len:
        raise SpecError(f"the sequence must be at most max_len={max_len} long. Got {length}.")


def check_encoded(
    x: Any,
    *,
    embed_dim: int,
    max_len: int,
    layer_dtype: str | None = None,
    describe: Callable[[Any], ArraySpec | None] = describe_array,
) -> ArraySpec:
    """Check the input to which positions are added; return its shape and dtype.

    Args:
        x: (B, L, embed_dim), floating-point; L is at most max_len.
        embed_dim, max_len: the sizes of the table.
        layer_dtype: the dtype of the layer; None if it computes in the dtype of its input.
        describe: see `mha_core.call.checks.check_call`.

    Raises:
        SpecError: naming what does not fit.
    """
    spec = describe_argument("the input", x, describe)
    if len(spec.shape) != 3:
        raise SpecError(f"the input must have shape (batch, length, width). Got {spec.shape}.")
    if spec.dtype not in DTYPES:
        raise SpecError(f"the input must have a dtype of {', '.join(DTYPES)}. Got {spec.dtype}.")
    check_positions(spec.shape[1], spec.shape[2], embed_dim=embed_dim, max_len=max_len)
    check_layer_dtype("the input", spec.dtype, layer_dtype)
    return spec
