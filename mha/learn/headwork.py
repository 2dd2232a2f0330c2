"""The last two experiments: which heads of a trained layer matter, and the layer without the others.

Importance is measured on some sentences and judged on others, which the learner's function never gets: heads go in its
order, the least important first, and what counts is how near the output stays to that of the whole layer. On the scale
that is shown, 0 is what random orders leave, and 1 the order of `left_out`.

In a trained layer loud heads bring much, also before the output projection. So here some heads are made loud and others
quiet, and their columns of W_o bring them back: the layer is the same, and only what stands behind W_o tells it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.cases.table import select
from conformance.judging.expected import answer
from mha.learn.answers.larger import cut_heads
from mha.learn.bench import PRECISION
from mha_core import AttentionConfig, SpecError, Trace
from mha_core.reference import pipeline as reference
from mha_core.weights import Weights

LAYERS = ("trained-first-layer", "trained-last-layer")
"""The cases that hold a trained layer and eight sentences."""

MEASURED = 4
"""Sentences that importance is measured on; the others judge."""

REMOVED = (3, 6, 9)
"""How many of twelve heads are gone where the output is compared."""

ORDERS = 20
"""Random orders whose mean is 0 on the scale."""

ENOUGH = 0.9
"""The place on the scale that is right."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained layer: the calls on which importance is measured, and on which it is judged."""

    name: str
    measured: Problem
    judged: Problem

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What a learner's function gets."""
        given = self.measured.inputs
        arrays = (np.array(given.queries), np.array(given.keys), np.array(given.values))
        return (*arrays, dict(self.measured.weights), self.measured.allowed(), self.measured.config.num_heads)


def words(problem: Problem) -> NDArray[np.bool_]:
    """Bool (B, L): the tokens that are no padding."""
    return ~problem.padding()


@cache
def trained() -> tuple[Trained, ...]:
    """The trained layers."""
    found = []
    for id in LAYERS:
        problem = _with_loud_heads(select((id,))[0].build())
        found.append(Trained(id, _some(problem, slice(0, MEASURED)), _some(problem, slice(MEASURED, None))))
    return tuple(found)


def _with_loud_heads(problem: Problem) -> Problem:
    """The same layer with other heads loud: values times a power of 2 for each head, its columns of W_o divided by it.

    No number is rounded, so that the output stays as it is to the last bit.
    """
    config, weights = problem.config, dict(problem.weights)
    loudness = 2.0 ** np.random.default_rng(0).integers(-4, 5, config.num_heads)
    of_channels = np.repeat(loudness, config.value_head_dim)
    weights["v_proj.weight"] = weights["v_proj.weight"] * of_channels[:, None]
    weights["v_proj.bias"] = weights["v_proj.bias"] * of_channels
    weights["out_proj.weight"] = weights["out_proj.weight"] / of_channels
    return replace(problem, weights=weights)


def _some(problem: Problem, items: slice) -> Problem:
    """The call of some items of its batch."""
    given = problem.inputs
    mask = given.mask.map_arrays(lambda name, array: array[items])  # lengths, (B,)
    arrays: dict[str, Any] = {name: getattr(given, name)[items] for name in ("queries", "keys", "values")}
    return Problem(problem.config, problem.weights, replace(given, **arrays, mask=mask, cotangent=None))


def fidelity(one: Trained, importance: NDArray) -> float:
    """Mean cosine of the output with the whole layer's, over words and over REMOVED, heads going in this order."""
    order = np.argsort(importance, kind="stable").tolist()
    return float(np.mean([_cosine(one, frozenset(order[number:])) for number in REMOVED]))


@cache  # answers leave many of the same heads
def _cosine(one: Trained, kept: frozenset[int]) -> float:
    """Mean cosine, over words, of the output with these heads alone and of the whole layer's."""
    a, b = _output(one, kept), _whole(one)
    return float(np.mean((a * b).sum(axis=-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)))


@cache
def _whole(one: Trained) -> NDArray:
    return _output(one, range(one.judged.config.num_heads))


def _output(one: Trained, kept: Collection[int]) -> NDArray:
    problem = one.judged
    inputs = _masked(problem, kept).inputs
    return np.asarray(reference.run(problem.config, problem.weights, inputs).output)[words(problem)]


def _masked(problem: Problem, kept: Collection[int]) -> Problem:
    """The problem in which the other heads may attend to nothing."""
    gate = np.isin(np.arange(problem.config.num_heads), list(kept))[:, None, None]
    mask = replace(problem.inputs.mask, allowed=gate)  # its other sources are lengths
    return replace(problem, inputs=replace(problem.inputs, mask=mask))


