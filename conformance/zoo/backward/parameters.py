"""Right forward, wrong backward, around the attention: paths cut, weights, biases, padding, the cotangent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import GRADIENTS, Bug, DoesNotApply
from conformance.zoo.forward.heads import interleaved, merge_interleaved
from mha_core.heads import sum_kv_groups
from mha_core.reference import backward
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State, Step

BIAS_FIX = "Sum the scores' gradient over every axis along which the bias was broadcast."
SUM_FIX = "Sum the gradient of a weight or bias over batch and positions; average nothing."
PATH_FIX = "Let the gradient through: no detach or stop_gradient on this path."

Gradients = dict[str, NDArray]


def _bug(id: str, sentence: str, fix: str, backward: Mapping[str, Step]) -> Bug:
    return Bug(id, sentence, GRADIENTS, fix, backward=backward)


# Paths cut ----------------------------------------------------------------------------------------


def _cut(*names: str) -> Mapping[str, Step]:
    """Steps that give zeros in place of these steps' arrays."""

    def zero(name: str) -> Step:
        right = backward.BACKWARD[name]

        def step(state: State) -> NDArray | None:
            gradient = right(state)
            return None if gradient is None else np.zeros_like(gradient)

        return step

    return {name: zero(name) for name in names}


PATHS = (
    _bug(
        "weights-detached",
        "No gradient goes through the attention weights: only values learn.",
        PATH_FIX,
        _cut("d_scores"),
    ),
    _bug("queries-detached", "No gradient goes through the queries.", PATH_FIX, _cut("d_queries")),
    _bug(
        "keys-detached",
        "No gradient goes through the keys, as with a cache that is detached.",
        PATH_FIX,
        _cut("d_keys"),
    ),
    _bug(
        "values-detached",
        "No gradient goes through the values, as with a cache that is detached.",
        PATH_FIX,
        _cut("d_values"),
    ),
    _bug("gradient-of-bias-missing", "The additive bias gets no gradient.", PATH_FIX, _cut("d_bias")),
)


# The additive bias --------------------------------------------------------------------------------


def _bias_gradient(change: Callable[[State, NDArray], NDArray]) -> Mapping[str, Step]:
    def d_bias(state: State) -> NDArray | None:
        gradient = backward.d_bias(state)
        return None if gradient is None else change(state, gradient)

    return {"d_bias": d_bias}


def _repetitions(state: State, gradient: NDArray) -> float:
    """The number of scores that each element of the bias was added to."""
    return state["d_scores"].size / gradient.size if gradient.size else 1.0


def _of_first_item(state: State, gradient: NDArray) -> NDArray:
    if gradient.ndim == 4 and gradient.shape[0] > 1:
        return gradient
    first = state["d_scores"][:1]
    axes = tuple(axis for axis, size in enumerate((1,) * (4 - gradient.ndim) + gradient.shape) if size == 1)
    return first.sum(axis=axes, keepdims=True).reshape(gradient.shape)


MASK_BIAS = (
    _bug(
        "gradient-of-bias-averaged",
        "The additive bias's gradient is averaged over the axes of broadcasting.",
        BIAS_FIX,
        _bias_gradient(lambda s, gradient: gradient / _repetitions(s, gradient)),
    ),
    _bug(
        "gradient-of-bias-first-item",
        "The additive bias's gradient is that of batch item 0 alone.",
        BIAS_FIX,
        _bias_gradient(_of_first_item),
    ),
    _bug(
        "gradient-of-bias-scaled",
        "The additive bias's gradient is multiplied by the scale.",
        "Take the gradient of the scores as it is.",
        _bias_gradient(lambda s, gradient: gradient * s.config.head_dim**-0.5),
    ),
)


# Weights and biases of the projections ------------------------------------------------------------


def _projections(change: Callable[[State, Gradients], Gradients]) -> Mapping[str, Step]:
    """`change(state, right ones)` in place of some gradients of the projections' parameters."""

    def step(state: State) -> Gradients:
        right = backward.d_projection_parameters(state)
        return {**right, **change(state, right)} if right else right

    return {"d_projection_parameters": step}


def _scaled(ending: str, factor: Callable[[State, str], float]) -> Callable[[State, Gradients], Gradients]:
    """A change that multiplies each gradient whose name ends with `ending` by `factor(state, name)`."""

    def change(state: State, right: Gradients) -> Gradients:
        return {name: array * factor(state, name) for name, array in right.items() if name.endswith(ending)}

    return change


def _per_item(state: State, name: str) -> float:
    return 1.0 / max(state.sizes.batch, 1)


def _per_row(state: State, name: str) -> float:
    length = state.sizes.query_len if name.startswith(("q_proj", "out_proj")) else state.sizes.key_len
    return 1.0 / max(state.sizes.batch * length, 1)


def _nothing(state: State, name: str) -> float:
    return 0.0


def _from_unmasked_inputs(state: State, right: Gradients) -> Gradients:
    return {
        "k_proj.weight": np.einsum("blo,bli->oi", state["d_k_proj"], state.inputs.keys),
        "v_proj.weight": np.einsum("blo,bli->oi", state["d_v_proj"], state.inputs.values),
    }


