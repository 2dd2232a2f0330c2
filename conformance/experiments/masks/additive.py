"""The additive bias taken wrongly: times a number, with its axes in another order, in some places alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformance.experiments.changes.expressions import Expression, expressions_of
from conformance.experiments.changes.fit import ratio
from conformance.experiments.changes.sample import Sample, Setting
from conformance.experiments.masks.patterns import FOUR, order_changes
from conformance.experiments.masks.places import places_on
from conformance.experiments.measured import around
from conformance.experiments.readings.weights import read_scores
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from conformance.zoo.forward.scores import BIAS_FIX, transposed
from mha_core.call.masks import additive_bias
from mha_core.reference.state import State, Step

Change = Callable[[State, NDArray], NDArray]
"""(state, the bias (B, H, Lq, Lk)) -> another."""


def bias_bug(slug: str, words: str, change: Change) -> Bug:
    """A bug by which the bias is another array; `words` are read after "The additive bias is "."""

    def changed(state: State, beneath: Step) -> NDArray:
        mask = state.inputs.mask
        if mask.bias is None:
            return beneath(state)
        shape = state["capped"].shape
        other = change(state, np.broadcast_to(additive_bias(mask), shape))
        inputs = replace(state.inputs, mask=replace(mask, bias=np.asarray(other, np.float64)))
        result: NDArray = beneath(replace(state, inputs=inputs))
        return result

    return around("scores", f"bias-{slug}", changed, f"The additive bias is {words}.", BIAS_FIX)


def times(expression: Expression) -> Bug:
    """The bias times a number, which may depend on the sizes."""
    return bias_bug(
        f"times-{expression.words.replace(' ', '')}",
        f"added {expression.words} times",
        lambda state, bias: bias * expression.at(Setting(state.config, state.sizes)),
    )


def read_factor(view: View) -> Iterator[Bug]:
    """What the bias is multiplied by: the scores that it makes, over those that it should make."""
    numbers = []
    for problem in view.problems:
        bias = problem.inputs.mask.bias
        measured, expected = read_scores(view.got, problem), read_scores(view.made, problem)
        if bias is None or measured is None or expected is None:
            continue
        plain = np.broadcast_to(additive_bias(problem.inputs.mask), measured.shape)
        own = np.where(np.isnan(expected), np.nan, plain)
        own = own - np.nanmean(own, axis=-1, keepdims=True)
        setting = Setting(problem.config, problem.sizes)
        # What the model has besides the bias is taken off both.
        sample = Sample(measured - expected + own, own, FOUR, setting, unit=100 * view.lab.unit)
        numbers.append((ratio(sample), setting))
    for expression in expressions_of(numbers, unit=100 * view.lab.unit):
        yield times(expression)


@cache
def bias_bugs() -> tuple[Bug, ...]:
    """Every way of taking the bias wrongly whose numbers are known beforehand."""
    return tuple(_all())


def _all() -> Iterator[Bug]:
    yield bias_bug("ignored", "not added", lambda state, bias: 0.0 * bias)
    yield bias_bug("transposed", "added with queries and keys exchanged", lambda state, bias: transposed(bias, bias))
    for slug, words, rule in (
        ("absolute", "added as its absolute value", np.abs),
        ("positive", "added only where it is positive", lambda x: np.maximum(x, 0.0)),
        ("negative", "added only where it is negative", lambda x: np.minimum(x, 0.0)),
        ("exponential", "added as its exponential", np.exp),
        ("squared", "added as its square", np.square),
        ("sign", "added as its sign", np.sign),
        ("rounded", "added as a whole number", np.round),
        ("truncated", "added as a whole number, cut towards 0", np.trunc),
        ("within-1", "cut to -1..1", lambda x: np.clip(x, -1.0, 1.0)),
        ("where-not-0", "added as 1 wherever it is not 0", lambda x: (x != 0.0).astype(np.float64)),
        ("tanh", "added as its tanh", np.tanh),
    ):
        yield bias_bug(slug, words, _of_array(rule))
    for axis, place in (("head", 1), ("query", 2), ("key", 3), ("item", 0)):
        yield bias_bug(f"mean-over-{axis}", f"added as its mean over the {axis}s", _of_array(_mean_over(place)))
    for axis in ("head", "query", "key", "item"):
        for name, (words, where) in places_on(axis).items():
            yield bias_bug(f"ignored-for-{name}", f"not added for {words}", _where(where, 0.0))
            yield bias_bug(f"negated-for-{name}", f"subtracted for {words}", _where(where, -1.0))
            yield bias_bug(f"twice-for-{name}", f"added twice for {words}", _where(where, 2.0))
    for slug, words, apply in order_changes():
        yield bias_bug(slug, f"used {words}", _ordered(apply))


def _ordered(apply: Callable[[NDArray, Setting], NDArray]) -> Change:
    return lambda state, bias: apply(bias, Setting(state.config, state.sizes))


def _mean_over(axis: int) -> Callable[[NDArray], NDArray]:
    return lambda x: np.broadcast_to(x.sum(axis=axis, keepdims=True) / max(x.shape[axis], 1), x.shape)


def _of_array(rule: Callable[[NDArray], NDArray]) -> Change:
    return lambda state, bias: rule(bias)


def _where(where: Callable[[State], NDArray], factor: float) -> Change:
    return lambda state, bias: np.where(where(state), factor * bias, bias)
