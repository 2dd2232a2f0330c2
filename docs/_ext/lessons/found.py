"""What the judge says of the seeds' mistakes that lessons show, from a run of this build."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.table import all_cases
from conformance.diagnosis.diagnose import diagnose
from conformance.diagnosis.text import describe
from conformance.runner import run_case
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import Run
from mha_core.reference import pipeline as reference
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State
from mha_core.weights import Weights

SOFTMAX_CASES = ("ragged-square", "prime", "causal", "valid-lens-per-query", "one-loud-item", "weights-x20-inputs-x3")


class TextbookSoftmax:
    """A layer that is right but for the textbook's softmax."""

    name, dtype, device = "the textbook's softmax", "float64", "cpu"
    precision = Precision.of("float64")

    @staticmethod
    def softmax(state: State) -> NDArray:
        """The maximum is that of the whole array, and rows without a key are not looked after."""
        scores = np.where(state["allowed"], state["scores"], -np.inf)
        powers = np.exp(scores - scores.max())
        return powers / powers.sum(axis=-1, keepdims=True)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            trace = reference.run(config, weights, inputs, forward={**FORWARD, "weights": self.softmax})
            return Trace(output=trace.output)

        return run


class Broadcast:
    """A right layer behind the script's positions, of 0 here, so that nothing but their shape matters."""

    name, dtype, device = "the script", "float64", "cpu"
    precision = Precision.of("float64")

    @staticmethod
    def with_positions(words: NDArray) -> NDArray:
        """(B, L, D) -> (B, L * L, D): for each item (L, D) + (L, 1, D)."""
        positions = np.zeros((words.shape[1], 1, words.shape[2]))
        return np.stack([(item + positions).reshape(-1, words.shape[2]) for item in words])

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            x = self.with_positions(inputs.queries)
            return Trace(output=reference.run(config, weights, AttentionInputs(x, x, x)).output)

        return run


def softmax() -> str:
    """The diagnosis of the textbook's softmax."""
    cases = {case.id: case for case in all_cases()}
    return describe(diagnose(TextbookSoftmax(), [cases[id] for id in SOFTMAX_CASES]))


def positions() -> str:
    """What is said of the script's output."""
    case = next(case for case in all_cases() if case.id == "square-self-attention")
    result = run_case(case, Broadcast())
    return f"{case.id}: {result.status}\n" + "\n".join(mismatch.message for mismatch in result.mismatches)


FOUND = {"softmax": softmax, "positions": positions}