def brought(one: Trained) -> NDArray:
    """What each head adds to the output on the measured sentences, (H, B, L, Do)."""
    problem = one.measured
    heads = reference.run_state(problem.config, problem.weights, problem.inputs)["heads"]
    blocks = np.stack(np.split(problem.weights["out_proj.weight"], problem.config.num_heads, axis=1))
    return np.einsum("bhld,hod->hblo", heads, blocks)


def left_out(one: Trained) -> NDArray:
    """Leaving each head out: 1 - cosine of the output with and without it, the mean over the measured words, (H,)."""
    problem = one.measured
    whole = np.asarray(reference.run(problem.config, problem.weights, problem.inputs).output)
    rest = whole - brought(one)
    cosine = (whole * rest).sum(-1) / np.linalg.norm(whole, axis=-1) / np.linalg.norm(rest, axis=-1)
    return 1.0 - cosine[:, words(problem)].mean(-1)


def place(importances: Sequence[NDArray]) -> float:
    """Where orders of the heads of each layer lie: 0 random, 1 leave one out; more is better."""
    low, high = _scale()
    kept = [fidelity(one, scores) for one, scores in zip(trained(), importances, strict=True)]
    return float((np.mean(kept) - low) / (high - low))


@cache
def _scale() -> tuple[float, float]:
    """The mean fidelity of random orders, and that of leaving each head out."""
    randoms = [
        fidelity(one, np.random.default_rng(seed).random(one.judged.config.num_heads))
        for one in trained()
        for seed in range(ORDERS)
    ]
    best = [fidelity(one, left_out(one)) for one in trained()]
    return float(np.mean(randoms)), float(np.mean(best))


KEPT = ((0, 3, 4, 8), (5,), (1, 2, 3, 6, 7, 9, 10, 11))
"""Heads that a cut layer keeps, in the calls that judge it."""


def cut_calls() -> tuple[tuple[Any, ...], ...]:
    """What a function that cuts heads gets."""
    one = trained()[0].measured
    return tuple((dict(one.weights), list(kept), one.config.num_heads) for kept in KEPT)


def wrong_cut(number: int, weights: dict[str, NDArray]) -> str:
    """What is wrong with a cut layer, in words; "" if it is the masked one."""
    problem, kept = trained()[0].measured, KEPT[number]
    config, right = _cut(problem, kept)
    wanted = answer(_masked(problem, kept), PRECISION)
    parts: dict[str, list[str]] = {}
    for name, array in right.items():
        if said := _wrong_part(problem, kept, name, array, weights.get(name)):
            parts.setdefault(said, []).append(name)
    found = [f"{', '.join(names)}: {said}" for said, names in parts.items()]
    try:
        made = reference.run(config, weights, problem.inputs)
    except SpecError as error:
        found = found or [str(error)]
    else:
        _, mismatches = wanted.judge(Trace(output=made.output), "float64")
        if not mismatches:
            return ""
        found.append(mismatches[0].message)
    return f"{'; '.join(found)} (kept {list(kept)})"


def _cut(problem: Problem, kept: Sequence[int]) -> tuple[AttentionConfig, Weights]:
    """The layer with these heads alone."""
    config = replace(problem.config, num_heads=len(kept), num_kv_heads=len(kept))
    return config, cut_heads(problem.weights, list(kept), problem.config.num_heads)


def _wrong_part(problem: Problem, kept: Sequence[int], name: str, right: NDArray, made: NDArray | None) -> str:
    """What is wrong with one array of a cut layer; "" if nothing is."""
    if made is None:
        return "missing"
    if np.array_equal(made, right):
        return ""
    for said, other in _other_cuts(problem, kept, name):
        if np.array_equal(made, other):
            return said
    if made.shape != right.shape:
        return f"shape {made.shape}, and it must be {right.shape}"
    return "not what these heads have in the whole layer"


