"""The reference's backward steps (see `pipeline`): d_x is the gradient of the loss with respect to the array x."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mha_core.heads import merge_heads, split_heads, sum_kv_groups
from mha_core.reference.forward import additive_hidden, dropout_factor, new_padding, similarity
from mha_core.reference.state import State, Step


def d_output(state: State) -> NDArray:
    """(B, Lq, Do): given."""
    return state.inputs.cotangent  # type: ignore[return-value]  # run() asked for it


def d_heads(state: State) -> NDArray:
    """(B, H, Lq, dv)."""
    gradient = state["d_output"]
    if state.config.projections:
        gradient = gradient @ state.parameters["out_proj.weight"]
    return split_heads(gradient, state.config.num_heads)


def d_kept_weights(state: State) -> NDArray:
    """(B, H, Lq, Lk)."""
    return state["d_heads"] @ state.heads_of("values").swapaxes(-1, -2)


def d_values(state: State) -> NDArray:
    """(B, G, Lk, dv): the query heads of one group add up."""
    per_head = state["kept_weights"].swapaxes(-1, -2) @ state["d_heads"]
    return sum_kv_groups(per_head, state.config.num_kv_heads)


def d_weights(state: State) -> NDArray:
    """(B, H, Lq, Lk)."""
    return state["d_kept_weights"] * dropout_factor(state)


def d_scores(state: State) -> NDArray:
    """(B, H, Lq, Lk): softmax backwards; 0 where a key is excluded."""
    weighted = np.where(state["allowed"], state["weights"] * state["d_weights"], 0.0)
    row_sum = weighted.sum(axis=-1, keepdims=True)
    return np.where(state["allowed"], weighted - state["weights"] * row_sum, 0.0)


def d_bias(state: State) -> NDArray | None:
    """The mask's additive bias, in its own shape: broadcasting backwards is a sum."""
    bias = state.inputs.mask.bias
    if bias is None:
        return None
    gradient = state["d_scores"]
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - bias.ndim)))
    broadcast = tuple(axis for axis, size in enumerate(bias.shape) if size == 1)
    return gradient.sum(axis=broadcast, keepdims=True)


def d_similarity(state: State) -> NDArray:
    """(B, H, Lq, Lk): with respect to the scaled score function, before the softcap."""
    softcap = state.config.softcap
    if softcap is None:
        return state["d_scores"]
    slope = 1.0 - np.tanh(similarity(state) / softcap) ** 2
    # A score of an excluded key may be anything, even NaN.
    return np.where(state["allowed"], state["d_scores"] * slope, 0.0)


def d_additive_hidden(state: State) -> NDArray | None:
    """(B, H, Lq, Lk, S): with respect to A q + C k, inside the tanh."""
    if state.config.score != "additive":
        return None
    slope = 1.0 - additive_hidden(state) ** 2
    return state["d_similarity"][..., None] * state.parameters["score.vector"] * slope


def d_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    if state.config.score == "additive":
        return state["d_additive_hidden"].sum(axis=3) @ state.parameters["score.query.weight"]
    return state["d_similarity"] @ state.heads_of("keys") * state.config.softmax_scale


def d_keys(state: State) -> NDArray:
    """(B, G, Lk, d): the query heads of one group add up."""
    if state.config.score == "additive":
        per_head = state["d_additive_hidden"].sum(axis=2) @ state.parameters["score.key.weight"]
    else:
        per_head = state["d_similarity"].swapaxes(-1, -2) @ state["queries"] * state.config.softmax_scale
    return sum_kv_groups(per_head, state.config.num_kv_heads)


def d_score_parameters(state: State) -> dict[str, NDArray]:
    """The additive score's three arrays; empty for a dot product."""
    if state.config.score != "additive":
        return {}
    inside = state["d_additive_hidden"]
    return {
        "score.query.weight": np.einsum("bhqs,bhqd->sd", inside.sum(axis=3), state["queries"]),
        "score.key.weight": np.einsum("bhks,bhkd->sd", inside.sum(axis=2), state.heads_of("keys")),
        "score.vector": np.einsum("bhqk,bhqks->s", state["d_similarity"], additive_hidden(state)),
    }


