"""The reference's forward steps. A step reads the State and returns one array (see `pipeline`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mha_core.call.masks import additive_bias, allowed_keys, padding_keys
from mha_core.heads import merge_heads, split_heads
from mha_core.reference.state import State, Step


def allowed(state: State) -> NDArray:
    """Bool (B, H, Lq, Lk): may query i of head h attend to key j?"""
    return allowed_keys(state.inputs.mask, state.sizes, state.config.num_heads)


def padding(state: State) -> NDArray:
    """Bool (B, Lk): keys that nobody can attend to."""
    return padding_keys(state.inputs.mask, state.sizes)


def key_inputs(state: State) -> NDArray:
    """(B, Lk, Dk): the keys, 0 where they are padding."""
    return np.where(new_padding(state), 0.0, state.inputs.keys)


def value_inputs(state: State) -> NDArray:
    """(B, Lk, Dv): the values, 0 where they are padding."""
    return np.where(new_padding(state), 0.0, state.inputs.values)


def new_padding(state: State) -> NDArray:
    """Bool (B, Lk - Lp, 1): the padding among the keys that are not of the past."""
    return state["padding"][:, state.sizes.past_len :, None]


def project(state: State, projection: str, x: NDArray) -> NDArray:
    """(B, L, in) -> (B, L, out): x W^T + b; x as it is in a layer without projections."""
    if not state.config.projections:
        return x
    projected = x @ state.parameters[f"{projection}.weight"].T
    bias = state.parameters.get(f"{projection}.bias")
    return projected if bias is None else projected + bias


def queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    return split_heads(project(state, "q_proj", state.inputs.queries), state.config.num_heads)


def new_keys(state: State) -> NDArray:
    """(B, G, Lk - Lp, d)."""
    return split_heads(project(state, "k_proj", state["key_inputs"]), state.config.num_kv_heads)


def new_values(state: State) -> NDArray:
    """(B, G, Lk - Lp, dv)."""
    return split_heads(project(state, "v_proj", state["value_inputs"]), state.config.num_kv_heads)


def keys(state: State) -> NDArray:
    """(B, G, Lk, d): those of the past, then the new ones."""
    return after_past(state, state.inputs.past_keys, state["new_keys"])


def values(state: State) -> NDArray:
    """(B, G, Lk, dv): those of the past, then the new ones."""
    return after_past(state, state.inputs.past_values, state["new_values"])


def after_past(state: State, past: NDArray | None, new: NDArray) -> NDArray:
    """The past, 0 where it is padding, and then the new ones, along the length."""
    if past is None:
        return new
    is_padding = state["padding"][:, None, : state.sizes.past_len, None]
    return np.concatenate([np.where(is_padding, 0.0, past), new], axis=2)


def scores(state: State) -> NDArray:
    """(B, H, Lq, Lk): the score function, capped, plus the additive bias."""
    capped = cap(state, similarity(state))
    return capped if state.inputs.mask.bias is None else capped + additive_bias(state.inputs.mask)


def similarity(state: State) -> NDArray:
    """(B, H, Lq, Lk): the score function, scaled."""
    if state.config.score == "additive":
        return additive_hidden(state) @ state.parameters["score.vector"]
    return state["queries"] @ state.heads_of("keys").swapaxes(-1, -2) * state.config.softmax_scale


def cap(state: State, x: NDArray) -> NDArray:
    """Bound x smoothly by the softcap c: c * tanh(x / c); x as it is without one."""
    softcap = state.config.softcap
    return x if softcap is None else softcap * np.tanh(x / softcap)


def additive_hidden(state: State) -> NDArray:
    """(B, H, Lq, Lk, S): tanh(A q + C k)."""
    from_query = state["queries"] @ state.parameters["score.query.weight"].T
    from_key = state.heads_of("keys") @ state.parameters["score.key.weight"].T
    return np.tanh(from_query[:, :, :, None, :] + from_key[:, :, None, :, :])


def weights(state: State) -> NDArray:
    """(B, H, Lq, Lk): softmax over the allowed keys, 0 elsewhere; all 0 where no key is allowed."""
    is_empty = ~state["allowed"].any(axis=-1, keepdims=True)
    open_scores = np.where(state["allowed"], state["scores"], -np.inf)
    highest = open_scores.max(axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(open_scores - np.where(is_empty, 0.0, highest))
    total = exponentials.sum(axis=-1, keepdims=True)
    return np.where(state["allowed"], exponentials / np.where(is_empty, 1.0, total), 0.0)


def kept_weights(state: State) -> NDArray:
    """(B, H, Lq, Lk): the weights after dropout."""
    return state["weights"] * dropout_factor(state)


def dropout_factor(state: State) -> NDArray | float:
    """What dropout multiplies each weight by: 0, or 1 / (1 - p); 1 without a keep-mask."""
    if state.inputs.dropout_keep is None:
        return 1.0
    return state.inputs.dropout_keep / (1.0 - state.config.dropout)


def heads(state: State) -> NDArray:
    """(B, H, Lq, dv)."""
    return state["kept_weights"] @ state.heads_of("values")


def output(state: State) -> NDArray:
    """(B, Lq, Do)."""
    return project(state, "out_proj", merge_heads(state["heads"]))


FORWARD: Mapping[str, Step] = {
    "allowed": allowed,
    "padding": padding,
    "key_inputs": key_inputs,
    "value_inputs": value_inputs,
    "queries": queries,
    "new_keys": new_keys,
    "new_values": new_values,
    "keys": keys,
    "values": values,
    "scores": scores,
    "weights": weights,
    "kept_weights": kept_weights,
    "heads": heads,
    "output": output,
}
