"""A report with everything in it: equal results, wrong numbers, NaN, wrong shapes, errors, and markup in names."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.bounds.precision import Precision
from conformance.cases.table import select
from conformance.reports.text import to_json
from conformance.subjects.backend import ReferenceSubject
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.reference import pipeline as reference
from mha_core.weights import Weights
from tests.conformance.running import run_all

MARKUP = "<script>document.title='pwned'</script>"
ATTRIBUTE = '"><img src=x onerror="document.title=\'pwned\'">'
CASES = ("trained-first-layer", "prime", "valid-lens", "causal", "no-items", "nan-in-open-key")


@dataclass(frozen=True)
class AlteredReference:
    """The reference, with one function after it that breaks something."""

    name: str
    alter: Callable[[AttentionConfig, Trace], Trace]
    dtype: str = "float64"
    device: str = "cpu"

    @property
    def precision(self) -> Precision:
        return Precision.of(self.dtype)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Callable[[AttentionInputs], Trace]:
        return lambda inputs: self.alter(config, reference.run(config, weights, inputs))


def half_scores(config: AttentionConfig, trace: Trace) -> Trace:
    return replace(trace, scores=0.5 * trace.scores)


def nan_weights(config: AttentionConfig, trace: Trace) -> Trace:
    return replace(trace, weights=np.where(trace.weights == 0.0, np.nan, trace.weights))


def other_shape(config: AttentionConfig, trace: Trace) -> Trace:
    return Trace(output=trace.output.swapaxes(0, 1))


def fail(config: AttentionConfig, trace: Trace) -> Trace:
    raise RuntimeError(f"no kernel for {ATTRIBUTE} & co")


class Limited(AlteredReference):
    """It says what it can't do."""

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        return f"a causal mask {ATTRIBUTE}" if inputs.mask.causal else None


SUBJECTS = (
    ReferenceSubject(),
    AlteredReference(MARKUP, half_scores),
    AlteredReference("nan", nan_weights),
    AlteredReference("shape", other_shape, device="gpu:0"),
    AlteredReference("raises", fail),
    Limited("limited", lambda config, trace: Trace(output=trace.output)),
)


def sample_report() -> dict[str, Any]:
    """Real results of these subjects."""
    return to_json(run_all(select(CASES), SUBJECTS), {"reference": {"numpy": np.__version__}, MARKUP: {"x": ATTRIBUTE}})
