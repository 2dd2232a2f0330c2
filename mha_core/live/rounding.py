"""Estimate how far rounding alone can move a layer's results, for short sequences, with the reference.

The conformance suite has true bounds; this estimate needs nothing but the reference, and is enough to tell a different
computation from different rounding. Every rounding counts as independent and as large as it can be: its square is
carried on through the steps to first order, as a variance is, and `SIGMAS` roots of the sum are allowed. Roundings are
at most half as large on average, so they would have to be more than ten deviations off together to exceed this; where
scores are so far off that an exponential is not linear any more, everything between the values is allowed.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mha_core.call.masks import additive_bias
from mha_core.heads import merge_heads, repeat_kv_heads, split_heads
from mha_core.parts.query_key_norm import Normed, mean_axes
from mha_core.parts.rotary import pairs
from mha_core.reference.forward import normed
from mha_core.reference.state import State

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of rounding to a dtype."""

SMALLEST = {"float64": 2.0**-126, "float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
"""Numbers below this may become 0 or are rounded to multiples of it; weights at least as in float32."""

SIGMAS = 8.0
"""How many deviations are allowed, as in the suite's own probabilistic bounds."""

SOFTMAX_UNIT = UNIT["float32"]
"""Frameworks have softmax and scale of a float64 layer in float32, which is known of them and no other computation."""

EXPONENTIAL = 4.0
"""The error of an exponential in units in the last place."""

SHORT = 64
"""Numbers that every framework adds up in float32 at least. Of more float16 numbers, XLA has the sum in float16."""

LINEAR = 0.5
"""Up to this error of a score, the relative error of its exponential is nearly the same number."""


def rounding_error(
    state: State, dtype: str, squared_parameters: Mapping[str, NDArray] | None = None
) -> dict[str, NDArray]:
    """Return "weights", "heads", "output" -> allowed error of each element, for a layer with scaled dot products.

    Args:
        state: the State of a reference run, with weights and inputs rounded to `dtype`.
        dtype: the dtype in which the layer computes, by name.
        squared_parameters: the squares of `state.parameters`, if the caller has them.

    >>> from mha_core import AttentionConfig, AttentionInputs, init_weights, reference
    >>> config, x = AttentionConfig(6, 2), np.linspace(-1.0, 1.0, 24).reshape(1, 4, 6)
    >>> state = reference.run_state(config, init_weights(config, seed=0), AttentionInputs(x, x, x))
    >>> {name: float(error.max()) < 1e-4 for name, error in rounding_error(state, "float32").items()}
    {'weights': True, 'heads': True, 'output': True}
    """
    squared = squared_parameters or {name: array**2 for name, array in state.parameters.items()}
    config, unit, tiny = state.config, UNIT[dtype], SMALLEST[dtype] ** 2
    allowed, softmax_unit = state["allowed"], max(UNIT[dtype], SOFTMAX_UNIT)
    queries, keys = state["queries"], state.heads_of("keys")
    q_error, k_error, v_error = (
        split_heads(_projected(squared, name, x**2, dtype), heads)
        for name, x, heads in (
            ("q_proj", state.inputs.queries, config.num_heads),
            ("k_proj", state["key_inputs"], config.num_kv_heads),
            ("v_proj", state["value_inputs"], config.num_kv_heads),
        )
    )
    q_error, k_error = (_through_parts(state, side, x, unit) for side, x in (("queries", q_error), ("keys", k_error)))
    k_error, v_error = (repeat_kv_heads(error, config.num_heads) for error in (k_error, v_error))
    q_error, k_error, v_error = (
        error + unit**2 * x**2
        for error, x in ((q_error, queries), (k_error, keys), (v_error, state.heads_of("values")))
    )
    q2, k2 = queries**2, keys.swapaxes(-1, -2) ** 2
    products = (4.0 * unit**2 + _sum_of(config.head_dim, dtype)) * (q2 @ k2)
    products = products + _carried(q_error, keys.swapaxes(-1, -2))
    products = products + _carried(k_error, queries.swapaxes(-1, -2)).swapaxes(-1, -2)
    s_error = config.softmax_scale**2 * products + 4.0 * softmax_unit**2 * state["scores"] ** 2 + tiny
    if state.inputs.mask.bias is not None:
        s_error = s_error + unit**2 * additive_bias(state.inputs.mask) ** 2
    s_error = np.where(allowed, s_error + (EXPONENTIAL * softmax_unit) ** 2, 0.0)

    weights, heads, values = state["weights"], state["heads"], state.heads_of("values")
    far = SIGMAS * np.sqrt(s_error.max(axis=-1, keepdims=True, initial=0.0)) > LINEAR  # (B, H, Lq, 1)
    together = (weights**2 * s_error).sum(axis=-1, keepdims=True)
    # Sums of exponentials and of weighted values: their partial sums grow, unlike those of numbers of either sign.
    growing = max(_sum_of(weights.shape[-1], dtype), weights.shape[-1] * SOFTMAX_UNIT**2)
    w_error = weights**2 * (s_error + together + 4.0 * softmax_unit**2 + growing) + tiny
    shares = weights**2 * s_error
    # The sum of shares * (values - heads)**2, without an array that has all axes. Where its parts cancel, the last term
    # of h_error is larger by far than what that leaves.
    moved = shares @ values**2 - 2.0 * heads * (shares @ values) + heads**2 * shares.sum(axis=-1, keepdims=True)
    moved = np.maximum(moved, 0.0)
    if far.any():
        spread = (values[:, :, None] - heads[:, :, :, None]) ** 2 * allowed[..., None]  # (B, H, Lq, Lk, dv)
        moved = np.where(far, spread.max(axis=3, initial=0.0) / SIGMAS**2, moved)
    h_error = moved + weights**2 @ v_error + tiny + (unit**2 + 2.0 * growing) * heads**2
    h_error = h_error + (_sum_of(weights.shape[-1], dtype) + 4.0 * softmax_unit**2) * (weights**2 @ values**2)

    rows = merge_heads(h_error)
    output = (
        _projected(squared, "out_proj", merge_heads(heads) ** 2, dtype) + 2.0 * unit**2 * state["output"] ** 2 + tiny
    )
    output = output + _carried(rows, state.parameters["out_proj.weight"].T, squared["out_proj.weight"].T)
    errors = {"weights": np.where(far, 1.0 / SIGMAS**2, w_error), "heads": h_error, "output": output}
    return {name: SIGMAS * np.sqrt(error) for name, error in errors.items()}


def _through_parts(state: State, side: str, error: NDArray, unit: float) -> NDArray:
    """The squared error (B, heads, L, d) of "queries" or "keys" behind query-key norm and rotary positions."""
    name = {"queries": "q_norm", "keys": "k_norm"}[side]
    settings, rotary = state.config.query_key_norm, state.config.rotary
    for order in ("before", "after"):
        given = state[f"projected_{side}" if order == "before" else f"rotated_{side}"]
        if settings is not None and settings.order == order:
            made = normed(state, name, given)
            assert made is not None
            error = _through_norm(made, mean_axes(settings), given, error, unit)
        if rotary is not None and order == "before":
            table, x = getattr(state["rotary_tables"], side), state[f"normed_{side}"]
            cos, sin = table.cos[:, None] ** 2, table.sin[:, None] ** 2
            (a, b), (first, second) = pairs(error, rotary), pairs(x**2, rotary)
            own = 4.0 * unit**2 * (first + second) * (cos + sin)
            turned = np.array(error)
            a_out, b_out = pairs(turned, rotary)
            a_out[...], b_out[...] = a * cos + b * sin + own, b * cos + a * sin + own
            error = turned
    return error


def _through_norm(made: Normed, axes: tuple[int, ...], given: NDArray, error: NDArray, unit: float) -> NDArray:
    """The squared error (B, heads, L, .) behind a norm of `given`, which has the squared error `error`."""
    # Each element is scaled; all move together, by what moves their mean square, and their mean.
    together = (made.unit**2 + 1.0) * error.mean(axis=axes, keepdims=True)
    error = (error + unit**2 * given**2 + together) * made.factor**2 + 16.0 * unit**2 * made.unit**2
    error = error if made.scale is None else error * made.scale**2
    return error + 4.0 * unit**2 * made.result**2


def _carried(squares: NDArray, factors: NDArray, squared_factors: NDArray | None = None) -> NDArray:
    """Squared errors of a product (..., m, k), from those of its left factor (..., m, n) and factors (..., n, k).

    Independent errors add up by their squares; those that one wrong number went into, as in a matrix with equal
    rows, by the signs of their factors.
    """
    squared_factors = factors**2 if squared_factors is None else squared_factors
    return np.maximum(squares @ squared_factors, (np.sqrt(squares) @ factors) ** 2)


def _sum_of(n: int, dtype: str) -> float:
    """The square of the relative error of a sum of n products (see SHORT)."""
    wide = min(UNIT[dtype], UNIT["float32"])
    return n * (UNIT[dtype] if dtype == "float16" and n > SHORT else wide) ** 2


def _projected(squared: Mapping[str, NDArray], projection: str, squares: NDArray, dtype: str) -> NDArray:
    """The squared error of x W^T + b from its sum and the bias added, from the squares of x (B, L, in)."""
    matrix = squared[f"{projection}.weight"].T
    error = _sum_of(len(matrix), dtype) * (squares @ matrix) + SMALLEST[dtype] ** 2
    bias = squared.get(f"{projection}.bias")
    return error if bias is None else error + UNIT[dtype] ** 2 * bias
