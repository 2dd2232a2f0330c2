"""Parameters of the value and the output projection read otherwise: another one, another layout, parts of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.candidates.steps import PARAMETERS, change_of_parameter, parameter_on, same_shape
from conformance.experiments.changes.axes import axis_changes
from conformance.experiments.changes.sample import Change, Setting
from conformance.experiments.designs import selector
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.state import State

Read = Callable[[State, NDArray], NDArray]

WEIGHTS = ("v_proj.weight", "out_proj.weight")
BIASES = ("v_proj.bias", "out_proj.bias")


def parameters_otherwise() -> Iterator[Bug]:
    """Every candidate for a weight or a bias of the two projections."""
    for name in WEIGHTS:
        yield from _weight(name)
    for name in BIASES:
        yield from _bias(name)
    for name in PARAMETERS:
        for change in (*axis_changes(PARAMETERS[name][1].axes), *by_heads(name)):
            yield change_of_parameter(name, change)
        yield from _of_another(name)


def by_heads(name: str) -> Iterator[Change]:
    """Each other order of the heads of a parameter, and of the channels within them."""
    axis = 0 if name.startswith("v_proj") else 1
    if name == "out_proj.bias":
        return
    for change in axis_changes(("head", "head channel")):
        yield Change(
            change.slug,
            change.words.replace("its ", "its rows' " if axis == 0 else "its columns' "),
            _within_heads(change, axis),
        )


def _within_heads(change: Change, axis: int) -> Callable[[NDArray, tuple[str, ...], Setting], NDArray]:
    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        config = setting.config
        heads = config.num_heads if axis else config.num_kv_heads
        first = np.moveaxis(array, axis, -1)  # (..., heads * width)
        split = first.reshape(*first.shape[:-1], heads, config.value_head_dim)
        changed = change.apply(split, ("head", "head channel"), setting)
        return np.moveaxis(changed.reshape(first.shape), -1, axis)

    return apply


def square(weight: NDArray) -> NDArray:
    """The weight; raises DoesNotApply unless it is square."""
    if weight.shape[0] != weight.shape[1]:
        raise DoesNotApply(f"a weight of shape {weight.shape} is not square")
    return weight


def _head_blocks_transposed(state: State, weight: NDArray) -> NDArray:
    heads = state.config.num_heads
    blocks = square(weight).reshape(heads, -1, weight.shape[1])
    if blocks.shape[1] * heads != weight.shape[1]:
        raise DoesNotApply("the heads' rows do not make a square")
    return blocks.reshape(heads, blocks.shape[1], heads, -1).swapaxes(1, 3).reshape(weight.shape)


WEIGHT_READINGS: dict[str, tuple[str, Read]] = {
    "transposed": ("transposed", lambda s, w: square(w).T),
    "reshaped": ("reshaped to (in, out) where a transposition is due", lambda s, w: w.reshape(w.shape[::-1]).T),
    "blocks-transposed": ("with each block of two heads transposed in itself", _head_blocks_transposed),
    "identity": ("as if it were the identity: it is not applied", lambda s, w: np.eye(len(square(w)))),
    "cut-identity": ("as if it were the identity: channels are cut or filled with 0", lambda s, w: selector(*w.shape)),
    "plus-identity": ("with the identity added: its input is added to its result", lambda s, w: w + selector(*w.shape)),
    "minus-identity": ("with the identity subtracted", lambda s, w: w - selector(*w.shape)),
    "twice": ("twice, one after the other", lambda s, w: square(w) @ w),
    "lower-triangle": ("with what is above its diagonal 0", lambda s, w: np.tril(w)),
    "upper-triangle": ("with what is below its diagonal 0", lambda s, w: np.triu(w)),
    "diagonal": ("with all but its diagonal 0", lambda s, w: w * selector(*w.shape)),
    "without-diagonal": ("with its diagonal 0", lambda s, w: w * (1.0 - selector(*w.shape))),
    "symmetric": ("averaged with its transpose", lambda s, w: 0.5 * (square(w) + w.T)),
    "plus-transposed": ("with its transpose added", lambda s, w: square(w) + w.T),
    "absolute": ("without its signs", lambda s, w: np.abs(w)),
    "signs": ("as its signs alone", lambda s, w: np.sign(w)),
    "squared": ("squared", lambda s, w: w * w),
    "rows-normalised": (
        "with each row divided by its length",
        lambda s, w: _divided(w, np.linalg.norm(w, axis=1, keepdims=True)),
    ),
    "columns-normalised": (
        "with each column divided by its length",
        lambda s, w: _divided(w, np.linalg.norm(w, axis=0, keepdims=True)),
    ),
    "normalised": ("divided by its Frobenius norm", lambda s, w: _divided(w, float(np.linalg.norm(w)))),
    "rows-centred": ("with each row's mean subtracted", lambda s, w: w - w.mean(axis=1, keepdims=True)),
    "columns-centred": ("with each column's mean subtracted", lambda s, w: w - w.mean(axis=0, keepdims=True)),
    "column-major": ("read from memory column by column", lambda s, w: w.reshape(-1, order="F").reshape(w.shape)),
    "first-rows-of-each-head": (
        "with the first head's rows for every head",
        lambda s, w: _first_head(w, s.config.num_kv_heads),
    ),
    "first-columns-of-each-head": (
        "with the first head's columns for every head",
        lambda s, w: _first_head(w.T, s.config.num_heads).T,
    ),
}
"""Name -> (what is to be read after "is used", the reading)."""

BIAS_READINGS: dict[str, tuple[str, Read]] = {
    "missing": ("nowhere: it is not added", lambda s, b: 0.0 * b),
    "subtracted": ("with the other sign: it is subtracted", lambda s, b: -b),
    "twice": ("twice", lambda s, b: 2.0 * b),
    "per-head": ("once for each head: num_heads times", lambda s, b: b * s.config.num_heads),
    "per-kv-head": ("once for each key/value head", lambda s, b: b * s.config.num_kv_heads),
    "per-key": ("once for each key", lambda s, b: b * s.sizes.key_len),
    "per-query": ("once for each query", lambda s, b: b * s.sizes.query_len),
    "shared-by-keys": ("divided by the number of keys", lambda s, b: b / max(1, s.sizes.key_len)),
    "shared-by-heads": ("divided by the number of heads", lambda s, b: b / s.config.num_heads),
    "of-first-head": ("with the first head's part for every head", lambda s, b: _first_head(b, s.config.num_kv_heads)),
    "of-last-head": (
        "with the last head's part for every head",
        lambda s, b: _first_head(b[::-1], s.config.num_kv_heads)[::-1],
    ),
    "mean": ("as its mean everywhere", lambda s, b: np.full_like(b, b.mean())),
    "sum": ("as its sum everywhere", lambda s, b: np.full_like(b, b.sum())),
    "first": ("as its first number everywhere", lambda s, b: np.full_like(b, b[0])),
    "interleaved": (
        "in the order (d, H) of channels instead of (H, d)",
        lambda s, b: b.reshape(s.config.num_kv_heads, -1).T.ravel(),
    ),
    "interleaved-back": (
        "as if it stood in the order (d, H) of channels",
        lambda s, b: b.reshape(-1, s.config.num_kv_heads).T.ravel(),
    ),
    "absolute": ("without its signs", lambda s, b: np.abs(b)),
    "squared": ("squared", lambda s, b: b * b),
    "only-first-head": ("for the first head alone", lambda s, b: _only(b, s.config.num_kv_heads, 0)),
    "only-last-head": ("for the last head alone", lambda s, b: _only(b, s.config.num_kv_heads, -1)),
    "not-first-head": ("for all heads but the first", lambda s, b: b - _only(b, s.config.num_kv_heads, 0)),
    "not-last-head": ("for all heads but the last", lambda s, b: b - _only(b, s.config.num_kv_heads, -1)),
}
"""Name -> (what is to be read after "is used", the reading)."""


def _weight(name: str) -> Iterator[Bug]:
    for slug, (words, read) in WEIGHT_READINGS.items():
        yield parameter_on(name, slug, _checked(read), words)


def _bias(name: str) -> Iterator[Bug]:
    for slug, (words, read) in BIAS_READINGS.items():
        yield parameter_on(name, slug, _checked(read), words)


def _checked(read: Read) -> Read:
    def change(state: State, parameter: NDArray) -> NDArray:
        try:
            return same_shape(parameter, np.asarray(read(state, parameter)))
        except ValueError as error:  # a reshape that these sizes do not allow
            raise DoesNotApply(str(error)) from error

    return change


def _of_another(name: str) -> Iterator[Bug]:
    """Another projection's parameter in place of it, or added to it."""
    kind = name.split(".")[1]
    for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
        other = f"{projection}.{kind}"
        if other == name:
            continue
        parts: list[tuple[str, str, Read]] = [
            (f"of-{projection}", f"in name only: that of {projection} is in its place", _replaced_by(other)),
            (f"plus-{projection}", f"with that of {projection} added", _plus(other)),
        ]
        if kind == "weight":
            parts.append(
                (
                    f"of-{projection}-transposed",
                    f"in name only: that of {projection}, transposed, is in its place",
                    _replaced_by(other, transposed=True),
                )
            )
        for slug, words, read in parts:
            yield parameter_on(name, slug, read, words)


