"""Right forward, wrong backward, around the attention: paths cut, weights, biases, padding, the cotangent."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.backward.attention import DETACH_FIX, d_values_by
from conformance.zoo.bug import GRADIENTS, Arrays, Steps, Table, after, entries, require, times
from conformance.zoo.forward.heads import interleaved, merge_interleaved
from conformance.zoo.forward.softmax import plain_softmax
from mha_core.reference import backward
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State

# Paths cut ----------------------------------------------------------------------------------------


def _cut(name: str) -> Steps:
    """Zeros in place of a gradient."""
    return after(name, lambda s, right: np.zeros_like(right))


_path = Table(GRADIENTS, DETACH_FIX)

PATHS = (
    _path(
        "weights-detached",
        "No gradient goes through the attention weights: only values learn.",
        _cut("d_scores"),
    ),
    _path("queries-detached", "No gradient goes through the queries.", _cut("d_queries")),
    _path(
        "keys-detached",
        "No gradient goes through the keys, as with a cache that is detached.",
        _cut("d_keys"),
    ),
    _path(
        "values-detached",
        "No gradient goes through the values, as with a cache that is detached.",
        _cut("d_values"),
    ),
    _path("gradient-of-bias-missing", "The additive bias gets no gradient.", _cut("d_bias")),
)


# The additive bias --------------------------------------------------------------------------------


def _of_first_item(state: State, gradient: NDArray) -> NDArray:
    if gradient.ndim == 4 and gradient.shape[0] > 1:
        return gradient
    first = state["d_scores"][:1]
    axes = tuple(axis for axis, size in enumerate((1,) * (4 - gradient.ndim) + gradient.shape) if size == 1)
    return first.sum(axis=axes, keepdims=True).reshape(gradient.shape)


_row = Table(GRADIENTS, "Sum the scores' gradient over every axis along which the bias was broadcast.")

MASK_BIAS = (
    _row(
        "gradient-of-bias-averaged",
        "The additive bias's gradient is averaged over the axes of broadcasting.",
        after(
            "d_bias",
            lambda state, gradient: gradient / (state["d_scores"].size / gradient.size if gradient.size else 1.0),
        ),
    ),
    _row(
        "gradient-of-bias-first-item",
        "The additive bias's gradient is that of batch item 0 alone.",
        after("d_bias", _of_first_item),
    ),
    _row(
        "gradient-of-bias-scaled",
        "The additive bias's gradient is multiplied by the scale.",
        times("d_bias", lambda s: s.config.head_dim**-0.5),
        fix="Take the gradient of the scores as it is.",
    ),
)


# Weights and biases of the projections ------------------------------------------------------------


def _parameters(change: Callable[[State, Arrays], Arrays]) -> Steps:
    """`change(state, right ones)` in place of some gradients of the projections' parameters."""
    return entries("d_projection_parameters", change)


def _scaled(ending: str, factor: Callable[[State, str], float]) -> Steps:
    """Each gradient whose name ends with `ending`, multiplied by `factor(state, name)`."""
    return _parameters(lambda s, right: {n: right[n] * factor(s, n) for n in right if n.endswith(ending)})


def _per_item(state: State, name: str = "") -> float:
    return 1.0 / max(state.sizes.batch, 1)


def _per_row(state: State, name: str) -> float:
    length = state.sizes.query_len if name.startswith(("q_proj", "out_proj")) else state.sizes.key_len
    return 1.0 / max(state.sizes.batch * length, 1)


def _nothing(state: State, name: str) -> float:
    return 0.0


def _product(gradient: NDArray, x: NDArray) -> NDArray:
    """The gradient of a weight (out, in)."""
    return np.einsum("blo,bli->oi", gradient, x)


def _from_unmasked_inputs(state: State, right: Arrays) -> Arrays:
    return {
        "k_proj.weight": _product(state["d_k_proj"], state.inputs.keys),
        "v_proj.weight": _product(state["d_v_proj"], state.inputs.values),
    }


def _heads_split_d_h(state: State, right: NDArray) -> NDArray:
    require(state.config.projections, "this layer has no out_proj.weight")
    return interleaved(state["d_merged"], state.config.num_heads)


