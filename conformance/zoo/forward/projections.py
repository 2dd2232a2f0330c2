"""Projections done wrong: their weights, biases and inputs, and padding that is not kept out of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.heads import merge_heads, split_heads
from mha_core.reference import forward
from mha_core.reference.forward import project
from mha_core.reference.state import State, Step

STAGE_OF = {"q_proj": "queries", "k_proj": "keys", "v_proj": "values", "out_proj": "output"}
STEP_OF = {**STAGE_OF, "k_proj": "new_keys", "v_proj": "new_values"}
WEIGHT_FIX = "A weight is (out, in): compute x @ weight.T."
INPUT_FIX = "Project queries from the query input, keys from the key input, values from the value input."
PADDING_FIX = "Replace padded rows of the key and value inputs by 0 before the projection; 0 * NaN is NaN."


def input_of(state: State, projection: str) -> NDArray:
    """(B, L, in): what the projection is applied to."""
    if projection == "q_proj":
        return state.inputs.queries
    if projection == "out_proj":
        return merge_heads(state["heads"])
    return state["key_inputs" if projection == "k_proj" else "value_inputs"]


def as_stage(state: State, projection: str, projected: NDArray) -> NDArray:
    """(B, L, out) in the shape of the projection's stage."""
    if projection == "out_proj":
        return projected
    return split_heads(projected, state.config.num_heads if projection == "q_proj" else state.config.num_kv_heads)


def bias_of(state: State, projection: str) -> NDArray | float:
    return state.parameters.get(f"{projection}.bias", 0.0)


def _with_weight(projection: str, change: Callable[[State, NDArray], NDArray]) -> Mapping[str, Step]:
    """The projection's stage with the weight `change(state, weight)`."""

    def stage(state: State) -> NDArray:
        weight = change(state, state.parameters[f"{projection}.weight"])
        return as_stage(state, projection, input_of(state, projection) @ weight.T + bias_of(state, projection))

    return {STEP_OF[projection]: stage}


def _with_bias(projection: str, change: Callable[[State], NDArray | float]) -> Mapping[str, Step]:
    """The projection's stage with the bias `change(state)`."""

    def stage(state: State) -> NDArray:
        product = input_of(state, projection) @ state.parameters[f"{projection}.weight"].T
        return as_stage(state, projection, product + change(state))

    return {STEP_OF[projection]: stage}


def _same_shape(what: str, a: NDArray, b: NDArray) -> None:
    if a.shape != b.shape:
        raise DoesNotApply(f"{what} can be exchanged unnoticed only where their shapes are equal: {a.shape}, {b.shape}")


# Weights ------------------------------------------------------------------------------------------


def _transposed(state: State, weight: NDArray) -> NDArray:
    if weight.shape[0] != weight.shape[1]:
        raise DoesNotApply(f"a weight can be transposed unnoticed only where it is square, not {weight.shape}")
    return weight.T


def _read_as_in_out(state: State, weight: NDArray) -> NDArray:
    return weight.reshape(weight.shape[::-1]).T


def _weight_of(projection: str) -> Callable[[State, NDArray], NDArray]:
    def change(state: State, weight: NDArray) -> NDArray:
        other = state.parameters[f"{projection}.weight"]
        _same_shape("weights", weight, other)
        return other

    return change


def _packed(order: Callable[[NDArray, int], NDArray]) -> Mapping[str, Step]:
    """Queries, keys and values from one packed weight (3 * H * d, D), taken apart by `order(packed, H)`."""

    def part(position: int, projection: str) -> Step:
        def stage(state: State) -> NDArray:
            names = ("q_proj", "k_proj", "v_proj")
            weights = [state.parameters[f"{name}.weight"] for name in names]
            for weight in weights[1:]:
                _same_shape("packed weights", weights[0], weight)
            weight = order(np.concatenate(weights), state.config.num_heads)[position]
            biases = [np.broadcast_to(bias_of(state, name), weights[0].shape[:1]) for name in names]
            bias = order(np.concatenate(biases)[:, None], state.config.num_heads)[position][:, 0]
            return as_stage(state, projection, input_of(state, projection) @ weight.T + bias)

        return stage

    return {STEP_OF[name]: part(i, name) for i, name in enumerate(("q_proj", "k_proj", "v_proj"))}


def _per_head(packed: NDArray, num_heads: int) -> NDArray:
    width = packed.shape[-1]
    return packed.reshape(num_heads, 3, -1, width).swapaxes(0, 1).reshape(3, -1, width)


def _per_channel(packed: NDArray, num_heads: int) -> NDArray:
    return packed.reshape(-1, 3, packed.shape[-1]).swapaxes(0, 1)


WEIGHTS = (
    *(
        Bug(
            f"{name.replace('_', '-')}-weight-transposed",
            f"The weight of {name} is transposed.",
            stage,
            WEIGHT_FIX,
            forward=_with_weight(name, _transposed),
            seen_in="keras-team/keras#18488",
        )
        for name, stage in STAGE_OF.items()
    ),
    Bug(
        "weights-read-as-in-out",
        "The memory of every (out, in) weight is read as (in, out): reshaped where a transposition is due.",
        "queries",
        WEIGHT_FIX,
        forward={stage: step for name in STAGE_OF for stage, step in _with_weight(name, _read_as_in_out).items()},
    ),
    Bug(
        "q-k-weights-exchanged",
        "The weights of queries and keys are exchanged.",
        "queries",
        "Load q_proj.weight into the query projection and k_proj.weight into the key projection.",
        forward={**_with_weight("q_proj", _weight_of("k_proj")), **_with_weight("k_proj", _weight_of("q_proj"))},
    ),
    Bug(
        "k-v-weights-exchanged",
        "The weights of keys and values are exchanged.",
        "keys",
        "Load k_proj.weight into the key projection and v_proj.weight into the value projection.",
        forward={**_with_weight("k_proj", _weight_of("v_proj")), **_with_weight("v_proj", _weight_of("k_proj"))},
    ),
    Bug(
        "packed-read-per-head",
        "A packed weight [q; k; v] is read as [q, k, v] of head 0, then of head 1, and so on.",
        "queries",
        "Take the packed weight apart into thirds first, then into heads.",
        forward=_packed(_per_head),
        seen_in="vllm-project/vllm#53114",
    ),
    Bug(
        "packed-read-per-channel",
        "A packed weight [q; k; v] is read as q, k, v of channel 0, then of channel 1, and so on.",
        "queries",
        "Take the packed weight apart into thirds first, then into heads.",
        forward=_packed(_per_channel),
    ),
)