def _replaced_by(other: str, *, transposed: bool = False) -> Read:
    def read(state: State, parameter: NDArray) -> NDArray:
        found = state.parameters.get(other)
        if found is None:
            return parameter
        return same_shape(parameter, found.T if transposed else found)

    return read


def _plus(other: str) -> Read:
    def read(state: State, parameter: NDArray) -> NDArray:
        found = state.parameters.get(other)
        return parameter if found is None else parameter + same_shape(parameter, found)

    return read


def _divided(array: NDArray, by: NDArray | float) -> NDArray:
    with any_numbers:
        quotient: NDArray = np.where(np.asarray(by) == 0.0, 0.0, array / np.where(np.asarray(by) == 0.0, 1.0, by))
    return quotient


def _first_head(array: NDArray, heads: int) -> NDArray:
    """The rows of the first of some heads, repeated for all."""
    if len(array) % heads:
        raise DoesNotApply(f"{len(array)} rows are no {heads} heads")
    return np.concatenate([array[: len(array) // heads]] * heads)


def _only(bias: NDArray, heads: int, head: int) -> NDArray:
    if len(bias) % heads:
        raise DoesNotApply(f"{len(bias)} numbers are no {heads} heads")
    parts = bias.reshape(heads, -1)
    found = np.zeros_like(parts)
    found[head] = parts[head]
    return found.ravel()
