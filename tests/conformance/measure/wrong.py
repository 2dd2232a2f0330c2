"""Wrong layers of these tests, none of them on file, as subjects that show their output alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.measure.designs import generic
from conformance.measure.faults import is_measured
from conformance.measure.outcome import Measured
from conformance.measure.probes.steps import biases, scores
from conformance.measure.search.measure import measure
from conformance.zoo.bug import Bug, BuggySubject, DoesNotApply, OnTop, pipelines
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, Trace
from mha_core.backend import Run
from mha_core.reference import pipeline as reference
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State
from mha_core.weights import Weights

Change = Callable[[State, Any], Any]


class OutputAlone(BuggySubject):
    """A layer with bugs of which nothing is seen but its output."""

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        run = super().prepare(config, weights)

        def shown(inputs: AttentionInputs) -> Trace:
            return Trace(output=run(replace(inputs, cotangent=None)).output)

        return shown


def wrong_at(step: str, change: Change) -> Bug:
    """A step's result changed: `change(state, result)`."""
    steps = {step: OnTop(FORWARD[step], lambda state, beneath: change(state, beneath(state)))}
    return Bug(f"wrong-{step}", f"{step} is wrong", step, "nothing", forward=steps)


FRESH = (
    AttentionConfig(
        18,
        6,
        num_kv_heads=2,
        head_dim=4,
        value_head_dim=3,
        query_dim=7,
        key_dim=5,
        value_dim=8,
        output_dim=9,
        bias=True,
    ),
    AttentionConfig(20, 4, bias=True),
)


def fresh_problems(configs: tuple[AttentionConfig, ...] = FRESH, mask: bool = True) -> list[Any]:
    """Problems of sizes that no probe has."""
    rng = np.random.default_rng(7)
    found = []
    for config in configs:
        for batch, query_len, key_len in ((1, 4, 4), (2, 6, 6), (1, 5, 8)):
            bias = rng.normal(size=(batch, config.num_heads, query_len, key_len))
            for one in (AttentionMask(), AttentionMask(bias=bias), AttentionMask(causal=True))[: 3 if mask else 1]:
                found.append(generic(config, seed=5, batch=batch, query_len=query_len, key_len=key_len, mask=one))
    return found


def same_on(problems: list[Any], bugs: tuple[Bug, ...], others: tuple[Bug, ...]) -> bool:
    """Whether two sets of bugs give the same outputs, to 1e-6, wherever the first can be made."""
    compared = 0
    for problem in problems:
        wanted = _output(problem, bugs)
        if wanted is None:
            continue
        made = _output(problem, others)
        if made is None or not np.allclose(made, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max()):
            return False
        compared += 1
    return compared > 0


def _output(problem: Any, bugs: tuple[Bug, ...]) -> NDArray | None:
    forward, _ = pipelines(*bugs)
    inputs = replace(problem.inputs, cotangent=None)
    try:
        return reference.run(problem.config, problem.weights, inputs, forward=forward).output
    except DoesNotApply:
        return None


def is_right(measured: Measured, bugs: tuple[Bug, ...], problems: list[Any]) -> bool:
    """Whether everything is explained, and the first model, or one of the first three, is the layer's fault."""
    return not measured.unexplained and any(same_on(problems, bugs, model) for model in measured.models[:3])


def measured_of(*bugs: Bug, dtype: str = "float64", around: bool = False) -> Measured:
    """What the probes of plain scores, which is faster than all, or of what is around them too, show without a zoo."""
    chosen = (*scores.PROBES, *biases.PROBES) if around else scores.PROBES
    return measure(OutputAlone(*bugs, dtype=dtype), zoo=(), probes=chosen)


def sentences(measured: Measured) -> list[str]:
    """What is said of those bugs of the models that were measured."""
    return [bug.sentence for model in measured.models for bug in model if is_measured(bug)]
