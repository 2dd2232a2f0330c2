"""Projections done wrong: their weights, biases and inputs, and padding that is not kept out of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Change, Steps, Table, after, require
from mha_core.reference.forward import PROJECTED, project
from mha_core.reference.state import State

STAGE_OF = {"q_proj": "queries", "k_proj": "keys", "v_proj": "values", "out_proj": "output"}
PACKED = ("q_proj", "k_proj", "v_proj")
PLURAL = {"weight": "weights", "bias": "biases"}


def _right(state: State, right: Any) -> Any:
    return right


def projection(name: str, *, x: Change = _right, weight: Change = _right, bias: Change = _right) -> Steps:
    """Return {step's name: step}, where projection `name` uses changed arrays.

    The step's input is `x(state, right input)`, and likewise for its weight and its bias (0 if it has none).
    """
    given, made = PROJECTED[name]

    def step(state: State) -> NDArray:
        w = weight(state, state.parameters[f"{name}.weight"])
        return x(state, state[given]) @ w.T + bias(state, state.parameters.get(f"{name}.bias", 0.0))

    return {made: step}


def _same_shape(what: str, a: NDArray, b: NDArray) -> None:
    message = f"{what} can be exchanged unnoticed only where their shapes are equal: {a.shape}, {b.shape}"
    require(a.shape == b.shape, message)


# Weights and biases -------------------------------------------------------------------------------


def _transposed(state: State, weight: NDArray) -> NDArray:
    square = weight.shape[0] == weight.shape[1]
    require(square, f"a weight can be transposed unnoticed only where it is square, not {weight.shape}")
    return weight.T


def _exchanged(a: str, b: str, kind: str) -> Steps:
    """The weights of two projections exchanged, or the biases, if both have one."""

    def of(other: str) -> Change:
        def change(state: State, right: Any) -> Any:
            found = state.parameters.get(f"{other}.{kind}")
            if found is None or not np.ndim(right):
                return right
            _same_shape(PLURAL[kind], right, found)
            return found

        return change

    return {**projection(a, **{kind: of(b)}), **projection(b, **{kind: of(a)})}


def _packed(order: Callable[[NDArray, int], NDArray]) -> Steps:
    """Queries, keys and values from one packed weight (3 * H * d, D), taken apart by `order(packed, H)`."""

    def part(position: int, name: str) -> Steps:
        def weight(state: State, right: NDArray) -> NDArray:
            weights = [state.parameters[f"{name}.weight"] for name in PACKED]
            for other in weights[1:]:
                _same_shape("packed weights", weights[0], other)
            return order(np.concatenate(weights), state.config.num_heads)[position]

        def bias(state: State, right: NDArray) -> NDArray:
            width = state.parameters["q_proj.weight"].shape[0]
            biases = [np.broadcast_to(state.parameters.get(f"{name}.bias", 0.0), (width,)) for name in PACKED]
            return order(np.concatenate(biases)[:, None], state.config.num_heads)[position][:, 0]

        return projection(name, weight=weight, bias=bias)

    return {made: step for position, name in enumerate(PACKED) for made, step in part(position, name).items()}


def _per_head(packed: NDArray, num_heads: int) -> NDArray:
    width = packed.shape[-1]
    return packed.reshape(num_heads, 3, -1, width).swapaxes(0, 1).reshape(3, -1, width)


_weight = Table(
    "queries",
    "A weight is (out, in): compute x @ weight.T; transpose one that is stored as (in, out) when it is loaded.",
)
_third = Table("queries", "Take the packed weight apart into thirds first, then into heads.")
_bias = Table("output", "Add out_proj.bias once.")

WEIGHTS = (
    *(
        _weight(
            f"{name.replace('_', '-')}-weight-transposed",
            f"The weight of {name} is transposed.",
            projection(name, weight=_transposed),
            stage=stage,
            seen_in="keras-team/keras#18488",
        )
        for name, stage in STAGE_OF.items()
    ),
    _weight(
        "weights-read-as-in-out",
        "The memory of every (out, in) weight is read as (in, out): reshaped where a transposition is due.",
        *(projection(name, weight=lambda s, weight: weight.reshape(weight.shape[::-1]).T) for name in PROJECTED),
    ),
    _weight(
        "q-k-weights-exchanged",
        "The weights of queries and keys are exchanged.",
        _exchanged("q_proj", "k_proj", "weight"),
        fix="Load q_proj.weight into the query projection and k_proj.weight into the key projection.",
    ),
    _weight(
        "k-v-weights-exchanged",
        "The weights of keys and values are exchanged.",
        _exchanged("k_proj", "v_proj", "weight"),
        stage="keys",
        fix="Load k_proj.weight into the key projection and v_proj.weight into the value projection.",
    ),
    _third(
        "packed-read-per-head",
        "A packed weight [q; k; v] is read as [q, k, v] of head 0, then of head 1, and so on.",
        _packed(_per_head),
        seen_in="vllm-project/vllm#53114",
    ),
    _third(
        "packed-read-per-channel",
        "A packed weight [q; k; v] is read as q, k, v of channel 0, then of channel 1, and so on.",
        _packed(lambda packed, num_heads: packed.reshape(-1, 3, packed.shape[-1]).swapaxes(0, 1)),
    ),
)

BIASES = (
    *(
        Table(stage, f"Add {name}.bias after the product.")(
            f"{name.replace('_', '-')}-bias-missing",
            f"The bias of {name} is not added.",
            projection(name, bias=lambda s, bias: 0.0),
        )
        for name, stage in STAGE_OF.items()
    ),
    _bias(
        "output-bias-twice",
        "The bias of out_proj is added twice.",
        projection("out_proj", bias=lambda s, bias: 2.0 * bias),
    ),
    _bias(
        "output-bias-per-head",
        "The bias of out_proj is added once per head.",
        projection("out_proj", bias=lambda s, bias: s.config.num_heads * bias),
        fix="Add out_proj.bias once, after the heads are summed.",
    ),
    _bias(
        "q-k-biases-exchanged",
        "The biases of queries and keys are exchanged.",
        _exchanged("q_proj", "k_proj", "bias"),
        stage="queries",
        fix="Load q_proj.bias into the query projection and k_proj.bias into the key projection.",
    ),
)


# Inputs -------------------------------------------------------------------------------------------


def _from(name: str, read: Callable[[State], NDArray]) -> Steps:
    """The projection of another input."""
    given, made = PROJECTED[name]

    def step(state: State) -> NDArray:
        x = read(state)
        _same_shape("inputs", state[given], x)
        return project(state, name, x)

    return {made: step}


def _unprojected(state: State) -> NDArray:
    merged: NDArray = state["merged"]
    possible = merged.shape[-1] == state.config.output_dim
    require(possible, "heads can be returned unprojected unnoticed only where H * dv = Do")
    return merged


def _with_residual(state: State, output: NDArray) -> NDArray:
    return output + state.inputs.queries if state.config.query_dim == state.config.output_dim else output


_input = Table("keys", "Project queries from the query input, keys from the key input, values from the value input.")
_padding = Table(
    "keys",
    "Before the projection, put 0 into padded rows of the key and value inputs, which a function is told as `padding`: "
    "0 * NaN is NaN.",
)
_output = Table("output", "Apply out_proj to the concatenated heads.")

INPUTS = (
    _input(
        "keys-from-queries",
        "Keys are projected from the query input.",
        _from("k_proj", lambda s: s.inputs.queries),
    ),
    _input(
        "queries-from-keys",
        "Queries are projected from the key input.",
        _from("q_proj", lambda s: s.inputs.keys),
        stage="queries",
    ),
    _input(
        "values-from-keys",
        "Values are projected from the key input.",
        _from("v_proj", lambda s: s["key_inputs"]),
        stage="values",
    ),
    _input(
        "keys-from-values",
        "Keys are projected from the value input.",
        _from("k_proj", lambda s: s["value_inputs"]),
    ),
    _input(
        "keys-and-values-exchanged",
        "The key and the value input are exchanged.",
        _from("k_proj", lambda s: s["value_inputs"]),
        _from("v_proj", lambda s: s["key_inputs"]),
    ),
    _output(
        "output-unprojected",
        "The concatenated heads are returned without the output projection.",
        {"output": _unprojected},
    ),
    _output(
        "output-with-residual",
        "The query input is added to the output where both are of one width.",
        after("output", _with_residual),
        fix="Leave the residual connection to the caller.",
    ),
)

PADDING = (
    _padding(
        "padding-not-zeroed",
        "Padded keys and values are projected as they are: a NaN there reaches the output as 0 * NaN.",
        {"key_inputs": lambda s: s.inputs.keys, "value_inputs": lambda s: s.inputs.values},
    ),
    _padding(
        "padding-of-values-not-zeroed",
        "Padded values are projected as they are: a NaN there reaches the output as 0 * NaN.",
        {"value_inputs": lambda s: s.inputs.values},
        stage="values",
    ),
)

BUGS = (*WEIGHTS, *BIASES, *INPUTS, *PADDING)
