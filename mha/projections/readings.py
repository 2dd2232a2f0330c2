"""What a call of a layer may mean, and how far the reference is from it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.judging.distance import worst
from mha_core import SpecError, reference
from mha_core.call.masks import allowed_keys
from mha_core.capture import ReadCall


def in_order(array: NDArray, *, batch_first: bool) -> NDArray:
    """Return the array as (B, L, width)."""
    if array.ndim not in (2, 3):
        raise SpecError(f"its projections take arrays of shape {array.shape}, not (batch, length, width)")
    if array.ndim == 2:
        return array[None]
    return array if batch_first else np.array(array.swapaxes(0, 1), order="C")


def mask_readings(
    held: tuple[NDArray, str] | None, full: tuple[int, ...], hides: bool | None = None
) -> list[dict[str, Any]]:
    """Return what a mask argument can mean: a list of keyword arguments for AttentionMask, such as `allowed` or `bias`.

    Args:
        held: (the argument, the name of its dtype); None if the argument is no array.
        full: (B, H, Lq, Lk).
        hides: whether True in the mask excludes a key; None means that either is possible.
    """
    if held is None or 0 in held[0].shape:
        return []
    array = held[0]
    batch, _, query_len, key_len = full
    found: list[dict[str, Any]] = []
    by_axes: dict[int, list[tuple[int, ...]]] = {
        1: [(1, 1, 1, key_len)],
        2: [(1, 1, query_len, key_len), (batch, 1, 1, key_len)],
        3: [(batch, 1, query_len, key_len), (1, full[1], query_len, key_len), (batch, 1, 1, key_len)],
        4: [tuple(array.shape)],
    }
    for shape in by_axes.get(array.ndim, []):
        if array.size != np.prod(shape) or any(own not in (1, size) for own, size in zip(shape, full, strict=True)):
            continue
        one = array.reshape(shape)
        if one.dtype == bool or np.isin(one, (0, 1)).all():
            means = {False: one.astype(bool), True: ~one.astype(bool)}
            found += [{"allowed": array} for meant, array in means.items() if hides in (None, meant)]
        elif one.dtype.kind == "f" and (np.isfinite(one) | np.isneginf(one)).all():
            found.append({"bias": one})
    if array.shape == (batch,) and array.dtype.kind in "iu" and ((array >= 0) & (array <= key_len)).all():
        found.append({"valid_lens": array.astype(np.int64)})
    return found


def distance(call: ReadCall) -> tuple[float, str]:
    """Return (largest error of a call's output / the reference's largest element, the worst element in words)."""
    wanted = reference.run(call.config, call.weights, call.inputs).output
    given = call.outputs["output"].astype(np.float64)
    if wanted is None or wanted.shape != given.shape:
        return np.inf, f"its output has another shape, {given.shape}"
    largest = max(float(np.abs(wanted).max(initial=0.0)), float(np.finfo(np.float64).tiny))
    found = worst(given, wanted, largest)
    at = ", ".join(map(str, found.index))
    words = f"output[{at}] is {given[found.index]:.6g}, and the reference gives {wanted[found.index]:.6g}"
    return found.ratio, words


def without_key(call: ReadCall) -> tuple[ReadCall, int]:
    """Return (the call with its NaN rows of fully masked queries replaced by the reference's, number of these rows).

    A softmax over -inf alone gives NaN in such a row; the reference gives the output projection's bias.
    """
    given = call.outputs["output"]
    rows = np.isnan(given).all(axis=-1)
    if not rows.any():
        return call, 0
    found = reference.run(call.config, call.weights, call.inputs)
    assert found.output is not None
    sizes = call.inputs.check(call.config)
    rows &= ~allowed_keys(call.inputs.mask, sizes, call.config.num_heads).any(axis=-1).all(axis=1)
    if found.output.shape != given.shape:
        return call, 0
    output = np.where(rows[..., None], found.output, given).astype(given.dtype)
    return call._replace(outputs={**call.outputs, "output": output}), int(rows.sum())


def begins_right(call: ReadCall) -> bool:
    """Return whether each batch item's first output row is right, to 1/1000 of the reference's largest element."""
    wanted = reference.run(call.config, call.weights, call.inputs).output
    given = call.outputs["output"].astype(np.float64)
    if wanted is None or wanted.shape != given.shape:
        return False
    return bool((np.abs(given - wanted)[:, :1] <= 1e-3 * np.abs(wanted).max(initial=0.0)).all())


def is_same(one: ReadCall, other: ReadCall) -> bool:
    """Return whether two interpretations of a call have the same parameters, queries and attention weights.

    For example, `causal` changes nothing if the mask itself excludes all later keys.
    """

    def numbers(call: ReadCall) -> list[NDArray]:
        weights = reference.run(call.config, call.weights, call.inputs).weights
        assert weights is not None
        return [weights, call.inputs.queries, *call.weights.values()]

    pairs = zip(numbers(one), numbers(other), strict=True)
    return one.config == other.config and all(np.array_equal(a, b) for a, b in pairs)
