"""The reference's backward steps (see `pipeline`): d_x is the gradient of the loss by the result of step x.

Three steps give a dict of gradients by their public names: d_inputs, d_projection_parameters, d_score_parameters.
A variant with another forward step keeps these backward steps, which are evaluated at the variant's stages. Arrays
between two stages that a gradient needs, the similarity and the merged heads, are computed from those stages.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mha_core.heads import merge_heads, split_heads, sum_kv_groups
from mha_core.parts.query_key_norm import NORMS, NormGradients, norm_back
from mha_core.parts.rotary import rotate_back
from mha_core.reference.forward import PROJECTED, dropout_factor, new_padding, normed, unscaled
from mha_core.reference.state import State, Step

# From the output to the scores ----------------------------------------------------------------------


def d_output(state: State) -> NDArray:
    """(B, Lq, Do): the cotangent, which is given."""
    return state.inputs.cotangent  # type: ignore[return-value]  # run() asked for it


def d_merged(state: State) -> NDArray:
    """(B, Lq, H * dv)."""
    return through_projection(state, "out_proj", state["d_output"])


def d_heads(state: State) -> NDArray:
    """(B, H, Lq, dv)."""
    return split_heads(state["d_merged"], state.config.num_heads)


def d_kept_weights(state: State) -> NDArray:
    """(B, H, Lq, Lk)."""
    return state["d_heads"] @ state.heads_of("values").swapaxes(-1, -2)


def d_values(state: State) -> NDArray:
    """(B, G, Lk, dv): the gradient of the values, summed over the query heads of a group."""
    per_head = state["kept_weights"].swapaxes(-1, -2) @ state["d_heads"]
    return sum_kv_groups(per_head, state.config.num_kv_heads)


def d_weights(state: State) -> NDArray:
    """(B, H, Lq, Lk)."""
    return state["d_kept_weights"] * dropout_factor(state)


def d_scores(state: State) -> NDArray:
    """(B, H, Lq, Lk): the gradient of the scores; 0 where a key is excluded."""
    weighted = np.where(state["allowed"], state["weights"] * state["d_weights"], 0.0)
    row_sum = weighted.sum(axis=-1, keepdims=True)
    return np.where(state["allowed"], weighted - state["weights"] * row_sum, 0.0)


def d_bias(state: State) -> NDArray | None:
    """Return the gradient of the mask's additive bias, summed to the bias's shape; None if the mask has no bias."""
    bias = state.inputs.mask.bias
    if bias is None:
        return None
    gradient = state["d_scores"]
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - bias.ndim)))
    broadcast = tuple(axis for axis, size in enumerate(bias.shape) if size == 1)
    return gradient.sum(axis=broadcast, keepdims=True)


# From the scores to queries and keys ----------------------------------------------------------------


def d_similarity(state: State) -> NDArray:
    """(B, H, Lq, Lk): the gradient of the scores before the softcap."""
    softcap = state.config.softcap
    if softcap is None:
        return state["d_scores"]
    similarity = unscaled(state) * state.config.softmax_scale
    slope = 1.0 - np.tanh(similarity / softcap) ** 2
    # The score of an excluded key may be any number, even NaN.
    return np.where(state["allowed"], state["d_scores"] * slope, 0.0)


def d_additive_hidden(state: State) -> NDArray | None:
    """Return (B, H, Lq, Lk, S): the gradient of A q + C k, the tanh's argument; None unless the score is additive."""
    if state.config.score != "additive":
        return None
    slope = 1.0 - state["additive_hidden"] ** 2
    return state["d_similarity"][..., None] * state.parameters["score.vector"] * slope


def d_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    if state.config.score == "additive":
        return state["d_additive_hidden"].sum(axis=3) @ state.parameters["score.query.weight"]
    return state["d_similarity"] @ state.heads_of("keys") * state.config.softmax_scale


def d_keys(state: State) -> NDArray:
    """(B, G, Lk, d): the gradient of the keys, summed over the query heads of a group."""
    if state.config.score == "additive":
        per_head = state["d_additive_hidden"].sum(axis=2) @ state.parameters["score.key.weight"]
    else:
        per_head = state["d_similarity"].swapaxes(-1, -2) @ state["queries"] * state.config.softmax_scale
    return sum_kv_groups(per_head, state.config.num_kv_heads)


