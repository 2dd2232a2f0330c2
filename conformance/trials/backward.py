"""The backward pass of the layer, written by hand, with a hook at every gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.trials.layer import PROJECTION, View

GRADIENTS = ("queries", "keys", "values", "past_keys", "past_values", "bias")
"""The arrays of a call that have gradients; gradients of weights have the names of the weights."""


def backward(view: View, cotangent: NDArray) -> dict[str, NDArray]:
    """Name -> gradient, of a layer that was run forward.

    Points: d_output, d_heads, d_kept, d_weights, d_scores, row_sum, slope, d_scaled, d_q, d_k, d_v, and "to NAME" for
    each gradient that is returned.
    """
    at, seen, found = view.at, view.seen, dict[str, NDArray]()
    upstream = at("d_output", np.asarray(cotangent, np.float64))
    d_merged = _affine_back(view, "o", upstream, seen["merged"], found)
    parts = d_merged.reshape(view.B, view.Lq, view.H, view.config.value_head_dim)
    d_heads = at("d_heads", parts.transpose(0, 2, 1, 3))
    d_v = at("d_v", _summed(view, np.einsum("bhqk,bhqc->bhkc", seen["kept"], d_heads)))
    d_kept = at("d_kept", np.einsum("bhqc,bhkc->bhqk", d_heads, seen["v_heads"]))
    d_weights = at("d_weights", d_kept * seen["factor"] if "factor" in seen else d_kept)
    d_scores = at("d_scores", _softmax_back(view, d_weights))
    if view.inputs.mask.bias is not None:
        found["bias"] = at("to bias", _unbroadcast(d_scores, np.shape(view.inputs.mask.bias)))
    slope = at("slope", _slope(view)) if "softcap" in seen else np.asarray(1.0)
    d_scaled = at("d_scaled", np.where(seen["mask"], d_scores * slope, 0.0))
    d_q, d_k = _score_back(view, d_scaled, found)
    _inputs_back(view, at("d_q", d_q), at("d_k", _summed(view, d_k)), d_v, found)
    return found


def _softmax_back(view: View, d_weights: NDArray) -> NDArray:
    weights = view.seen["weights"]
    along = np.where(weights == 0.0, 0.0, weights * d_weights)
    rows = view.at("row_sum", along.sum(axis=-1, keepdims=True))
    return np.where(view.seen["mask"], along - weights * rows, 0.0)


def _slope(view: View) -> NDArray:
    """(B, H, Lq, Lk): of the softcap at the scaled scores."""
    return 1.0 / np.cosh(np.clip(view.seen["scaled"] / view.seen["softcap"], -300.0, 300.0)) ** 2


def _score_back(view: View, d_scaled: NDArray, found: dict[str, NDArray]) -> tuple[NDArray, NDArray]:
    """Gradients of the queries, and of the keys as each query head reads them; those of the score's parameters."""
    seen = view.seen
    q, k = seen["q"], seen["k_heads"]
    if view.config.score != "additive":
        d_raw = d_scaled * seen["scale"] if "scale" in seen else d_scaled
        return np.einsum("bhqk,bhkc->bhqc", d_raw, k), np.einsum("bhqk,bhqc->bhkc", d_raw, q)
    found["score.vector"] = view.at("to score.vector", np.einsum("bhqk,bhqks->s", d_scaled, seen["hidden"]))
    inside = view.at("d_inside", d_scaled[..., None] * seen["vector"] * (1.0 - seen["hidden"] ** 2))
    of_query, of_key = inside.sum(axis=3), inside.sum(axis=2)
    for name, part, x in (("query", of_query, q), ("key", of_key, k)):
        found[f"score.{name}.weight"] = view.at(f"to score.{name}.weight", np.einsum("bhls,bhlc->sc", part, x))
    return np.einsum("bhqs,sc->bhqc", of_query, seen["a_w"]), np.einsum("bhks,sc->bhkc", of_key, seen["c_w"])


def _inputs_back(view: View, d_q: NDArray, d_k: NDArray, d_v: NDArray, found: dict[str, NDArray]) -> None:
    for name, whole, d_heads, parts in (
        ("q", "queries", d_q, view.H),
        ("k", "keys", d_k, view.G),
        ("v", "values", d_v, view.G),
    ):
        past = 0 if name == "q" else view.Lp
        if past:
            before = np.where(view.gone[:, None, :past, None], 0.0, d_heads[:, :, :past])
            found[f"past_{whole}"] = view.at(f"to past_{whole}", before)
        new = d_heads[:, :, past:].transpose(0, 2, 1, 3)
        rows = new.reshape(view.B, new.shape[1], parts * new.shape[3])
        gradient = _affine_back(view, name, rows, view.seen[f"{name}_in"], found)
        if name != "q":
            gradient = np.where(view.gone[:, past:, None], 0.0, gradient)
        gradient = view.at(f"to {whole}", gradient)
        if getattr(view.inputs, whole).ndim == 4:
            width = gradient.shape[2] // parts
            gradient = gradient.reshape(view.B, gradient.shape[1], parts, width).transpose(0, 2, 1, 3)
        found[whole] = gradient


def _affine_back(view: View, name: str, gradient: NDArray, x: NDArray, found: dict[str, NDArray]) -> NDArray:
    """Through x W^T + b to x; adds the gradients of W and b."""
    letter = PROJECTION[name]
    if f"{letter}.weight" not in view.weights:
        return gradient
    found[f"{letter}.weight"] = view.at(f"to {letter}.weight", np.einsum("blo,bli->oi", gradient, x))
    if f"{letter}.bias" in view.weights:
        found[f"{letter}.bias"] = view.at(f"to {letter}.bias", gradient.sum(axis=(0, 1)))
    return np.einsum("blo,oi->bli", gradient, view.seen[f"{name}_w"])


def _summed(view: View, per_head: NDArray) -> NDArray:
    """(B, H, L, w) -> (B, G, L, w): the query heads of a group added up."""
    groups = (view.B, view.G, view.H // view.G, *per_head.shape[2:])
    return per_head.reshape(groups).sum(axis=2)


def _unbroadcast(gradient: NDArray, shape: tuple[int, ...]) -> NDArray:
    """The gradient of an array of this shape that was broadcast to (B, H, Lq, Lk)."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    return gradient.sum(axis=tuple(axis for axis, size in enumerate(shape) if size == 1), keepdims=True)