# Biases -------------------------------------------------------------------------------------------


def _exchanged_bias(own: str, other: str) -> Callable[[State], NDArray | float]:
    def change(state: State) -> NDArray | float:
        names = (f"{own}.bias", f"{other}.bias")
        if any(name not in state.parameters for name in names):
            return bias_of(state, own)
        _same_shape("biases", state.parameters[names[0]], state.parameters[names[1]])
        return state.parameters[names[1]]

    return change


BIASES = (
    *(
        Bug(
            f"{name.replace('_', '-')}-bias-missing",
            f"The bias of {name} is not added.",
            stage,
            f"Add {name}.bias after the product.",
            forward=_with_bias(name, lambda s: 0.0),
        )
        for name, stage in STAGE_OF.items()
    ),
    Bug(
        "output-bias-twice",
        "The bias of out_proj is added twice.",
        "output",
        "Add out_proj.bias once.",
        forward=_with_bias("out_proj", lambda s: 2.0 * bias_of(s, "out_proj")),
    ),
    Bug(
        "output-bias-per-head",
        "The bias of out_proj is added once per head.",
        "output",
        "Add out_proj.bias once, after the heads are summed.",
        forward=_with_bias("out_proj", lambda s: s.config.num_heads * bias_of(s, "out_proj")),
    ),
    Bug(
        "q-k-biases-exchanged",
        "The biases of queries and keys are exchanged.",
        "queries",
        "Load q_proj.bias into the query projection and k_proj.bias into the key projection.",
        forward={
            **_with_bias("q_proj", _exchanged_bias("q_proj", "k_proj")),
            **_with_bias("k_proj", _exchanged_bias("k_proj", "q_proj")),
        },
    ),
)


# Inputs -------------------------------------------------------------------------------------------


def _from(projection: str, read: Callable[[State], NDArray]) -> Mapping[str, Step]:
    """The projection of another input."""

    def stage(state: State) -> NDArray:
        x = read(state)
        _same_shape("inputs", input_of(state, projection), x)
        return as_stage(state, projection, project(state, projection, x))

    return {STEP_OF[projection]: stage}


def _unprojected(state: State) -> NDArray:
    merged = merge_heads(state["heads"])
    if merged.shape[-1] != state.config.output_dim:
        raise DoesNotApply("heads can be returned unprojected unnoticed only where H * dv = Do")
    return merged


def _with_residual(state: State) -> NDArray:
    if state.config.query_dim != state.config.output_dim:
        raise DoesNotApply("the queries can be added to the output only where Dq = Do")
    return forward.output(state) + state.inputs.queries


INPUTS = (
    Bug(
        "keys-from-queries",
        "Keys are projected from the query input.",
        "keys",
        INPUT_FIX,
        forward=_from("k_proj", lambda s: s.inputs.queries),
    ),
    Bug(
        "queries-from-keys",
        "Queries are projected from the key input.",
        "queries",
        INPUT_FIX,
        forward=_from("q_proj", lambda s: s.inputs.keys),
    ),
    Bug(
        "values-from-keys",
        "Values are projected from the key input.",
        "values",
        INPUT_FIX,
        forward=_from("v_proj", lambda s: s["key_inputs"]),
    ),
    Bug(
        "keys-from-values",
        "Keys are projected from the value input.",
        "keys",
        INPUT_FIX,
        forward=_from("k_proj", lambda s: s["value_inputs"]),
    ),
    Bug(
        "keys-and-values-exchanged",
        "The key and the value input are exchanged.",
        "keys",
        INPUT_FIX,
        forward={**_from("k_proj", lambda s: s["value_inputs"]), **_from("v_proj", lambda s: s["key_inputs"])},
    ),
    Bug(
        "output-unprojected",
        "The concatenated heads are returned without the output projection.",
        "output",
        "Apply out_proj to the concatenated heads.",
        forward={"output": _unprojected},
    ),
    Bug(
        "output-with-residual",
        "The query input is added to the output.",
        "output",
        "Leave the residual connection to the caller.",
        forward={"output": _with_residual},
    ),
)

PADDING = (
    Bug(
        "padding-not-zeroed",
        "Padded keys and values are projected as they are: a NaN there reaches the output as 0 * NaN.",
        "keys",
        PADDING_FIX,
        forward={"key_inputs": lambda s: s.inputs.keys, "value_inputs": lambda s: s.inputs.values},
    ),
    Bug(
        "padding-of-values-not-zeroed",
        "Padded values are projected as they are: a NaN there reaches the output as 0 * NaN.",
        "values",
        PADDING_FIX,
        forward={"value_inputs": lambda s: s.inputs.values},
    ),
)

BUGS = (*WEIGHTS, *BIASES, *INPUTS, *PADDING)