def d_score_parameters(state: State) -> dict[str, NDArray]:
    """Return name -> gradient, for the additive score's three arrays; empty for a dot product."""
    if state.config.score != "additive":
        return {}
    inside = state["d_additive_hidden"]
    return {
        "score.query.weight": np.einsum("bhqs,bhqd->sd", inside.sum(axis=3), state["queries"]),
        "score.key.weight": np.einsum("bhks,bhkd->sd", inside.sum(axis=2), state.heads_of("keys")),
        "score.vector": np.einsum("bhqk,bhqks->s", state["d_similarity"], state["additive_hidden"]),
    }


# Through norm and rotary positions to the projections -----------------------------------------------


def d_new_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d): the gradient of the new keys, without the past."""
    gradient: NDArray = state["d_keys"][:, :, state.sizes.past_len :]
    return gradient


NORMED = {
    ("before", "q_norm"): ("projected_queries", "d_normed_queries"),
    ("before", "k_norm"): ("projected_keys", "d_normed_keys"),
    ("after", "q_norm"): ("rotated_queries", "d_queries"),
    ("after", "k_norm"): ("rotated_keys", "d_new_keys"),
}
"""Each norm in each order -> the step that it is applied to, and the gradient of the step that it gives."""


def through_norm(state: State, order: str, name: str) -> NormGradients:
    """Return the gradients of a norm's input and parameters. AssertionError if the layer has no norm in this order.

    Args:
        order: "before" or "after": whether the norm acts before the rotation of queries and keys or after it.
        name: "q_norm" or "k_norm".
    """
    settings, (given, made) = state.config.query_key_norm, NORMED[order, name]
    steps = normed(state, name, state[given])
    assert settings is not None
    assert steps is not None
    return norm_back(state[made], steps, settings)


def through_norm_if(state: State, order: str, name: str) -> NDArray:
    """(B, heads, L, d): the gradient with respect to the input of a norm; `order` and `name` as in `through_norm`.

    If the layer has no norm in this order, the gradient with respect to the norm's output is returned.
    """
    settings = state.config.query_key_norm
    if settings is None or settings.order != order:
        gradient: NDArray = state[NORMED[order, name][1]]
        return gradient
    return through_norm(state, order, name).x


def d_rotated_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    return through_norm_if(state, "after", "q_norm")


def d_rotated_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    return through_norm_if(state, "after", "k_norm")


def d_normed_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    settings, gradient = state.config.rotary, state["d_rotated_queries"]
    return gradient if settings is None else rotate_back(gradient, state["rotary_tables"].queries, settings)


def d_normed_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    settings, gradient = state.config.rotary, state["d_rotated_keys"]
    return gradient if settings is None else rotate_back(gradient, state["rotary_tables"].keys, settings)


def d_projected_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    return through_norm_if(state, "before", "q_norm")


def d_projected_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    return through_norm_if(state, "before", "k_norm")


def d_projected_values(state: State) -> NDArray:
    """(B, G, Lk - Lp, dv): the gradient of the new values, without the past."""
    gradient: NDArray = state["d_values"][:, :, state.sizes.past_len :]
    return gradient


def d_norm_parameters(state: State) -> dict[str, NDArray]:
    """Return name -> gradient of the weights and biases of the query-key norm; empty in a layer without them."""
    settings = state.config.query_key_norm
    if settings is None:
        return {}
    found = {name: through_norm(state, settings.order, name) for name in NORMS}
    gradients = {f"{name}.{kind}": getattr(made, kind) for name, made in found.items() for kind in ("weight", "bias")}
    return {name: array for name, array in gradients.items() if array is not None}


def d_q_proj(state: State) -> NDArray:
    """(B, Lq, H * d)."""
    return merge_heads(state["d_projected_queries"])


def d_k_proj(state: State) -> NDArray:
    """(B, Lk - Lp, G * d): the gradient of k_proj's output, which has the new keys alone."""
    return merge_heads(state["d_projected_keys"])


