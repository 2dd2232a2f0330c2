"""The steps of clipped projections; in a layer without a limit, each gives what it was given."""

from __future__ import annotations

from numpy.typing import NDArray

from mha_core.parts.clip_qkv import clip, clip_back
from mha_core.reference.state import State


def clipped_queries(state: State) -> NDArray:
    """(B, Lq, H * d)."""
    return clip(state["q_proj"], state.config.clip_qkv)


def clipped_keys(state: State) -> NDArray:
    """(B, Lk - Lp, G * d)."""
    return clip(state["k_proj"], state.config.clip_qkv)


def clipped_values(state: State) -> NDArray:
    """(B, Lk - Lp, G * dv)."""
    return clip(state["v_proj"], state.config.clip_qkv)


def d_q_proj(state: State) -> NDArray:
    """(B, Lq, H * d)."""
    return clip_back(state["d_clipped_queries"], state["q_proj"], state.config.clip_qkv)


def d_k_proj(state: State) -> NDArray:
    """(B, Lk - Lp, G * d)."""
    return clip_back(state["d_clipped_keys"], state["k_proj"], state.config.clip_qkv)


def d_v_proj(state: State) -> NDArray:
    """(B, Lk - Lp, G * dv)."""
    return clip_back(state["d_clipped_values"], state["v_proj"], state.config.clip_qkv)
