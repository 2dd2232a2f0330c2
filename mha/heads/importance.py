"""Measures of how much a head matters, each a function of a Subject that gives (layers, heads).

The more, the more important; NaN where a layer has no such head. They are compared by what they leave of the model
when its least important heads are gone (`mha.heads.curve`), because there is no other truth about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mha.heads.gates import embed, squared_gradients
from mha.heads.subject import Call, Layer, Subject
from mha_core import SpecError, Trace
from mha_core.reference import pipeline as reference

DIRECTIONS = 2
"""Random directions for each text in which the gradient is taken."""

ORDERS = 20
"""Random orders that a measure must be better than."""

SEED = 0

Scores = NDArray[np.float64]
"""(layers, heads)."""


def leave_one_out(subject: Subject) -> Scores:
    """1 - cosine of what comes out with and without the head: the mean over texts, or of a recording over tokens."""
    found = np.where(subject.there, 0.0, np.nan)
    if subject.live is None:
        for index, layer in enumerate(subject.layers):
            found[index, : layer.config.num_heads] = _mean(subject.calls[index], _left_out)
        return found
    whole = embed(subject.live, subject.batches)
    for index, head in np.argwhere(subject.there):
        removed = np.zeros(subject.shape, np.bool_)
        removed[index, head] = True
        found[index, head] = (1.0 - (embed(subject.live, subject.batches, removed) * whole).sum(axis=-1)).mean()
    return np.maximum(found, 0.0)


def gradient(subject: Subject, directions: int = DIRECTIONS) -> Scores:
    """Half the squared length of the derivative of what comes out, scaled to length 1, by the head's gate.

    To second order that is what leaving the head out costs. In a live model the length comes from random directions of
    the embedding, so a backward pass or two are enough for all heads. It needs no labels. (The gradient of a loss that
    compares with the model itself would be 0 for every head: that loss is at its minimum.)
    """
    found = np.where(subject.there, 0.0, np.nan)
    if subject.live is None:
        for index, layer in enumerate(subject.layers):
            found[index, : layer.config.num_heads] = _mean(subject.calls[index], _slopes)
        return found
    rng, texts = np.random.default_rng(SEED), 0
    width = int(subject.live.encoder.model.config.hidden_size)
    for batch in subject.batches:
        size = len(batch["input_ids"])
        found += squared_gradients(subject.live, batch, rng.standard_normal((directions, size, width)))
        texts += size
    return found / (2 * directions * texts)


def output_norm(subject: Subject) -> Scores:
    """The length of what the head adds to the output, the mean over tokens."""
    found = np.where(subject.there, 0.0, np.nan)
    for index, layer in enumerate(subject.layers):
        found[index, : layer.config.num_heads] = _mean(subject.calls[index], lambda parts: _length(parts.added))
    return found


def weights_norm(subject: Subject) -> Scores:
    """The Frobenius norm of W_v W_o of the head: no text is needed."""
    found = np.where(subject.there, 0.0, np.nan)
    for row, layer in zip(found, subject.layers, strict=True):
        config = layer.config
        values = layer.weights["v_proj.weight"].astype(np.float64)
        values = values.reshape(config.num_kv_heads, config.value_head_dim, -1)
        values = values.repeat(config.num_heads // config.num_kv_heads, axis=0)  # (H, dv, Dv)
        row[: config.num_heads] = np.linalg.norm(_out(layer).transpose(1, 0, 2) @ values, axis=(1, 2))
    return found


def confidence(subject: Subject) -> Scores:
    """The largest weight that the head gives a token, the mean over tokens (Voita et al. 2019, arXiv:1905.09418)."""
    return _confidence(subject, words_only=False)


def confidence_words(subject: Subject) -> Scores:
    """The same without the special tokens, such as [CLS] and [SEP], neither as queries nor as keys."""
    return _confidence(subject, words_only=True)


def random_order(subject: Subject, seed: int = SEED) -> Scores:
    """Numbers that know nothing of the model."""
    drawn = np.random.default_rng(seed).random(subject.shape)
    return np.where(subject.there, drawn, np.nan)


@dataclass(frozen=True)
class Measure:
    """One measure.

    Args:
        function: Subject -> (layers, heads).
        about: what it is, in a line.
        of_effect: whether a head that adds nothing to the output has the importance 0.
        needs_model: why it can't be had of a recording; "" if it can.
    """

    function: Callable[[Subject], Scores]
    about: str
    of_effect: bool = True
    needs_model: str = ""


DEFAULT = "gradient"
RANDOM = "random"

MEASURES = {
    "leave-one-out": Measure(leave_one_out, "1 - cosine of the embedding with and without the head"),
    DEFAULT: Measure(gradient, "gradient of the embedding by the head's gate, in random directions"),
    "output": Measure(output_norm, "length of what the head adds to the layer's output"),
    "weights": Measure(weights_norm, "norm of W_v W_o: no text needed"),
    "confidence": Measure(confidence, "mean largest attention weight", of_effect=False),
    "confidence-words": Measure(
        confidence_words,
        "the same, special tokens left out",
        of_effect=False,
        needs_model="a recording does not say which tokens are special",
    ),
    RANDOM: Measure(random_order, f"nothing: {ORDERS} random orders", of_effect=False),
}
"""Name -> measure. `of_effect` is False for those that look at the attention weights, and not at what they do."""


def measure_of(name: str, *, live: bool) -> Measure:
    """The measure of this name. SpecError if there is none, or a recording does not allow it.

    >>> measure_of("sharpness", live=True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: measure 'sharpness' is not known (known: leave-one-out, gradient, output, weights, ...)
    """
    if name not in MEASURES:
        raise SpecError(f"measure {name!r} is not known (known: {', '.join(MEASURES)})")
    if MEASURES[name].needs_model and not live:
        raise SpecError(f"measure {name!r} needs the model: {MEASURES[name].needs_model}")
    return MEASURES[name]


def order_of(scores: Scores) -> list[tuple[int, int]]:
    """(layer, head) of every head, the least important first; of equal ones, in their order.

    >>> order_of(np.array([[0.5, 0.1], [0.2, np.nan]]))
    [(0, 1), (1, 0), (0, 0)]
    """
    flat = np.argsort(scores, axis=None, kind="stable")  # NaN last
    places = [divmod(int(index), scores.shape[1]) for index in flat]
    return [place for place in places if not np.isnan(scores[place])]


def agreement(first: Scores, second: Scores) -> float:
    """Spearman's rank correlation of two measures; NaN if one gives all heads the same.

    >>> agreement(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 3.0], [20.0, 100.0]]))
    1.0
    """
    pair = np.stack([_ranks(scores[~np.isnan(scores)]) for scores in (first, second)])
    if (np.ptp(pair, axis=-1) == 0).any():
        return float("nan")
    return float(round(np.corrcoef(pair)[0, 1], 12))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value; equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2.0)[inverse]
    return ranks


# Of one call, by the reference ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Parts:
    """What a layer gives in one call: `added` (B, H, Lq, Do) sums to the output but for its bias, and `call`."""

    call: Call
    trace: Trace
    added: NDArray[np.float64]

    @property
    def output(self) -> NDArray[np.float64]:
        assert self.trace.output is not None
        return self.trace.output


def _out(layer: Layer) -> NDArray[np.float64]:
    """out_proj by heads: (Do, H, dv)."""
    weight = layer.weights["out_proj.weight"].astype(np.float64)
    return weight.reshape(len(weight), layer.config.num_heads, -1)


def _parts(calls: tuple[Call, ...]) -> Iterator[_Parts]:
    for call in calls:
        problem = call.problem
        trace = reference.run(problem.config, problem.weights, problem.inputs)
        assert trace.heads is not None
        out = _out(Layer("", problem.config, problem.weights, ""))
        yield _Parts(call, trace, np.einsum("bhld,ohd->bhlo", trace.heads, out, optimize=True))


def _mean(calls: tuple[Call, ...], of: Callable[[_Parts], NDArray[np.float64]]) -> NDArray[np.float64]:
    """(H,): the mean over the queries that count of what `of` makes of each call, (B, H, Lq)."""
    total, rows = np.float64(0.0), 0
    for parts in _parts(calls):
        counted = parts.call.rows
        total = total + np.where(counted[:, None], of(parts), 0.0).sum(axis=(0, 2))
        rows += int(counted.sum())
    return np.asarray(total / max(rows, 1))


def _length(array: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(array, axis=-1))


def _left_out(parts: _Parts) -> NDArray[np.float64]:
    """1 - cosine of the output with and without each head, (B, H, Lq); 0 where it is the same, 1 where one is 0."""
    whole = parts.output[:, None]
    rest = whole - parts.added
    lengths = _length(whole) * _length(rest)
    cosine = (whole * rest).sum(axis=-1) / np.where(lengths > 0, lengths, 1.0)
    return np.where((parts.added == 0).all(axis=-1), 0.0, np.maximum(1.0 - cosine, 0.0))


def _slopes(parts: _Parts) -> NDArray[np.float64]:
    """(B, H, Lq): exact, because a layer's own output is linear in the gate."""
    whole = parts.output[:, None]
    length = np.where(_length(whole) > 0, _length(whole), 1.0)
    along = (parts.added * whole).sum(axis=-1) / length
    across = (parts.added**2).sum(axis=-1) - along**2
    return np.asarray(np.maximum(across, 0.0) / (2.0 * length**2))


def _confidence(subject: Subject, *, words_only: bool) -> Scores:
    found = np.where(subject.there, 0.0, np.nan)
    for row, calls in zip(found, subject.calls, strict=True):
        total, rows = np.float64(0.0), 0
        for call in calls:
            weights = reference.run(call.problem.config, call.problem.weights, call.problem.inputs).weights
            assert weights is not None
            counted = call.rows
            if words_only:
                assert call.special is not None
                weights = np.where(call.special[:, None, None], 0.0, weights)
                counted = counted & ~call.special
            total = total + np.where(counted[:, None], weights.max(axis=-1, initial=0.0), 0.0).sum(axis=(0, 2))
            rows += int(counted.sum())
        row[: calls[0].problem.config.num_heads] = total / max(rows, 1)
    return found
