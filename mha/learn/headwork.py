"""The last two experiments: which heads of a trained layer matter, and the layer without the others.

Importance is measured on some sentences and judged on others, which the learner's function never gets: heads go in its
order, the least important first, and what counts is how near the output stays to that of the whole layer. On the scale
that is shown, 0 is what random orders leave, and 1 what `mha heads` leaves by leaving each head out.

In a trained layer loud heads bring much, also before the output projection. So here some heads are made loud and others
quiet, and their columns of W_o bring them back: the layer is the same, and only what stands behind W_o tells it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.cases.table import select
from conformance.judging.expected import answer
from mha.heads.importance import MEASURES
from mha.heads.prune import cut, masked_inputs
from mha.heads.subject import Call, Layer, Subject
from mha.learn.bench import PRECISION
from mha_core import SpecError, Trace
from mha_core.reference import pipeline as reference

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


@dataclass(frozen=True)
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

    @property
    def subject(self) -> Subject:
        """As `mha heads` knows it."""
        problem = self.measured
        layer = Layer(self.name, problem.config, problem.weights, "float64")
        return Subject(self.name, (layer,), calls=((Call(problem, words(problem)),),))


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
    problem, order = one.judged, np.argsort(importance, kind="stable")
    rows = words(problem)

    def output(kept: Sequence[int]) -> NDArray:
        inputs = masked_inputs(problem.config, problem.inputs, kept)
        return np.asarray(reference.run(problem.config, problem.weights, inputs).output)[rows]

    whole = output(list(order))
    outputs = [output([int(head) for head in order[number:]]) for number in REMOVED]
    return float(np.mean([_cosine(some, whole) for some in outputs]))


def _cosine(a: NDArray, b: NDArray) -> float:
    return float(np.mean((a * b).sum(axis=-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)))


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
    best = [fidelity(one, MEASURES["leave-one-out"].function(one.subject)[0]) for one in trained()]
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
    config, _ = cut(problem.config, problem.weights, kept)
    masked = Problem(problem.config, problem.weights, masked_inputs(problem.config, problem.inputs, kept))
    wanted = answer(masked, PRECISION)
    try:
        made = reference.run(config, weights, problem.inputs)
    except SpecError as error:
        return f"{error} (kept {list(kept)})"
    _, mismatches = wanted.judge(Trace(output=made.output), "float64")
    if not mismatches:
        return ""
    _, right = cut(problem.config, problem.weights, kept)
    others = [name for name, array in right.items() if not np.array_equal(weights[name], array)]
    said = f"{', '.join(others)}: not what these heads have in the whole layer"
    return f"{said}; {mismatches[0].message} (kept {list(kept)})"


def share_of_time(number: int) -> float:
    """How long the cut layer takes, as a share of the whole one, by the reference on this machine."""
    problem = trained()[0].measured
    config, weights = cut(problem.config, problem.weights, KEPT[number])

    def seconds(small: bool) -> float:
        start = time.perf_counter()
        if small:
            reference.run(config, weights, problem.inputs)
        else:
            reference.run(problem.config, problem.weights, problem.inputs)
        return time.perf_counter() - start

    both = [(seconds(True), seconds(False)) for _ in range(5)]
    return min(short for short, _ in both) / min(long for _, long in both)
