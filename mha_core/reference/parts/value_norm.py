"""The steps of value norm and value scale; in a layer without them, each gives what it was given."""

from __future__ import annotations

from numpy.typing import NDArray

from mha_core.parts.value_norm import norm_values, norm_values_back, scale_values
from mha_core.reference.state import State


def normed_values(state: State) -> NDArray:
    """(B, G, Lk - Lp, dv)."""
    return norm_values(state["projected_values"], state.config.value_norm_eps)


def new_values(state: State) -> NDArray:
    """(B, G, Lk - Lp, dv)."""
    return scale_values(state["normed_values"], state.config.value_scale)


def d_new_values(state: State) -> NDArray:
    """(B, G, Lk - Lp, dv): of the values that are not of the past."""
    gradient: NDArray = state["d_values"][:, :, state.sizes.past_len :]
    return gradient


def d_normed_values(state: State) -> NDArray:
    """(B, G, Lk - Lp, dv)."""
    return scale_values(state["d_new_values"], state.config.value_scale)


def d_projected_values(state: State) -> NDArray:
    """(B, G, Lk - Lp, dv)."""
    return norm_values_back(state["d_normed_values"], state["projected_values"], state.config.value_norm_eps)
