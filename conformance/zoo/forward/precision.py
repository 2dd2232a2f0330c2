"""Right steps in less precision than the definition promises."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Steps, Table, after
from conformance.zoo.forward.projections import projection
from conformance.zoo.forward.scores import is_product
from conformance.zoo.forward.softmax import has_key, highest_of
from mha_core.dtypes import round_to
from mha_core.heads import repeat_kv_heads
from mha_core.reference.forward import PROJECTED
from mha_core.reference.state import State

TF32_DROPPED_BITS = 13
"""TF32 keeps 10 of float32's 23 mantissa bits."""


def to_tf32(array: NDArray) -> NDArray:
    """Return the array rounded to TF32, held in float64.

    >>> to_tf32(np.array([1.0 + 2**-11, 1.0 + 3 * 2**-11]))  # halfway: to even
    array([1.        , 1.00195312])
    """
    bits = np.asarray(array, dtype=np.float32).view(np.uint32)
    last_kept = (bits >> np.uint32(TF32_DROPPED_BITS)) & np.uint32(1)
    half = np.uint32((1 << (TF32_DROPPED_BITS - 1)) - 1)
    nearest = (bits + half + last_kept) & np.uint32(0xFFFFFFFF << TF32_DROPPED_BITS & 0xFFFFFFFF)
    finite = np.isfinite(bits.view(np.float32))
    return np.where(finite, nearest.view(np.float32), array).astype(np.float64)


Narrow = Callable[[NDArray], NDArray]


def _bfloat16(array: NDArray) -> NDArray:
    return round_to(array, "bfloat16").astype(np.float64)


def _softmax_in(dtype: str) -> Steps:
    """Scores, exponentials, their sum and the quotient, each rounded."""

    def narrow(array: NDArray) -> NDArray:
        return round_to(array, dtype).astype(np.float64)

    def weights(state: State) -> NDArray:
        scores = np.where(state["allowed"], narrow(state["scores"]), -np.inf)
        highest = np.where(has_key(state), highest_of(scores), 0.0)
        exponentials = narrow(np.exp(narrow(scores - highest)))
        total = np.where(has_key(state), narrow(exponentials.sum(axis=-1, keepdims=True)), 1.0)
        return np.where(state["allowed"], narrow(exponentials / total), 0.0)

    return {"weights": weights}


def _scores_in(narrow: Narrow) -> Steps:
    """A dot product, with its factors rounded."""

    def unscaled(state: State, right: NDArray) -> NDArray:
        keys = repeat_kv_heads(narrow(state["keys"]), state.config.num_heads)
        return narrow(state["queries"]) @ keys.swapaxes(-1, -2)

    return after("unscaled", unscaled, is_product)


def _products_in(narrow: Narrow) -> tuple[Steps, ...]:
    """Every product, with its factors rounded."""

    def of(state: State, factor: NDArray) -> NDArray:
        return narrow(factor)

    heads: Steps = {"heads": lambda s: narrow(s["kept_weights"]) @ narrow(s.heads_of("values"))}
    return *(projection(name, x=of, weight=of) for name in PROJECTED), _scores_in(narrow), heads


def to_integers(array: NDArray, bits: int, axis: int | tuple[int, ...] | None = None) -> NDArray:
    """Return the array rounded to `bits`-bit integers times a scale: (max |array| over `axis`) / (largest integer).

    >>> to_integers(np.array([[1.0, 0.3], [127.0, 50.4]]), 8, 1)
    array([[  1.       ,   0.2992126],
           [127.       ,  50.       ]])
    """
    step = np.abs(array).max(axis=axis, keepdims=True, initial=0.0) / (2 ** (bits - 1) - 1)
    return np.where(step > 0.0, np.round(array / np.where(step > 0.0, step, 1.0)) * step, array)


def _in_format(dtype: str) -> Narrow:
    return lambda array: round_to(array, dtype).astype(np.float64)


FORMATS = {dtype: _in_format(dtype) for dtype in ("float32", "float16", "bfloat16")}


def _parameters_in(narrow: Narrow, *, biases: bool = True) -> tuple[Steps, ...]:
    """Every projection, with its weight rounded, and its bias."""

    def of(state: State, array: NDArray) -> NDArray:
        return narrow(np.asarray(array))

    return tuple(projection(name, weight=of, **({"bias": of} if biases else {})) for name in PROJECTED)


_softmax = Table("weights", "Run the softmax in at least float32, and never in less than the input's precision.")
_product = Table(
    "queries", "Multiply in the input's own precision: switch off the accelerator's reduced-precision products."
)

_parameters = Table("queries", "Keep the parameters in the precision of the inputs.")

BUGS = (
    *(
        _parameters(
            f"parameters-in-{dtype}",
            f"Weights and biases of all projections are rounded to {dtype}.",
            *_parameters_in(narrow),
        )
        for dtype, narrow in FORMATS.items()
    ),
    *(
        _parameters(
            f"{name.replace('_', '-')}-weight-in-{dtype}",
            f"The weight of {name} is rounded to {dtype}.",
            projection(name, weight=lambda s, weight, narrow=narrow: narrow(weight)),  # type: ignore[misc]
            stage={"q_proj": "queries", "k_proj": "keys", "v_proj": "values", "out_proj": "output"}[name],
            fix="Keep all parameters in the precision of the inputs.",
        )
        for name in PROJECTED
        for dtype, narrow in FORMATS.items()
    ),
    _parameters(
        "weights-in-8-bits",
        "The weights of all projections are 8-bit integers times a scale of each output channel.",
        *_parameters_in(lambda weight: to_integers(weight, 8, 1), biases=False),
    ),
    *(
        _softmax(
            f"output-in-{dtype}",
            f"The output is rounded to {dtype}.",
            after("output", lambda s, right, narrow=narrow: narrow(right)),  # type: ignore[misc]
            stage="output",
            fix="Give the output in the dtype of the inputs, as it was computed.",
        )
        for dtype, narrow in FORMATS.items()
    ),
    _softmax(
        "softmax-in-float32",
        "The softmax runs in float32 also where the inputs are float64.",
        _softmax_in("float32"),
        seen_in="huggingface/transformers#48459",
    ),
    _softmax(
        "softmax-in-bfloat16",
        "The softmax runs in bfloat16.",
        _softmax_in("bfloat16"),
        seen_in="huggingface/transformers#18057",
    ),
    _softmax("softmax-in-float16", "The softmax runs in float16.", _softmax_in("float16")),
    _softmax(
        "weights-in-bfloat16",
        "Attention weights are rounded to bfloat16 before they meet the values.",
        after("kept_weights", lambda s, right: _bfloat16(right)),
        stage="heads",
        fix="Multiply weights and values in the input's precision.",
    ),
    _product(
        "scores-in-bfloat16",
        "The product of queries and keys is formed in bfloat16.",
        _scores_in(_bfloat16),
        stage="scores",
    ),
    _product("products-in-bfloat16", "Every matrix product is formed in bfloat16.", *_products_in(_bfloat16)),
    _product(
        "products-in-tf32",
        "Every matrix product is formed in TF32.",
        *_products_in(to_tf32),
        seen_in="pytorch/pytorch#67384",
    ),
)
