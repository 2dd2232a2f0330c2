"""The steps of the query-key norm, before the rotation or after it; in a layer without one, each gives what it got."""

from __future__ import annotations

from numpy.typing import NDArray

from mha_core.parts.query_key_norm import NORMS, Normed, NormGradients, norm, norm_back
from mha_core.reference.state import State


def normed(state: State, name: str, x: NDArray) -> Normed | None:
    """The norm `name`, "q_norm" or "k_norm", of the heads x (B, heads, L, d); None in a layer without one."""
    settings, parameters = state.config.query_key_norm, state.parameters
    if settings is None:
        return None
    return norm(x, settings, parameters.get(f"{name}.weight"), parameters.get(f"{name}.bias"))


def norm_if(state: State, order: str, name: str, x: NDArray) -> NDArray:
    """(B, heads, L, d): x normed, if the layer norms in this order: "before" or "after" the rotation; else x."""
    settings = state.config.query_key_norm
    made = normed(state, name, x) if settings is not None and settings.order == order else None
    return x if made is None else made.result


def normed_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    return norm_if(state, "before", "q_norm", state["projected_queries"])


def normed_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    return norm_if(state, "before", "k_norm", state["projected_keys"])


def unscaled_queries(state: State) -> NDArray:
    """(B, H, Lq, d): the queries before they are scaled by their positions."""
    return norm_if(state, "after", "q_norm", state["rotated_queries"])


def new_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    return norm_if(state, "after", "k_norm", state["rotated_keys"])


NORMED = {
    ("before", "q_norm"): ("projected_queries", "d_normed_queries"),
    ("before", "k_norm"): ("projected_keys", "d_normed_keys"),
    ("after", "q_norm"): ("rotated_queries", "d_unscaled_queries"),
    ("after", "k_norm"): ("rotated_keys", "d_new_keys"),
}
"""Each norm in each order -> the step that it is applied to, and the gradient of the step that it gives."""


def through_norm(state: State, order: str, name: str) -> NormGradients:
    """The gradients of a norm's input and parameters; its result's, where the layer does not norm in this order."""
    settings, (given, made) = state.config.query_key_norm, NORMED[order, name]
    if settings is None or settings.order != order:
        return NormGradients(state[made], None, None)
    steps = normed(state, name, state[given])
    assert steps is not None
    return norm_back(state[made], steps, settings)


def d_rotated_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    return through_norm(state, "after", "q_norm").x


def d_rotated_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    return through_norm(state, "after", "k_norm").x


def d_projected_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    return through_norm(state, "before", "q_norm").x


def d_projected_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    return through_norm(state, "before", "k_norm").x


def d_norm_parameters(state: State) -> dict[str, NDArray]:
    """Name -> gradient of the weights and biases of the query-key norm; empty in a layer without them."""
    settings = state.config.query_key_norm
    gradients: dict[str, NDArray | None] = {}
    for name in NORMS if settings is not None else ():
        assert settings is not None
        found = through_norm(state, settings.order, name)
        gradients |= {f"{name}.{kind}": getattr(found, kind) for kind in ("weight", "bias")}
    return {name: array for name, array in gradients.items() if array is not None}
