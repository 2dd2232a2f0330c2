"""The reference: multi-head attention in float64, forward and backward, as a pipeline of steps.

A step is a function of the State that returns one array (or, backward, a dict of gradients); the
runner stores it under the step's name. `FORWARD` and `BACKWARD` are the two pipelines. Replacing
one step makes a variant of the definition: `run(..., forward={**FORWARD, "scores": mine})`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.checks import CallSizes
from mha_core.config import AttentionConfig
from mha_core.heads import merge_heads, repeat_kv_heads, split_heads, sum_kv_groups
from mha_core.inputs import AttentionInputs, read_only
from mha_core.masks import additive_bias, allowed_keys, padding_keys
from mha_core.stages import STAGES, Trace
from mha_core.weights import Weights, check_weights


@dataclass
class State:
    """What a step may read: the problem, and the arrays of earlier steps by name.

    Inputs that are split into heads are merged here, whatever the caller gave; `is_split` remembers it.
    """

    config: AttentionConfig
    weights: Weights
    inputs: AttentionInputs
    sizes: CallSizes
    is_split: bool = False
    arrays: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def heads_of(self, name: str) -> NDArray:
        """The stage `keys` or `values` with each head repeated for the query heads that read it."""
        return repeat_kv_heads(self[name], self.config.num_heads)

    def trace(self) -> Trace:
        """The stages, and the gradients if the backward pipeline ran, as read-only arrays."""
        gradients = None
        if self.inputs.cotangent is not None:
            gradients = {name: read_only(array) for name, array in _collect_gradients(self).items()}
        return Trace(**{name: read_only(self[name]) for name in STAGES}, gradients=gradients)


Step = Callable[[State], Any]


def run(
    config: AttentionConfig,
    weights: Weights,
    inputs: AttentionInputs,
    *,
    forward: Mapping[str, Step] | None = None,
    backward: Mapping[str, Step] | None = None,
) -> Trace:
    """Run the pipeline in float64.

    Args:
        config, weights, inputs: the problem. Numbers of any dtype are used as they are.
        forward, backward: pipelines in place of FORWARD and BACKWARD.

    Returns:
        A Trace of float64 arrays: all seven stages, and gradients if `inputs.cotangent` is given.

    Raises:
        SpecError: before any arithmetic, if the weights or the inputs do not fit the config.
    """
    return run_state(config, weights, inputs, forward=forward, backward=backward).trace()


def run_state(
    config: AttentionConfig,
    weights: Weights,
    inputs: AttentionInputs,
    *,
    forward: Mapping[str, Step] | None = None,
    backward: Mapping[str, Step] | None = None,
) -> State:
    """As `run`, but the State with the array of every step."""
    checked = check_weights(config, weights)
    sizes = inputs.check(config)
    state = State(
        config=config,
        weights={name: array.astype(np.float64) for name, array in checked.items()},
        inputs=inputs.merged().as_float64(),
        sizes=sizes,
        is_split=inputs.is_split,
    )
    # NaN and infinity are data here: they go where the equation sends them.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for name, step in (FORWARD if forward is None else forward).items():
            state.arrays[name] = step(state)
        if inputs.cotangent is not None:
            for name, step in (BACKWARD if backward is None else backward).items():
                state.arrays[name] = step(state)
    return state


# Forward ---------------------------------------------------------------------------------------


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
    projected = x @ state.weights[f"{projection}.weight"].T
    bias = state.weights.get(f"{projection}.bias")
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
        return additive_hidden(state) @ state.weights["score.vector"]
    return state["queries"] @ state.heads_of("keys").swapaxes(-1, -2) * state.config.softmax_scale


def cap(state: State, x: NDArray) -> NDArray:
    """Bound x smoothly by the softcap c: c * tanh(x / c); x as it is without one."""
    softcap = state.config.softcap
    return x if softcap is None else softcap * np.tanh(x / softcap)


def additive_hidden(state: State) -> NDArray:
    """(B, H, Lq, Lk, S): tanh(A q + C k)."""
    from_query = state["queries"] @ state.weights["score.query.weight"].T
    from_key = state.heads_of("keys") @ state.weights["score.key.weight"].T
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


# Backward: d_x is the gradient of the loss with respect to the array x ------------------------------


def d_output(state: State) -> NDArray:
    """(B, Lq, Do): given."""
    return state.inputs.cotangent  # type: ignore[return-value]  # run() asked for it


def d_heads(state: State) -> NDArray:
    """(B, H, Lq, dv)."""
    gradient = state["d_output"]
    if state.config.projections:
        gradient = gradient @ state.weights["out_proj.weight"]
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
    return state["d_similarity"][..., None] * state.weights["score.vector"] * slope


def d_queries(state: State) -> NDArray:
    """(B, H, Lq, d)."""
    if state.config.score == "additive":
        return state["d_additive_hidden"].sum(axis=3) @ state.weights["score.query.weight"]
    return state["d_similarity"] @ state.heads_of("keys") * state.config.softmax_scale


def d_keys(state: State) -> NDArray:
    """(B, G, Lk, d): the query heads of one group add up."""
    if state.config.score == "additive":
        per_head = state["d_additive_hidden"].sum(axis=2) @ state.weights["score.key.weight"]
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
        "input": gradient @ state.weights[f"{projection}.weight"],
        f"{projection}.weight": np.einsum("blo,bli->oi", gradient, x),
    }
    if f"{projection}.bias" in state.weights:
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


def _collect_gradients(state: State) -> dict[str, NDArray]:
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
