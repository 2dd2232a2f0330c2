"""Projections done wrong: their weights, biases and inputs, and padding that is not kept out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference import forward
from mha_core.reference.forward import PROJECTED, project
from mha_core.reference.state import State, Step

STAGE_OF = {"q_proj": "queries", "k_proj": "keys", "v_proj": "values", "out_proj": "output"}
PACKED = ("q_proj", "k_proj", "v_proj")
WEIGHT_FIX = "A weight is (out, in): compute x @ weight.T."
INPUT_FIX = "Project queries from the query input, keys from the key input, values from the value input."
PADDING_FIX = "Replace padded rows of the key and value inputs by 0 before the projection; 0 * NaN is NaN."


Parameter = Callable[[State, NDArray], NDArray | float]


def projected_with(
    projection: str, *, weight: Parameter | None = None, bias: Parameter | None = None
) -> dict[str, Step]:
    """The projection with the weight `weight(state, right one)`, the bias `bias(state, right one, else 0)`, or both."""
    given, made = PROJECTED[projection]

    def step(state: State) -> NDArray:
        w: Any = state.parameters[f"{projection}.weight"]
        b: Any = state.parameters.get(f"{projection}.bias", 0.0)
        w, b = w if weight is None else weight(state, w), b if bias is None else bias(state, b)
        projected: NDArray = state[given] @ w.T + b
        return projected

    return {made: step}


def _of_all(parts: Iterable[Mapping[str, Step]]) -> dict[str, Step]:
    """The steps of several projections together."""
    return {name: step for steps in parts for name, step in steps.items()}


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

    def part(position: int, projection: str) -> Mapping[str, Step]:
        def weight(state: State, right: NDArray) -> NDArray:
            weights = [state.parameters[f"{name}.weight"] for name in PACKED]
            for other in weights[1:]:
                _same_shape("packed weights", weights[0], other)
            return order(np.concatenate(weights), state.config.num_heads)[position]

        def bias(state: State, right: NDArray) -> NDArray:
            width = state.parameters["q_proj.weight"].shape[0]
            biases = [np.broadcast_to(state.parameters.get(f"{name}.bias", 0.0), (width,)) for name in PACKED]
            return order(np.concatenate(biases)[:, None], state.config.num_heads)[position][:, 0]

        return projected_with(projection, weight=weight, bias=bias)

    return _of_all(part(position, projection) for position, projection in enumerate(PACKED))


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
            forward=projected_with(name, weight=_transposed),
            seen_in="keras-team/keras#18488",
        )
        for name, stage in STAGE_OF.items()
    ),
    Bug(
        "weights-read-as-in-out",
        "The memory of every (out, in) weight is read as (in, out): reshaped where a transposition is due.",
        "queries",
        WEIGHT_FIX,
        forward=_of_all(projected_with(name, weight=_read_as_in_out) for name in PROJECTED),
    ),
    Bug(
        "q-k-weights-exchanged",
        "The weights of queries and keys are exchanged.",
        "queries",
        "Load q_proj.weight into the query projection and k_proj.weight into the key projection.",
        forward={
            **projected_with("q_proj", weight=_weight_of("k_proj")),
            **projected_with("k_proj", weight=_weight_of("q_proj")),
        },
    ),
    Bug(
        "k-v-weights-exchanged",
        "The weights of keys and values are exchanged.",
        "keys",
        "Load k_proj.weight into the key projection and v_proj.weight into the value projection.",
        forward={
            **projected_with("k_proj", weight=_weight_of("v_proj")),
            **projected_with("v_proj", weight=_weight_of("k_proj")),
        },
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


def _bias_of(projection: str) -> Parameter:
    def change(state: State, bias: NDArray) -> NDArray:
        other = state.parameters.get(f"{projection}.bias")
        if other is None or not np.ndim(bias):
            return bias  # one of the two has none
        _same_shape("biases", bias, other)
        return other

    return change


BIASES = (
    *(
        Bug(
            f"{name.replace('_', '-')}-bias-missing",
            f"The bias of {name} is not added.",
            stage,
            f"Add {name}.bias after the product.",
            forward=projected_with(name, bias=lambda s, bias: 0.0),
        )
        for name, stage in STAGE_OF.items()
    ),
    Bug(
        "output-bias-twice",
        "The bias of out_proj is added twice.",
        "output",
        "Add out_proj.bias once.",
        forward=projected_with("out_proj", bias=lambda s, bias: 2.0 * bias),
    ),
    Bug(
        "output-bias-per-head",
        "The bias of out_proj is added once per head.",
        "output",
        "Add out_proj.bias once, after the heads are summed.",
        forward=projected_with("out_proj", bias=lambda s, bias: s.config.num_heads * bias),
    ),
    Bug(
        "q-k-biases-exchanged",
        "The biases of queries and keys are exchanged.",
        "queries",
        "Load q_proj.bias into the query projection and k_proj.bias into the key projection.",
        forward={
            **projected_with("q_proj", bias=_bias_of("k_proj")),
            **projected_with("k_proj", bias=_bias_of("q_proj")),
        },
    ),
)


# Inputs -------------------------------------------------------------------------------------------


def _from(projection: str, read: Callable[[State], NDArray]) -> Mapping[str, Step]:
    """The projection of another input."""
    given, made = PROJECTED[projection]

    def step(state: State) -> NDArray:
        x = read(state)
        _same_shape("inputs", state[given], x)
        return project(state, projection, x)

    return {made: step}


def _unprojected(state: State) -> NDArray:
    merged: NDArray = state["merged"]
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
