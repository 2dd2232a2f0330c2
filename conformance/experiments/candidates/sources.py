"""What else may reach the values or the output: another input, the input itself once more, the position."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.candidates.steps import function_on, setting_of
from conformance.experiments.changes.expressions import Expression
from conformance.zoo.bug import Bug, DoesNotApply
from mha_core.reference.state import State

Read = Callable[[State, NDArray], NDArray]
"""(State, the array of a step (B, L, width)) -> (B or 1, L or 1, width or 1), to be added to it or to replace it."""


def sinusoids(length: int, width: int, *, halves: bool = False) -> NDArray:
    """(length, width): sin and cos of position / 10000 ** (2 k / width), in turn or in halves.

    >>> sinusoids(2, 2).round(2)
    array([[0.  , 1.  ],
           [0.84, 0.54]])
    """
    pairs = (width + 1) // 2
    angles = np.arange(length)[:, None] / 10000.0 ** (2.0 * np.arange(pairs) / width)
    parts = np.sin(angles), np.cos(angles)
    return (np.concatenate(parts, axis=1) if halves else np.stack(parts, axis=-1).reshape(length, -1))[:, :width]


INPUTS: dict[str, tuple[str, Read]] = {
    "the-query-input": ("the query input", lambda s, x: s.inputs.queries),
    "the-key-input": ("the key input", lambda s, x: s.inputs.keys),
    "the-value-input": ("the value input", lambda s, x: s.inputs.values),
    "the-mean-value-input": (
        "the mean of the value input over the keys",
        lambda s, x: s.inputs.values.mean(axis=1, keepdims=True),
    ),
}
PROJECTED_BEFORE: dict[str, tuple[str, Read]] = {
    "projected-queries": ("the projected queries", lambda s, x: s["q_proj"]),
    "projected-keys": ("the projected keys", lambda s, x: s["k_proj"]),
}
PROJECTED: dict[str, tuple[str, Read]] = {
    **PROJECTED_BEFORE,
    "projected-values": ("the projected values", lambda s, x: s["v_proj"]),
    "the-mean-projected-value": (
        "the mean of the projected values over the keys",
        lambda s, x: s["v_proj"].mean(axis=1, keepdims=True),
    ),
}
MERGED: dict[str, tuple[str, Read]] = {"the-merged-heads": ("the merged heads", lambda s, x: s["merged"])}
HEADS: dict[str, tuple[str, Read]] = {
    "the-mean-value": (
        "the mean of the head's values",
        lambda s, x: s.heads_of("values").mean(axis=2, keepdims=True),
    ),
    "the-sum-of-values": ("the sum of the head's values", lambda s, x: s.heads_of("values").sum(axis=2, keepdims=True)),
    "the-first-value": ("the head's value at the first key", lambda s, x: s.heads_of("values")[:, :, :1]),
    "the-last-value": ("the head's value at the last key", lambda s, x: s.heads_of("values")[:, :, -1:]),
    "the-value-at-its-place": ("the head's value at the query's place", lambda s, x: s.heads_of("values")),
    "the-query": ("the head's query", lambda s, x: s["queries"]),
    "the-highest-value": (
        "the highest of the head's values",
        lambda s, x: s.heads_of("values").max(axis=2, keepdims=True),
    ),
}
POSITIONS: dict[str, tuple[str, Read]] = {
    "the-position": ("the position, counted from 0,", lambda s, x: np.arange(x.shape[1])[None, :, None] * 1.0),
    "the-position-from-1": (
        "the position, counted from 1,",
        lambda s, x: np.arange(1.0, x.shape[1] + 1)[None, :, None],
    ),
    "sinusoids": ("sinusoids of the position (sine and cosine in turn)", lambda s, x: sinusoids(*x.shape[1:])[None]),
    "sinusoids-in-halves": (
        "sinusoids of the position (sines before cosines)",
        lambda s, x: sinusoids(*x.shape[1:], halves=True)[None],
    ),
    "one": ("1", lambda s, x: np.ones((1, 1, 1))),
}

SOURCES: dict[str, dict[str, tuple[str, Read]]] = {
    "value_inputs": {name: source for name, source in {**INPUTS, **POSITIONS}.items() if name != "the-value-input"},
    "v_proj": {**INPUTS, **PROJECTED_BEFORE, **POSITIONS},
    "heads": HEADS,
    "merged": {**INPUTS, **PROJECTED, **POSITIONS},
    "output": {**INPUTS, **PROJECTED, **MERGED, **POSITIONS},
}
"""Step -> name -> (words, array): what may stand in its place or be added to it."""


def fitted(array: NDArray, like: NDArray) -> NDArray:
    """A source in the shape of a step's result; raises DoesNotApply where it does not fit."""
    try:
        return np.broadcast_to(array, like.shape)
    except ValueError as error:
        raise DoesNotApply(f"an array {array.shape} can't stand for, or be added to, one of {like.shape}") from error


def sources_otherwise() -> Iterator[Bug]:
    """Another source in the place of a step's result, or added to it."""
    for step, sources in SOURCES.items():
        for name, (words, read) in sources.items():
            yield added(step, name)
            if name not in POSITIONS:
                yield function_on(step, f"is-{name}", _replaced_by(read), f"{words} in its place")
    yield function_on(
        "output",
        "is-merged-cut",
        lambda s, x: _cut(s["merged"], x),
        "the merged heads, cut or filled with 0, in its place: out_proj is not applied",
    )


def added(step: str, name: str, factor: Expression | None = None) -> Bug:
    """A source, times a factor (default: 1), added to a step's result."""
    words, read = SOURCES[step][name]

    def change(state: State, array: NDArray) -> NDArray:
        source = fitted(read(state, array), array)
        return array + source if factor is None else array + factor.at(setting_of(state)) * source

    slug, times = ("", "") if factor is None else (factor.words.replace(" ", "") + "-", f"{factor.words} times ")
    return function_on(step, f"plus-{slug}{name}", change, f"{times}{words} is added")


def _replaced_by(read: Read) -> Read:
    return lambda state, array: fitted(read(state, array), array)


def _cut(array: NDArray, like: NDArray) -> NDArray:
    found = np.zeros_like(like)
    width = min(array.shape[2], like.shape[2])
    found[..., :width] = array[..., :width]
    return found