def _untransposed(projection: str) -> Steps:
    """The gradient of a projection's input, multiplied by the transpose of the right factor."""
    given, made = PROJECTED[projection]

    def step(state: State) -> NDArray:
        weight = state.parameters[f"{projection}.weight"]
        square = weight.shape[0] == weight.shape[1]
        require(square, f"a weight can stay untransposed unnoticed only where it is square, not {weight.shape}")
        return state[f"d_{made}"] @ weight.T

    return {f"d_{given}": step}


_row = Table(GRADIENTS, "Sum the gradient of a weight or bias over batch and positions; average nothing.")

PARAMETERS = (
    _row(
        "gradient-of-weights-averaged",
        "A weight's gradient is averaged over the batch.",
        _scaled(".weight", _per_item),
    ),
    _row("gradient-of-biases-averaged", "A bias's gradient is averaged over the batch.", _scaled(".bias", _per_item)),
    _row(
        "gradient-of-biases-averaged-over-rows",
        "A bias's gradient is averaged over batch and positions.",
        _scaled(".bias", _per_row),
    ),
    _path("gradient-of-biases-missing", "Biases get no gradient.", _scaled(".bias", _nothing)),
    _path(
        "gradient-of-output-weight-missing",
        "The output projection's weight gets no gradient.",
        _scaled("out_proj.weight", _nothing),
    ),
    _row(
        "gradient-of-output-weight-d-h",
        "The output weight's gradient has its heads merged as (d, h).",
        _parameters(lambda s, right: {"out_proj.weight": _product(s["d_output"], merge_interleaved(s["heads"]))}),
        fix="Use the merged heads that the forward pass projected: (h, d).",
    ),
    _row(
        "gradient-of-heads-split-d-h",
        "The output's gradient is split into heads as (d, h).",
        after("d_heads", _heads_split_d_h),
        fix="Split it as the heads were merged: (h, d).",
    ),
    _row(
        "gradient-of-inputs-weight-untransposed",
        "The gradient of an input multiplies by the weight transposed once too often.",
        *map(_untransposed, ("q_proj", "k_proj", "v_proj")),
        fix="d_input = d_output @ weight, with the weight (out, in).",
    ),
    _row(
        "gradient-of-weights-reads-padding",
        "The gradients of key and value weights read padded inputs: 0 * NaN is NaN.",
        _parameters(_from_unmasked_inputs),
        fix="Use the inputs with padding replaced by 0.",
    ),
)


# Padding and the cotangent ------------------------------------------------------------------------


def _inputs_with_padding(state: State, right: Arrays) -> Arrays:
    """The gradients of new keys and values, not set to 0 where they are padding."""
    unpadded = replace(state, arrays={**state.arrays, "padding": np.zeros_like(state["padding"])})
    leaking = backward.d_inputs(unpadded)
    return {"keys": leaking["keys"], "values": leaking["values"]}


FLOW = (
    _row(
        "gradient-leaks-to-padding",
        "Excluded values get a gradient, padding too.",
        {"d_values": lambda state: d_values_by(state, plain_softmax(state["scores"]))},
        entries("d_inputs", _inputs_with_padding),
        fix="Use the weights that the forward pass used: 0 where a key is excluded.",
    ),
    _row(
        "gradient-twice",
        "The output's gradient is counted twice.",
        times("d_output", lambda s: 2.0),
        fix="Accumulate each gradient once; set it to zero between steps.",
    ),
    _row(
        "gradient-averaged-over-batch",
        "The output's gradient is divided by the batch size.",
        times("d_output", _per_item),
        fix="Use the given cotangent as it is.",
    ),
    _row(
        "gradient-of-empty-rows-dropped",
        "Queries without a key send no gradient even to the output projection's bias.",
        times("d_output", lambda state: state["allowed"].any(axis=-1).all(axis=1)[:, :, None]),  # (B, Lq, 1)
        fix="The output of such a row is the bias: it sends it gradient.",
    ),
)

BUGS = (*PATHS, *MASK_BIAS, *PARAMETERS, *FLOW)