def d_v_proj(state: State) -> NDArray:
    """(B, Lk - Lp, G * dv): the gradient of v_proj's output, which has the new values alone."""
    return merge_heads(state["d_projected_values"])


# Through the projections to the inputs --------------------------------------------------------------


def through_projection(state: State, projection: str, gradient: NDArray) -> NDArray:
    """(B, L, out) -> (B, L, in): the gradient of a projection's input; unchanged in a layer without projections."""
    return gradient @ state.parameters[f"{projection}.weight"] if state.config.projections else gradient


def d_query_inputs(state: State) -> NDArray:
    """(B, Lq, Dq)."""
    return through_projection(state, "q_proj", state["d_q_proj"])


def d_key_inputs(state: State) -> NDArray:
    """(B, Lk - Lp, Dk)."""
    return through_projection(state, "k_proj", state["d_k_proj"])


def d_value_inputs(state: State) -> NDArray:
    """(B, Lk - Lp, Dv)."""
    return through_projection(state, "v_proj", state["d_v_proj"])


def d_projection_parameters(state: State) -> dict[str, NDArray]:
    """Return name -> gradient of the W and b of the four projections; empty in a layer without them."""
    if not state.config.projections:
        return {}
    gradients = {}
    for projection, (given, made) in PROJECTED.items():
        gradient, x = state[f"d_{made}"], merge_heads(state["heads"]) if given == "merged" else state[given]
        gradients[f"{projection}.weight"] = np.einsum("blo,bli->oi", gradient, x)
        if f"{projection}.bias" in state.parameters:
            gradients[f"{projection}.bias"] = gradient.sum(axis=(0, 1))
    return gradients


def d_inputs(state: State) -> dict[str, NDArray]:
    """Return name -> gradient, for queries, keys and values in their given shapes, and for past keys and values if any.

    Gradients are 0 in padding, because the forward pass replaces padding by 0.
    """
    is_padding = new_padding(state)
    gradients = {
        "queries": state["d_query_inputs"],
        "keys": np.where(is_padding, 0.0, state["d_key_inputs"]),
        "values": np.where(is_padding, 0.0, state["d_value_inputs"]),
    }
    if state.is_split:
        shapes = state.config.head_shapes._asdict()
        gradients = {name: split_heads(array, shapes[name][0]) for name, array in gradients.items()}
    if state.inputs.past_keys is not None:
        past_len = state.sizes.past_len
        is_padding = state["padding"][:, None, :past_len, None]
        gradients["past_keys"] = np.where(is_padding, 0.0, state["d_keys"][:, :, :past_len])
        gradients["past_values"] = np.where(is_padding, 0.0, state["d_values"][:, :, :past_len])
    return gradients


BACKWARD: Mapping[str, Step] = {
    "d_output": d_output,
    "d_merged": d_merged,
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
    "d_new_keys": d_new_keys,
    "d_rotated_queries": d_rotated_queries,
    "d_rotated_keys": d_rotated_keys,
    "d_normed_queries": d_normed_queries,
    "d_normed_keys": d_normed_keys,
    "d_projected_queries": d_projected_queries,
    "d_projected_keys": d_projected_keys,
    "d_norm_parameters": d_norm_parameters,
    "d_projected_values": d_projected_values,
    "d_q_proj": d_q_proj,
    "d_k_proj": d_k_proj,
    "d_v_proj": d_v_proj,
    "d_query_inputs": d_query_inputs,
    "d_key_inputs": d_key_inputs,
    "d_value_inputs": d_value_inputs,
    "d_projection_parameters": d_projection_parameters,
    "d_inputs": d_inputs,
}


class ByStep(Protocol):
    """An object that is indexed by the names of the reference's steps, such as a State or Bounds."""

    def __getitem__(self, name: str, /) -> Any: ...


def collect_gradients(steps: ByStep) -> dict[str, Any]:
    """Return the gradients of a Trace by name, taken from `steps`; those of the layer's inputs come first."""
    bias = {} if steps["d_bias"] is None else {"bias": steps["d_bias"]}
    parameters = ("d_projection_parameters", "d_norm_parameters", "d_score_parameters")
    return {**steps["d_inputs"], **bias, **{name: x for step in parameters for name, x in steps[step].items()}}
