"""Two measures of how much a head matters, each a function of a Subject that gives (layers, heads).

The more, the more important; NaN where a layer has no such head. `mha.heads.curve` says what their orders leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mha.heads.gates import embed, squared_gradients
from mha.heads.subject import Subject
from mha_core import SpecError
from mha_core.reference import pipeline as reference

DIRECTIONS = 2
"""Random directions for each text in which the gradient is taken."""

SEED = 0

Scores = NDArray[np.float64]
"""(layers, heads)."""


def leave_one_out(subject: Subject) -> Scores:
    """1 - cosine of what comes out with and without the head: the mean over texts, or of a recording over tokens."""
    if subject.live is None:
        return _of_calls(subject, _left_out)
    found = np.where(subject.there, 0.0, np.nan)
    whole = embed(subject.live, subject.batches)
    for index, head in np.argwhere(subject.there):
        removed = np.zeros(subject.shape, np.bool_)
        removed[index, head] = True
        # Half the squared distance of two vectors of length 1 is 1 - cosine, and exactly 0 where they are equal.
        found[index, head] = ((embed(subject.live, subject.batches, removed) - whole) ** 2).sum(axis=-1).mean() / 2
    return found


def gradient(subject: Subject, directions: int = DIRECTIONS) -> Scores:
    """Half the squared length of the derivative of what comes out, scaled to length 1, by the head's gate.

    To second order that is what leaving the head out costs. In a live model the length comes from random directions of
    the embedding, so a backward pass or two are enough for all heads. It needs no labels. (The gradient of a loss that
    compares with the model itself would be 0 for every head: that loss is at its minimum.)
    """
    if subject.live is None:
        return _of_calls(subject, _slopes)
    found = np.where(subject.there, 0.0, np.nan)
    rng, texts = np.random.default_rng(SEED), 0
    width = int(subject.live.encoder.model.config.hidden_size)
    for batch in subject.batches:
        size = len(batch["input_ids"])
        found += squared_gradients(subject.live, batch, rng.standard_normal((directions, size, width)))
        texts += size
    return found / (2 * directions * texts)


@dataclass(frozen=True)
class Measure:
    """One measure: the function Subject -> (layers, heads), and what it is, in a line."""

    function: Callable[[Subject], Scores]
    about: str


DEFAULT = "gradient"

MEASURES = {
    DEFAULT: Measure(gradient, "gradient of the embedding by the head's gate, in random directions"),
    "leave-one-out": Measure(leave_one_out, "1 - cosine of the embedding with and without the head"),
}
"""Name -> measure."""


def measure_of(name: str) -> Measure:
    """The measure of this name. SpecError if there is none.

    >>> measure_of("sharpness")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: measure 'sharpness' is not known (known: gradient, leave-one-out)
    """
    if name not in MEASURES:
        raise SpecError(f"measure {name!r} is not known (known: {', '.join(MEASURES)})")
    return MEASURES[name]


def order_of(scores: Scores) -> list[tuple[int, int]]:
    """(layer, head) of every head, the least important first; of equal ones, in their order.

    >>> order_of(np.array([[0.5, 0.1], [0.2, np.nan]]))
    [(0, 1), (1, 0), (0, 0)]
    """
    flat = np.argsort(scores, axis=None, kind="stable")  # NaN last
    places = [divmod(int(index), scores.shape[1]) for index in flat]
    return [place for place in places if not np.isnan(scores[place])]


# Of one call, by the reference ------------------------------------------------------------------------


def _of_calls(subject: Subject, of: Callable[[NDArray, NDArray], NDArray]) -> Scores:
    """The mean over the queries that count, of what `of` makes of the output and of what each head adds to it.

    Args:
        subject: a recording.
        of: output (B, 1, Lq, Do), and by head what sums to it but for its bias (B, H, Lq, Do) -> (B, H, Lq).
    """
    found = np.where(subject.there, 0.0, np.nan)
    for row, layer, calls in zip(found, subject.layers, subject.calls, strict=True):
        heads = layer.config.num_heads
        weight = layer.weights["out_proj.weight"].astype(np.float64)
        out = weight.reshape(len(weight), heads, -1)  # (Do, H, dv)
        for call in calls:
            trace = reference.run(layer.config, layer.weights, call.problem.inputs)
            assert trace.heads is not None
            assert trace.output is not None
            added = np.einsum("bhld,ohd->bhlo", trace.heads, out, optimize=True)
            row[:heads] += np.where(call.rows[:, None], of(trace.output[:, None], added), 0.0).sum(axis=(0, 2))
        row[:heads] /= max(sum(int(call.rows.sum()) for call in calls), 1)
    return found


def _length(array: NDArray) -> NDArray:
    return np.asarray(np.linalg.norm(array, axis=-1))


def _left_out(whole: NDArray, added: NDArray) -> NDArray:
    """1 - cosine of the output with and without each head, (B, H, Lq); 0 where it is the same, 1 where one is 0."""
    rest = whole - added
    lengths = _length(whole) * _length(rest)
    cosine = (whole * rest).sum(axis=-1) / np.where(lengths > 0, lengths, 1.0)
    return np.where((added == 0).all(axis=-1), 0.0, np.maximum(1.0 - cosine, 0.0))


def _slopes(whole: NDArray, added: NDArray) -> NDArray:
    """(B, H, Lq): exact, because a layer's own output is linear in the gate."""
    length = np.where(_length(whole) > 0, _length(whole), 1.0)
    along = (added * whole).sum(axis=-1) / length
    across = (added**2).sum(axis=-1) - along**2
    return np.asarray(np.maximum(across, 0.0) / (2.0 * length**2))