def _output_weight_d_h(state: State, right: Gradients) -> Gradients:
    return {"out_proj.weight": np.einsum("blo,bli->oi", state["d_output"], merge_interleaved(state["heads"]))}


def _heads_split_d_h(state: State) -> NDArray:
    if not state.config.projections:
        raise DoesNotApply("this layer has no out_proj.weight")
    return interleaved(state["d_merged"], state.config.num_heads)


def _untransposed(projection: str) -> Mapping[str, Step]:
    """The gradient of a projection's input, multiplied by the transpose of the right factor."""
    given, made = PROJECTED[projection]

    def step(state: State) -> NDArray:
        weight = state.parameters[f"{projection}.weight"]
        if weight.shape[0] != weight.shape[1]:
            raise DoesNotApply(f"a weight can stay untransposed unnoticed only where it is square, not {weight.shape}")
        return state[f"d_{made}"] @ weight.T

    return {f"d_{given}": step}


PARAMETERS = (
    _bug(
        "gradient-of-weights-averaged",
        "A weight's gradient is averaged over the batch.",
        SUM_FIX,
        _projections(_scaled(".weight", _per_item)),
    ),
    _bug(
        "gradient-of-biases-averaged",
        "A bias's gradient is averaged over the batch.",
        SUM_FIX,
        _projections(_scaled(".bias", _per_item)),
    ),
    _bug(
        "gradient-of-biases-averaged-over-rows",
        "A bias's gradient is averaged over batch and positions.",
        SUM_FIX,
        _projections(_scaled(".bias", _per_row)),
    ),
    _bug(
        "gradient-of-biases-missing",
        "Biases get no gradient.",
        PATH_FIX,
        _projections(_scaled(".bias", _nothing)),
    ),
    _bug(
        "gradient-of-output-weight-missing",
        "The output projection's weight gets no gradient.",
        PATH_FIX,
        _projections(_scaled("out_proj.weight", _nothing)),
    ),
    _bug(
        "gradient-of-output-weight-d-h",
        "The output weight's gradient has its heads merged as (d, h).",
        "Use the merged heads that the forward pass projected: (h, d).",
        _projections(_output_weight_d_h),
    ),
    _bug(
        "gradient-of-heads-split-d-h",
        "The output's gradient is split into heads as (d, h).",
        "Split it as the heads were merged: (h, d).",
        {"d_heads": _heads_split_d_h},
    ),
    _bug(
        "gradient-of-inputs-weight-untransposed",
        "The gradient of an input multiplies by the weight transposed once too often.",
        "d_input = d_output @ weight, with the weight (out, in).",
        {**_untransposed("q_proj"), **_untransposed("k_proj"), **_untransposed("v_proj")},
    ),
    _bug(
        "gradient-of-weights-reads-padding",
        "The gradients of key and value weights read padded inputs: 0 * NaN is NaN.",
        "Use the inputs with padding replaced by 0.",
        _projections(_from_unmasked_inputs),
    ),
)


# Padding and the cotangent ------------------------------------------------------------------------


def _leaking_values(state: State) -> NDArray:
    """`d_values` from a softmax over all keys, masked afterwards: excluded values get gradients, too."""
    scores = state["scores"] - state["scores"].max(axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(scores)
    weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return sum_kv_groups(weights.swapaxes(-1, -2) @ state["d_heads"], state.config.num_kv_heads)


def _inputs_with_padding(state: State) -> Gradients:
    """The gradients of the inputs, those of new keys and values not set to 0 where they are padding."""
    unpadded = replace(state, arrays={**state.arrays, "padding": np.zeros_like(state["padding"])})
    leaking = backward.d_inputs(unpadded)
    return {**backward.d_inputs(state), "keys": leaking["keys"], "values": leaking["values"]}


def _cotangent(factor: Callable[[State], Any]) -> Mapping[str, Step]:
    return {"d_output": lambda s: s.inputs.cotangent * factor(s)}


def _only_real_queries(state: State) -> NDArray:
    """1 for queries that have a key, in all heads: (B, Lq, 1)."""
    return state["allowed"].any(axis=-1).all(axis=1)[:, :, None]


FLOW = (
    _bug(
        "gradient-leaks-to-padding",
        "Excluded values get a gradient, padding too.",
        "Use the weights that the forward pass used: 0 where a key is excluded.",
        {"d_values": _leaking_values, "d_inputs": _inputs_with_padding},
    ),
    _bug(
        "gradient-twice",
        "The output's gradient is counted twice.",
        "Accumulate each gradient once; set it to zero between steps.",
        _cotangent(lambda s: 2.0),
    ),
    _bug(
        "gradient-averaged-over-batch",
        "The output's gradient is divided by the batch size.",
        "Use the given cotangent as it is.",
        _cotangent(lambda s: 1.0 / max(s.sizes.batch, 1)),
    ),
    _bug(
        "gradient-of-empty-rows-dropped",
        "Queries without a key send no gradient even to the output projection's bias.",
        "The output of such a row is the bias: it sends it gradient.",
        _cotangent(_only_real_queries),
    ),
)

BUGS = (*PATHS, *MASK_BIAS, *PARAMETERS, *FLOW)
