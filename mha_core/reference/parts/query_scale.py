"""The steps of the query scale by position; in a layer without one, queries are as they were."""

from __future__ import annotations

from numpy.typing import NDArray

from mha_core.call.query_scale import scale_of_call
from mha_core.reference.state import State


def query_scale(state: State) -> NDArray | None:
    """(1 or B, Lq): the factor of each query; None in a layer without a query scale."""
    settings, inputs = state.config.query_scale, state.inputs
    return None if settings is None else scale_of_call(settings, inputs.rotary, inputs.mask.query_offset, state.sizes)


def queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    return _scaled(state, state["unscaled_queries"])


def d_unscaled_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    return _scaled(state, state["d_queries"])


def _scaled(state: State, x: NDArray) -> NDArray:
    """(B, H, Lq, d): each query, or its gradient, times its factor."""
    scale = state["query_scale"]
    return x if scale is None else x * scale[:, None, :, None]
