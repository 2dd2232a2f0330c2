"""The reference's forward steps, in their order. A step reads the State and returns one array (see `pipeline`).

    allowed, padding                           keys each query may attend to; keys that none may attend to
    query_inputs, key_inputs, value_inputs     the inputs of the projections: padding replaced by 0
    q_proj, k_proj, v_proj                     x W^T + b
    projected_queries, _keys, _values          split into heads
    rotary_tables                              cosine and sine of each position
    normed_queries, normed_keys                query-key norm, if it comes before the rotation
    rotated_queries, rotated_keys              turned by their positions
    queries, new_keys                          query-key norm, if it comes after
    keys, values                               those of the past in front
    additive_hidden, unscaled, similarity      the score function, then times the scale
    capped, scores                             bounded by the softcap, then plus the bias
    weights, kept_weights                      softmax, dropout
    heads, merged, output                      the weighted sum, merged heads, x W^T + b

The steps of rotary positions and of the norm, in a layer that lacks these, give what they were given.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mha_core.call.masks import additive_bias, allowed_keys, padding_keys
from mha_core.call.rotary import Tables, tables_of_call
from mha_core.heads import merge_heads, split_heads
from mha_core.parts.query_key_norm import Normed, norm
from mha_core.parts.rotary import rotate
from mha_core.reference.state import State, Step

# The mask and the inputs ----------------------------------------------------------------------------


def allowed(state: State) -> NDArray:
    """Bool (B, H, Lq, Lk): may query i of head h attend to key j?"""
    return allowed_keys(state.inputs.mask, state.sizes, state.config.num_heads)


def padding(state: State) -> NDArray:
    """Bool (B, Lk): keys that no query can attend to, by valid_lens or by `allowed`."""
    return padding_keys(state.inputs.mask, state.sizes) & ~state["allowed"].any(axis=(1, 2))


def query_inputs(state: State) -> NDArray:
    """(B, Lq, Dq): the queries as they are given."""
    return state.inputs.queries


def key_inputs(state: State) -> NDArray:
    """(B, Lk - Lp, Dk): the given keys, 0 where they are padding."""
    return np.where(new_padding(state), 0.0, state.inputs.keys)


def value_inputs(state: State) -> NDArray:
    """(B, Lk - Lp, Dv): the given values, 0 where they are padding."""
    return np.where(new_padding(state), 0.0, state.inputs.values)


def new_padding(state: State) -> NDArray:
    """Bool (B, Lk - Lp, 1): which of the new keys are padding."""
    return state["padding"][:, state.sizes.past_len :, None]


# Projections and heads ------------------------------------------------------------------------------

PROJECTED = {
    "q_proj": ("query_inputs", "q_proj"),
    "k_proj": ("key_inputs", "k_proj"),
    "v_proj": ("value_inputs", "v_proj"),
    "out_proj": ("merged", "output"),
}
"""Each projection -> the step that it is applied to, and the step that it gives."""


def project(state: State, projection: str, x: NDArray) -> NDArray:
    """(B, L, in) -> (B, L, out): x W^T + b; x itself in a layer without projections."""
    if not state.config.projections:
        return x
    projected = x @ state.parameters[f"{projection}.weight"].T
    bias = state.parameters.get(f"{projection}.bias")
    return projected if bias is None else projected + bias


def q_proj(state: State) -> NDArray:
    """(B, Lq, H * d)."""
    return project(state, "q_proj", state["query_inputs"])


def k_proj(state: State) -> NDArray:
    """(B, Lk - Lp, G * d)."""
    return project(state, "k_proj", state["key_inputs"])


def v_proj(state: State) -> NDArray:
    """(B, Lk - Lp, G * dv)."""
    return project(state, "v_proj", state["value_inputs"])


def projected_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    return split_heads(state["q_proj"], state.config.num_heads)


def projected_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    return split_heads(state["k_proj"], state.config.num_kv_heads)


def projected_values(state: State) -> NDArray:
    """(B, G, Lk - Lp, dv)."""
    return split_heads(state["v_proj"], state.config.num_kv_heads)


# Norm and rotary positions ---------------------------------------------------------------------------


def rotary_tables(state: State) -> Tables | None:
    """Return cosine and sine of the positions of queries and new keys; None in a layer without rotary positions."""
    settings = state.config.rotary
    if settings is None:
        return None
    return tables_of_call(settings, state.inputs.rotary, state.inputs.mask.query_offset, state.sizes)


def normed(state: State, name: str, x: NDArray) -> Normed | None:
    """Return the norm `name`, "q_norm" or "k_norm", of the heads x (B, heads, L, d); None in a layer without a norm."""
    settings, parameters = state.config.query_key_norm, state.parameters
    if settings is None:
        return None
    return norm(x, settings, parameters.get(f"{name}.weight"), parameters.get(f"{name}.bias"))


def norm_if(state: State, order: str, name: str, x: NDArray) -> NDArray:
    """(B, heads, L, d): the norm of x if the layer has it in this `order`, "before" or "after" the rotation; else x."""
    settings = state.config.query_key_norm
    made = normed(state, name, x) if settings is not None and settings.order == order else None
    return x if made is None else made.result


def normed_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    return norm_if(state, "before", "q_norm", state["projected_queries"])


def normed_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    return norm_if(state, "before", "k_norm", state["projected_keys"])


def rotated_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    settings, x = state.config.rotary, state["normed_queries"]
    return x if settings is None else rotate(x, state["rotary_tables"].queries, settings)


def rotated_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    settings, x = state.config.rotary, state["normed_keys"]
    return x if settings is None else rotate(x, state["rotary_tables"].keys, settings)


def queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    return norm_if(state, "after", "q_norm", state["rotated_queries"])


def new_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    return norm_if(state, "after", "k_norm", state["rotated_keys"])


def keys(state: State) -> NDArray:
    """(B, G, Lk, d): the keys of the past, then the new ones."""
    return after_past(state, state.inputs.past_keys, state["new_keys"])


def values(state: State) -> NDArray:
    """(B, G, Lk, dv): the values of the past, then the new ones."""
    return after_past(state, state.inputs.past_values, state["projected_values"])


def after_past(state: State, past: NDArray | None, new: NDArray) -> NDArray:
    """(B, G, Lk, width): the past, with 0 in its padding, then `new`; without a past, `new` alone."""
    if past is None:
        return new
    is_padding = state["padding"][:, None, : state.sizes.past_len, None]
    return np.concatenate([np.where(is_padding, 0.0, past), new], axis=2)


# Scores ---------------------------------------------------------------------------------------------


def additive_hidden(state: State) -> NDArray | None:
    """Return (B, H, Lq, Lk, S): tanh(A q + C k); None unless the score is additive."""
    if state.config.score != "additive":
        return None
    from_query = state["queries"] @ state.parameters["score.query.weight"].T
    from_key = state.heads_of("keys") @ state.parameters["score.key.weight"].T
    return np.tanh(from_query[:, :, :, None, :] + from_key[:, :, None, :, :])


def unscaled(state: State) -> NDArray:
    """(B, H, Lq, Lk): the score function before the scale: q.k, or w . additive_hidden."""
    if state.config.score == "additive":
        return state["additive_hidden"] @ state.parameters["score.vector"]
    return state["queries"] @ state.heads_of("keys").swapaxes(-1, -2)


def similarity(state: State) -> NDArray:
    """Return (B, H, Lq, Lk): the scaled score function; the scale is 1 unless the score is "scaled_dot"."""
    return state["unscaled"] * state.config.softmax_scale


def capped(state: State) -> NDArray:
    """(B, H, Lq, Lk): the similarity, bounded by the softcap if there is one."""
    return cap(state, state["similarity"])


def cap(state: State, x: NDArray) -> NDArray:
    """Return x bounded smoothly by the softcap c: c * tanh(x / c); x itself without a softcap."""
    softcap = state.config.softcap
    return x if softcap is None else softcap * np.tanh(x / softcap)


def scores(state: State) -> NDArray:
    """(B, H, Lq, Lk): the capped similarity, plus the additive bias."""
    return state["capped"] if state.inputs.mask.bias is None else state["capped"] + additive_bias(state.inputs.mask)


# Weights and output ---------------------------------------------------------------------------------


def weights(state: State) -> NDArray:
    """(B, H, Lq, Lk): the attention weights."""
    return softmax(state["scores"], state["allowed"])


def softmax(scores: NDArray, allowed: NDArray) -> NDArray:
    """Return the softmax over the allowed keys, the last axis; 0 at other keys, and in rows without an allowed key."""
    is_empty = ~allowed.any(axis=-1, keepdims=True)
    open_scores = np.where(allowed, scores, -np.inf)
    highest = open_scores.max(axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(open_scores - np.where(is_empty, 0.0, highest))
    total = exponentials.sum(axis=-1, keepdims=True)
    return np.where(allowed, exponentials / np.where(is_empty, 1.0, total), 0.0)


def kept_weights(state: State) -> NDArray:
    """(B, H, Lq, Lk): the weights after dropout."""
    return state["weights"] * dropout_factor(state)


def dropout_factor(state: State) -> NDArray | float:
    """(B, H, Lq, Lk): the factor of dropout on each weight, 0 or 1 / (1 - p); the number 1 without a keep-mask."""
    if state.inputs.dropout_keep is None:
        return 1.0
    return state.inputs.dropout_keep / (1.0 - state.config.dropout)


def heads(state: State) -> NDArray:
    """(B, H, Lq, dv): the values, weighted and summed."""
    return state["kept_weights"] @ state.heads_of("values")


def merged(state: State) -> NDArray:
    """(B, Lq, H * dv)."""
    return merge_heads(state["heads"])


def output(state: State) -> NDArray:
    """(B, Lq, Do)."""
    return project(state, "out_proj", state["merged"])


FORWARD: Mapping[str, Step] = {
    "allowed": allowed,
    "padding": padding,
    "query_inputs": query_inputs,
    "key_inputs": key_inputs,
    "value_inputs": value_inputs,
    "q_proj": q_proj,
    "k_proj": k_proj,
    "v_proj": v_proj,
    "rotary_tables": rotary_tables,
    "projected_queries": projected_queries,
    "projected_keys": projected_keys,
    "projected_values": projected_values,
    "normed_queries": normed_queries,
    "normed_keys": normed_keys,
    "rotated_queries": rotated_queries,
    "rotated_keys": rotated_keys,
    "queries": queries,
    "new_keys": new_keys,
    "keys": keys,
    "values": values,
    "additive_hidden": additive_hidden,
    "unscaled": unscaled,
    "similarity": similarity,
    "capped": capped,
    "scores": scores,
    "weights": weights,
    "kept_weights": kept_weights,
    "heads": heads,
    "merged": merged,
    "output": output,
}

PART_OF: Mapping[str, str] = {
    "query_inputs": "queries",
    "q_proj": "queries",
    "projected_queries": "queries",
    "normed_queries": "queries",
    "rotated_queries": "queries",
    "key_inputs": "keys",
    "k_proj": "keys",
    "projected_keys": "keys",
    "normed_keys": "keys",
    "rotated_keys": "keys",
    "new_keys": "keys",
    "value_inputs": "values",
    "v_proj": "values",
    "projected_values": "values",
    "additive_hidden": "scores",
    "unscaled": "scores",
    "similarity": "scores",
    "capped": "scores",
    "kept_weights": "heads",
    "merged": "output",
}
"""Each step whose result only one stage needs in the forward direction -> that stage."""
