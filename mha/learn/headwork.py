"""The last two experiments: which heads of a trained layer matter, and the layer without the others.

Importance is measured on some sentences and judged on others, which the learner's function never gets: heads go in its
order, the least important first, and what counts is how near the output stays to that of the whole layer. On the scale
that is shown, 0 is what random orders leave, and 1 the order of `left_out`.

In a trained layer loud heads bring much, also before the output projection. So here some heads are made loud and others
quiet, and their columns of W_o bring them back: the layer is the same, and only what stands behind W_o tells it.
"""

from collections.abc import Callable, Collection, Sequence
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
    """A trained layer with two calls: the learner measures head importance on one, and is judged on the other."""

    name: str
    measured: Problem
    judged: Problem

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments that a learner's function gets."""
        given = self.measured.inputs
        arrays = (np.array(given.queries), np.array(given.keys), np.array(given.values))
        return (*arrays, dict(self.measured.weights), self.measured.allowed(), self.measured.config.num_heads)


def words(problem: Problem) -> NDArray[np.bool_]:
    """Return which tokens are no padding, bool (B, L)."""
    return ~problem.padding()


@cache
def trained() -> tuple[Trained, ...]:
    """Return the trained layers."""
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
    """Return the mean cosine similarity between outputs with all heads and outputs without the least important heads.

    The mean is over the words (queries) of the sentences, and over the counts of removed heads in REMOVED.
    """
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
    """Return (H, B, L, Do): the part of the output that each head contributes in the call `one.measured`."""
    problem = one.measured
    heads = reference.run_state(problem.config, problem.weights, problem.inputs)["heads"]
    blocks = np.stack(np.split(problem.weights["out_proj.weight"], problem.config.num_heads, axis=1))
    return np.einsum("bhld,hod->hblo", heads, blocks)


def left_out(one: Trained) -> NDArray:
    """Return (H,): 1 - cosine similarity of the outputs with and without each head, averaged over words."""
    problem = one.measured
    whole = np.asarray(reference.run(problem.config, problem.weights, problem.inputs).output)
    rest = whole - brought(one)
    cosine = (whole * rest).sum(-1) / np.linalg.norm(whole, axis=-1) / np.linalg.norm(rest, axis=-1)
    return 1.0 - cosine[:, words(problem)].mean(-1)


def place(importances: Sequence[NDArray]) -> float:
    """Return a score of `importances`, (H,) per layer: 0 for random numbers, 1 for the numbers of `left_out`."""
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
    """Return the arguments of the test calls for a function that removes heads."""
    one = trained()[0].measured
    return tuple((dict(one.weights), list(kept), one.config.num_heads) for kept in KEPT)


def wrong_cut(number: int, weights: dict[str, NDArray]) -> str:
    """Return what is wrong with `weights`, a learner's answer to `cut_calls()[number]`; "" if nothing is."""
    problem, kept = trained()[0].measured, KEPT[number]
    config, right = _cut(problem, kept)
    wanted = answer(_masked(problem, kept), PRECISION)
    parts: dict[str, list[str]] = {}
    for name, array in right.items():
        if said := _wrong_part(array, weights.get(name)):
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


def _wrong_part(right: NDArray, made: NDArray | None) -> str:
    """What is wrong with one array of a cut layer; "" if nothing is."""
    if made is None:
        return "missing"
    if np.array_equal(made, right):
        return ""
    if made.shape != right.shape:
        return f"shape {made.shape}, and it must be {right.shape}"
    return "not what these heads have in the whole layer"


# What is wrong with an order -----------------------------------------------------------------------------

MEANT: dict[str, Callable[[NDArray], NDArray]] = {
    "your order is reversed": np.negative,
    "np.argsort gives the order of the heads, and not a number for each head": np.argsort,
}
"""What is wrong with an order -> the importance that was meant."""


def wrong_order(importances: Sequence[NDArray]) -> str:
    """Return in words why importances, an array (H,) for each layer, are bad (such as a reversed order), or ""."""
    if any(np.ptp(scores) <= 1e-9 * np.abs(scores).max() for scores in importances):
        return "every head has the same number"
    for said, meant in MEANT.items():
        if place([meant(scores) for scores in importances]) >= ENOUGH:
            return said
    return "your order is worse than a random one" * (place(importances) < 0.0)
