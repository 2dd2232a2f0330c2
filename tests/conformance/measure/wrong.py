"""Wrong layers of these tests, none of them on file, as subjects that show their output alone; what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.designs import CONFIGS, generic
from conformance.measure.outcome import Measured
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from conformance.subjects.ask import CannotExpress
from conformance.zoo.bug import Bug, BuggySubject, DoesNotApply, OnTop, pipelines
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, Trace
from mha_core.backend import Run
from mha_core.reference import pipeline as reference
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State
from mha_core.weights import Weights

Change = Callable[[State, Any], Any]


class OutputAlone(BuggySubject):
    """A layer with bugs of which nothing is seen but its output; `takes(config, inputs)` says which calls it takes."""

    def __init__(
        self,
        *bugs: Bug,
        takes: Callable[[AttentionConfig, AttentionInputs], bool] = lambda config, inputs: True,
        dtype: str = "float64",
    ) -> None:
        super().__init__(*bugs, dtype=dtype)
        self.takes = takes

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        run = super().prepare(config, weights)

        def shown(inputs: AttentionInputs) -> Trace:
            if not self.takes(config, inputs):
                raise CannotExpress("a call that is not for me")
            return Trace(output=run(replace(inputs, cotangent=None)).output)

        return shown


def wrong_at(step: str, change: Change) -> Bug:
    """A step's result changed: `change(state, result)`."""
    steps = {step: OnTop(FORWARD[step], lambda state, beneath: change(state, beneath(state)))}
    return Bug(f"wrong-{step}", f"{step} is wrong", step, "nothing", forward=steps)


def wrong_gradients(**changes: Change) -> Bug:
    """Results of backward steps changed: `change(state, result)` of each."""
    steps = {
        name: OnTop(BACKWARD[name], lambda state, beneath, change=change: change(state, beneath(state)))
        for name, change in changes.items()
    }
    return Bug("wrong-gradients", "gradients are wrong", "gradients", "nothing", backward=steps)


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


def fresh_problems(
    configs: Iterable[AttentionConfig] = FRESH, masks: Sequence[AttentionMask] | None = None
) -> list[Problem]:
    """Problems of sizes that no probe has; by default without a mask, with a bias, and causal."""
    rng = np.random.default_rng(7)
    found = []
    for config in configs:
        for batch, query_len, key_len in ((1, 4, 4), (2, 6, 6), (1, 5, 8)):
            bias = rng.normal(size=(batch, config.num_heads, query_len, key_len))
            usual = (AttentionMask(), AttentionMask(bias=bias), AttentionMask(causal=True))
            for mask in usual if masks is None else masks:
                found.append(generic(config, seed=5, batch=batch, query_len=query_len, key_len=key_len, mask=mask))
    return found


def plain_problems(*lengths: tuple[int, int, int]) -> list[Problem]:
    """Problems without a mask, of (batch, query length, key length) each and of the configs in turn."""
    return [
        generic(CONFIGS[seed % 3], seed=90 + seed, batch=batch, query_len=query_len, key_len=key_len)
        for seed, (batch, query_len, key_len) in enumerate(lengths)
    ]


def same_on(problems: Iterable[Problem], bugs: Sequence[Bug], others: Sequence[Bug]) -> bool:
    """Whether two sets of bugs give the same outputs, to 1e-6, wherever the first can be made."""
    compared = 0
    for problem in problems:
        wanted = _output(problem, bugs)
        if wanted is None:
            continue
        made = _output(problem, others)
        if made is None or not np.allclose(made, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max(), equal_nan=True):
            return False
        compared += 1
    return compared > 0


def _output(problem: Problem, bugs: Sequence[Bug]) -> NDArray | None:
    forward, _ = pipelines(*bugs)
    inputs = replace(problem.inputs, cotangent=None)
    try:
        return reference.run(problem.config, problem.weights, inputs, forward=forward).output
    except DoesNotApply:
        return None


def measured(*bugs: Bug, probes: Sequence[str], zoo: Sequence[Bug] | None = (), alone: bool = True) -> Measured:
    """What probes of these ids show of a layer with bugs; without a zoo, so that all is measured."""
    return measure(OutputAlone(*bugs), zoo=zoo, probes=select_probes(probes, alone=alone))


def is_right(found: Measured, bugs: Sequence[Bug], problems: Iterable[Problem], *, among: int = 3) -> bool:
    """Whether everything is explained, and one of the first models is the layer's fault."""
    problems = list(problems)
    return not found.unexplained and any(same_on(problems, bugs, model) for model in found.models[:among])


def said(found: Measured) -> str:
    """What is said of each model, for the message of a test that fails."""
    left = [outcome.probe.id for outcome in found.unexplained]
    return f"not explained: {left}; models: {[[bug.id for bug in model] for model in found.models]}"