def project_backward(state: State, projection: str, x: NDArray, gradient: NDArray) -> dict[str, NDArray]:
    """Gradients of `project`: with respect to its input ("input"), its weight and its bias."""
    if not state.config.projections:
        return {"input": gradient}
    gradients = {
        "input": gradient @ state.parameters[f"{projection}.weight"],
        f"{projection}.weight": np.einsum("blo,bli->oi", gradient, x),
    }
    if f"{projection}.bias" in state.parameters:
        gradients[f"{projection}.bias"] = gradient.sum(axis=(0, 1))
    return gradients


def d_q_proj(state: State) -> dict[str, NDArray]:
    return project_backward(state, "q_proj", state.inputs.queries, merge_heads(state["d_queries"]))


def d_k_proj(state: State) -> dict[str, NDArray]:
    return project_backward(state, "k_proj", state["key_inputs"], merge_heads(new_part(state, "d_keys")))


def d_v_proj(state: State) -> dict[str, NDArray]:
    return project_backward(state, "v_proj", state["value_inputs"], merge_heads(new_part(state, "d_values")))


def new_part(state: State, name: str) -> NDArray:
    """`d_keys` or `d_values` without the past: (B, G, Lk - Lp, d or dv)."""
    return state[name][:, :, state.sizes.past_len :]


def d_past(state: State) -> dict[str, NDArray]:
    """Gradients of past_keys and past_values, 0 where they are padding; empty without a past."""
    if state.inputs.past_keys is None:
        return {}
    past_len = state.sizes.past_len
    is_padding = state["padding"][:, None, :past_len, None]
    return {
        "past_keys": np.where(is_padding, 0.0, state["d_keys"][:, :, :past_len]),
        "past_values": np.where(is_padding, 0.0, state["d_values"][:, :, :past_len]),
    }


def d_out_proj(state: State) -> dict[str, NDArray]:
    return project_backward(state, "out_proj", merge_heads(state["heads"]), state["d_output"])


BACKWARD: Mapping[str, Step] = {
    "d_output": d_output,
    "d_heads": d_heads,
    "d_kept_weights": d_kept_weights,
    "d_values": d_values,
    "d_weights": d_weights,
    "d_scores": d_scores,
    "d_bias": d_bias,
    "d_similarity": d_similarity,
    "d_additive_hidden": d_additive_hidden,
    "d_queries": d_queries,
    "d_keys": d_keys,
    "d_score_parameters": d_score_parameters,
    "d_q_proj": d_q_proj,
    "d_k_proj": d_k_proj,
    "d_v_proj": d_v_proj,
    "d_out_proj": d_out_proj,
    "d_past": d_past,
}


def collect_gradients(state: State) -> dict[str, NDArray]:
    """The gradients that a Trace carries, by their public names, inputs first."""
    by_projection = {name: dict(state[f"d_{name}"]) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    is_padding = new_padding(state)
    gradients = {
        "queries": by_projection["q_proj"].pop("input"),
        "keys": np.where(is_padding, 0.0, by_projection["k_proj"].pop("input")),
        "values": np.where(is_padding, 0.0, by_projection["v_proj"].pop("input")),
    }
    if state.is_split:
        shapes = state.config.head_shapes._asdict()
        gradients = {name: split_heads(array, shapes[name][0]) for name, array in gradients.items()}
    gradients.update(state["d_past"])
    by_projection["out_proj"].pop("input")  # d_heads has used it
    if state["d_bias"] is not None:
        gradients["bias"] = state["d_bias"]
    for parameters in (*by_projection.values(), state["d_score_parameters"]):
        gradients.update(parameters)
    return gradients
