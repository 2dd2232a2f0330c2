"""Right steps in less precision than the definition promises."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug
from mha_core.dtypes import round_to
from mha_core.heads import repeat_kv_heads
from mha_core.reference import forward
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State, Step

SOFTMAX_FIX = "Run the softmax in at least float32, and never in less than the input's precision."
PRODUCT_FIX = "Multiply in the input's own precision: switch off the accelerator's reduced-precision products."

TF32_DROPPED_BITS = 13
"""TF32 keeps 10 of float32's 23 mantissa bits."""


def to_tf32(array: NDArray) -> NDArray:
    """Rounded to TF32, held in float64.

    >>> to_tf32(np.array([1.0 + 2**-11, 1.0 + 3 * 2**-11]))  # halfway: to even
    array([1.        , 1.00195312])
    """
    bits = np.asarray(array, dtype=np.float32).view(np.uint32)
    last_kept = (bits >> np.uint32(TF32_DROPPED_BITS)) & np.uint32(1)
    half = np.uint32((1 << (TF32_DROPPED_BITS - 1)) - 1)
    nearest = (bits + half + last_kept) & np.uint32(0xFFFFFFFF << TF32_DROPPED_BITS & 0xFFFFFFFF)
    finite = np.isfinite(bits.view(np.float32))
    return np.where(finite, nearest.view(np.float32), array).astype(np.float64)


def _narrow(array: NDArray, form: str) -> NDArray:
    return to_tf32(array) if form == "tf32" else round_to(array, form).astype(np.float64)


def _softmax_in(dtype: str) -> Step:
    """Scores, exponentials, their sum and the quotient, each rounded."""

    def weights(state: State) -> NDArray:
        has_key = state["allowed"].any(axis=-1, keepdims=True)
        scores = np.where(state["allowed"], _narrow(state["scores"], dtype), -np.inf)
        highest = np.where(has_key, scores.max(axis=-1, keepdims=True, initial=-np.inf), 0.0)
        exponentials = _narrow(np.exp(_narrow(scores - highest, dtype)), dtype)
        total = np.where(has_key, _narrow(exponentials.sum(axis=-1, keepdims=True), dtype), 1.0)
        return np.where(state["allowed"], _narrow(exponentials / total, dtype), 0.0)

    return weights


def _kept_weights_in(dtype: str) -> Step:
    return lambda state: _narrow(forward.kept_weights(state), dtype)


def _projected_in(projection: str, form: str) -> Mapping[str, Step]:
    """The projection with the factors of the product rounded to `form`."""
    given, made = PROJECTED[projection]

    def step(state: State) -> NDArray:
        product = _narrow(state[given], form) @ _narrow(state.parameters[f"{projection}.weight"], form).T
        return product + state.parameters.get(f"{projection}.bias", 0.0)

    return {made: step}


def _unscaled_in(form: str) -> Step:
    """A dot product, with its factors rounded."""

    def unscaled(state: State) -> NDArray:
        if state.config.score == "additive":
            return forward.unscaled(state)
        keys = repeat_kv_heads(_narrow(state["keys"], form), state.config.num_heads)
        return _narrow(state["queries"], form) @ keys.swapaxes(-1, -2)

    return unscaled


def _heads_in(form: str) -> Step:
    def heads(state: State) -> NDArray:
        return _narrow(state["kept_weights"], form) @ _narrow(state.heads_of("values"), form)

    return heads


def _products_in(form: str) -> Mapping[str, Step]:
    projections = {made: step for name in PROJECTED for made, step in _projected_in(name, form).items()}
    return {**projections, "unscaled": _unscaled_in(form), "heads": _heads_in(form)}


BUGS = (
    Bug(
        "softmax-in-float32",
        "The softmax runs in float32 also where the inputs are float64.",
        "weights",
        SOFTMAX_FIX,
        forward={"weights": _softmax_in("float32")},
        seen_in="huggingface/transformers#48459",
    ),
    Bug(
        "softmax-in-bfloat16",
        "The softmax runs in bfloat16.",
        "weights",
        SOFTMAX_FIX,
        forward={"weights": _softmax_in("bfloat16")},
        seen_in="huggingface/transformers#18057",
    ),
    Bug(
        "softmax-in-float16",
        "The softmax runs in float16.",
        "weights",
        SOFTMAX_FIX,
        forward={"weights": _softmax_in("float16")},
    ),
    Bug(
        "weights-in-bfloat16",
        "Weights are rounded to bfloat16 before they meet the values.",
        "heads",
        "Multiply weights and values in the input's precision.",
        forward={"kept_weights": _kept_weights_in("bfloat16")},
    ),
    Bug(
        "scores-in-bfloat16",
        "The product of queries and keys is formed in bfloat16.",
        "scores",
        PRODUCT_FIX,
        forward={"unscaled": _unscaled_in("bfloat16")},
    ),
    Bug(
        "products-in-bfloat16",
        "Every matrix product is formed in bfloat16.",
        "queries",
        PRODUCT_FIX,
        forward=_products_in("bfloat16"),
    ),
    Bug(
        "products-in-tf32",
        "Every matrix product is formed in TF32.",
        "queries",
        PRODUCT_FIX,
        forward=_products_in("tf32"),
        seen_in="pytorch/pytorch#67384",
    ),
)
