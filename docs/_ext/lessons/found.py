"""What the judge says of the seeds' mistakes that lessons show, from a run of this build."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.table import all_cases
from conformance.diagnosis.brief import describe
from conformance.diagnosis.diagnose import diagnose
from conformance.runner import run_case
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import Run
from mha_core.reference import pipeline as reference
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State
from mha_core.weights import Weights

SOFTMAX_CASES = ("ragged-square", "prime", "causal", "valid-lens-per-query", "one-loud-item", "weights-x20-inputs-x3")


@dataclass(frozen=True)
class Shown:
    """A layer of a lesson as a subject; `run` gives its trace, of which the output alone is looked at."""

    name: str
    run: Callable[[AttentionConfig, Weights, AttentionInputs], Trace]

    dtype, device, precision = "float64", "cpu", Precision.of("float64")

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        return lambda inputs: Trace(output=self.run(config, weights, inputs).output)


def _textbook_softmax(state: State) -> NDArray:
    """The maximum is that of the whole array, and rows without a key are not looked after."""
    scores = np.where(state["allowed"], state["scores"], -np.inf)
    powers = np.exp(scores - scores.max())
    return powers / powers.sum(axis=-1, keepdims=True)


def _broadcast(config: AttentionConfig, weights: Weights, inputs: AttentionInputs) -> Trace:
    """A right layer behind the script's positions, (L, D) + (L, 1, D), of 0 so that nothing but their shape matters."""
    _, length, width = inputs.queries.shape
    x = np.stack([(item + np.zeros((length, 1, width))).reshape(-1, width) for item in inputs.queries])
    return reference.run(config, weights, AttentionInputs(x, x, x))


def softmax() -> str:
    """The diagnosis of the textbook's softmax."""
    cases = {case.id: case for case in all_cases()}
    run = partial(reference.run, forward={**FORWARD, "weights": _textbook_softmax})
    return describe(diagnose(Shown("the textbook's softmax", run), [cases[id] for id in SOFTMAX_CASES]))


def positions() -> str:
    """What is said of the script's output."""
    case = next(case for case in all_cases() if case.id == "square-self-attention")
    result = run_case(case, Shown("the script", _broadcast))
    return f"{case.id}: {result.status}\n" + "\n".join(mismatch.message for mismatch in result.mismatches)


FOUND = {"softmax": softmax, "positions": positions}
