"""The steps of rotary positions; in a layer without them, queries and keys are as they were."""

from __future__ import annotations

from numpy.typing import NDArray

from mha_core.call.rotary import Tables, tables_of_call
from mha_core.parts.rotary import rotate, rotate_back
from mha_core.reference.state import State


def rotary_tables(state: State) -> Tables | None:
    """Cosine and sine of the positions of queries and new keys; None in a layer without rotary positions."""
    settings = state.config.rotary
    if settings is None:
        return None
    return tables_of_call(settings, state.inputs.rotary, state.inputs.mask.query_offset, state.sizes)


def rotated_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    settings, x = state.config.rotary, state["normed_queries"]
    return x if settings is None else rotate(x, state["rotary_tables"].queries, settings)


def rotated_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    settings, x = state.config.rotary, state["normed_keys"]
    return x if settings is None else rotate(x, state["rotary_tables"].keys, settings)


def d_normed_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    settings, gradient = state.config.rotary, state["d_rotated_queries"]
    return gradient if settings is None else rotate_back(gradient, state["rotary_tables"].queries, settings)


def d_normed_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    settings, gradient = state.config.rotary, state["d_rotated_keys"]
    return gradient if settings is None else rotate_back(gradient, state["rotary_tables"].keys, settings)