def _other_cuts(problem: Problem, kept: Sequence[int], name: str) -> Iterator[tuple[str, NDArray]]:
    """What somebody may have cut, in words, and the array that it gives."""
    whole, number, width = problem.weights[name], problem.config.num_heads, problem.config.head_dim
    axis = int(name == "out_proj.weight")

    def of(heads: Sequence[int], axis: int = axis) -> NDArray:
        channels = [head * width + channel for head in heads for channel in range(width)]
        return np.take(whole, channels, axis, mode="clip")

    others = [head for head in range(number) if head not in kept]
    zeroed = whole.copy()
    np.moveaxis(zeroed, axis, 0)[np.isin(np.arange(whole.shape[axis]) // width, others)] = 0.0
    yield "the whole one, not cut", whole
    yield "cut, and must stay as it is", of(kept)
    yield "the heads that are not kept", of(others)
    yield "the first heads, not those that are kept", of(range(len(kept)))
    yield "the heads that are kept, in the opposite order", of(kept[::-1])
    yield "still the size of the whole one, with 0 where heads must be cut off", zeroed
    if whole.ndim == 2:
        along, across = ("rows", "columns")[:: 1 - 2 * axis]
        yield f"{across} are cut, where {along} must be", of(kept, 1 - axis)


REPEATS = 9
"""How often the cut layer and the whole one are timed, in turn."""


def share_of_time(number: int) -> float | None:
    """How long the cut layer takes, as a share of the whole one, by the reference on this machine; None if that is not
    clear: most runs of the cut layer must be faster than every run of the whole one.
    """
    problem = trained()[0].measured
    config, weights = _cut(problem, KEPT[number])

    def seconds(config: AttentionConfig, weights: Weights) -> float:
        start = time.perf_counter()
        reference.run(config, weights, problem.inputs)
        return time.perf_counter() - start

    both = [(seconds(config, weights), seconds(problem.config, problem.weights)) for _ in range(REPEATS)]
    short, long = (np.array(times) for times in zip(*both, strict=True))
    return float(short.min() / long.min()) if np.median(short) < long.min() else None


# What is wrong with an order -----------------------------------------------------------------------------

ORDERS_OF: dict[str, Callable[[NDArray], NDArray]] = {
    "": lambda scores: scores,
    "your order is reversed": np.negative,
}
"""What is wrong with an order -> the importance that was meant."""

IS_ORDER = "np.argsort gives the order of the heads, and not a number for each head"

SIZES: tuple[tuple[str, Callable[[NDArray], NDArray]], ...] = (
    ("", lambda rows: np.linalg.norm(rows.reshape(len(rows), -1), axis=-1)),
    ("", lambda rows: np.linalg.norm(rows, axis=-1).reshape(len(rows), -1).mean(-1)),
    ("", lambda rows: np.abs(rows).reshape(len(rows), -1).mean(-1)),
    (
        "positive and negative numbers cancel in a mean or a sum: take the size, np.linalg.norm",
        lambda rows: rows.reshape(len(rows), -1).mean(-1),
    ),
    (
        "the largest number alone counts: take the size, np.linalg.norm",
        lambda rows: rows.reshape(len(rows), -1).max(-1),
    ),
    (
        "the mean of the largest numbers alone counts: take the size, np.linalg.norm",
        lambda rows: rows.max(-1).reshape(len(rows), -1).mean(-1),
    ),
)
"""What is wrong with a size -> (H, ..., n) -> (H,)."""


def _measured(one: Trained) -> Iterator[tuple[str, NDArray]]:
    """What somebody may take the size of, (H, ..., n), with what is wrong with that."""
    problem = one.measured
    state = reference.run_state(problem.config, problem.weights, problem.inputs)
    heads, weights = (np.moveaxis(state[name], 1, 0) for name in ("heads", "weights"))
    blocks = np.stack(np.split(problem.weights["out_proj.weight"], problem.config.num_heads, axis=1))
    rows, added = words(problem), brought(one)
    for some in (lambda array: array, lambda array: array[:, rows]):
        yield "", some(added)
        yield "W_o is left out, and a loud head may have a small block of it", some(heads)
        for whole in (state["output"], added.sum(0)):
            yield "it measures what is left without the head, and not how far the output moves", some(whole - added)
        yield "it measures where a head looks, and not what becomes of what it finds there", some(weights)
    yield "it measures the block of W_o alone, and not what the head finds", blocks


@cache
def _other_orders() -> tuple[tuple[str, list[list[int]]], ...]:
    """What is wrong with the size of something, and the orders of heads by it, in each layer."""
    found = []
    for measured in zip(*map(_measured, trained()), strict=True):
        for wrong_size, of_size in SIZES:
            sizes = [of_size(array) for _, array in measured]
            if all(map(_differs, sizes)):
                found.append((measured[0][0] or wrong_size, [np.argsort(one).tolist() for one in sizes]))
    return tuple(found)


def wrong_order(importances: Sequence[NDArray]) -> str:
    """What is wrong with an order that is not enough, where it can be shown; else ""."""
    if not all(map(_differs, importances)):
        return "every head has the same number"
    meant = [(said, [of(one) for one in importances]) for said, of in ORDERS_OF.items()]
    if all(np.array_equal(np.sort(one), np.arange(len(one))) for one in importances):
        meant += [(IS_ORDER, [of(np.argsort(one)) for one in importances]) for of in ORDERS_OF.values()]
    for said, scores in meant:
        if said and place(scores) >= ENOUGH:
            return said
    for said, scores in meant:
        order = [np.argsort(one).tolist() for one in scores]
        for wrong, other in _other_orders():
            if order == other:
                return ", and ".join(filter(None, (wrong, said)))
    return ""


def _differs(scores: NDArray) -> bool:
    """Whether heads have different numbers, by more than rounding."""
    return bool(np.ptp(scores) > 1e-9 * np.abs(scores).max())
