"""Proof that cutting heads is masking them: run and compared, in every backend and in the live model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import Expected, answer
from mha.heads.gates import embed, without
from mha.heads.live import cut_live
from mha.heads.prune import cut, cut_inputs, kept_in, masked_inputs
from mha.heads.subject import Layer, Subject
from mha.port.moved import allowed_move
from mha.recipes import record
from mha.recipes.judge import judge_trace
from mha_core.backend import Backend
from mha_core.errors import one_line

PROOF_TEXTS = 2
"""Texts, the shortest ones, on which a live model's layers are compared."""


@dataclass(frozen=True, eq=False)
class Pair:
    """One layer and one call: what must come with heads masked, and with heads cut, each with its bound."""

    layer: Layer
    masked: Expected
    cut: Expected

    @property
    def slack(self) -> NDArray[np.float64]:
        """The sum of both bounds of the output."""
        return np.asarray(self.masked.allowed_error["output"] + self.cut.allowed_error["output"])

    @property
    def smaller(self) -> Layer:
        """The layer that is left."""
        problem = self.cut.problem
        return Layer(self.layer.name, problem.config, problem.weights, self.layer.dtype)


def pairs_of(subject: Subject, kept: Sequence[Collection[int]]) -> list[Pair]:
    """The first call of each layer, masked and cut; of a live model on its shortest texts."""
    found = []
    for layer, heads, problem in zip(subject.layers, kept, _problems(subject), strict=True):
        precision = Precision.of(layer.dtype)
        whole = Problem(layer.config, layer.weights, masked_inputs(layer.config, problem.inputs, heads))
        smaller = Problem(*cut(layer.config, layer.weights, heads), cut_inputs(layer.config, problem.inputs, heads))
        found.append(Pair(layer, answer(whole, precision), answer(smaller, precision)))
    return found


def prove(
    pairs: Sequence[Pair], backends: Sequence[Backend], progress: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Run masked and cut layers in every backend, and compare them.

    Returns:
        For each backend a dict: `backend`; `worst`, the largest error / allowed error of all layers (of the masked
        and the cut layer each by the reference, and of their difference by the sum of both bounds); `difference`, the
        largest of the outputs; `failed`, why it gave no answer, or ""; and `equal`.
    """
    found = []
    for backend in backends:
        progress(f"{backend.name}: cut = masked")
        worst, difference, failed = np.inf, np.inf, ""
        try:
            worst, difference = _apart(pairs, backend)
        except Exception as error:  # whatever a framework raises; the other backends still run
            failed = one_line(error)
        about = {"backend": backend.name, "worst": worst, "difference": difference, "failed": failed}
        found.append({**about, "equal": worst <= 1.0})
    return found


def _apart(pairs: Sequence[Pair], backend: Backend) -> tuple[float, float]:
    """The largest error / allowed error, and the largest difference of the outputs."""
    worst, difference = 0.0, 0.0
    for pair in pairs:
        outputs = []
        for wanted in (pair.masked, pair.cut):
            problem, dtype = wanted.problem, pair.layer.dtype
            trace = backend.prepare(problem.config, problem.weights, dtype=dtype)(problem.inputs)
            worst = max(worst, judge_trace(trace, wanted, dtype).worst)
            assert trace.output is not None
            outputs.append(trace.output.astype(np.float64))
        apart, slack = np.abs(outputs[0] - outputs[1]), pair.slack
        over = np.divide(apart, slack, out=np.where(apart > 0, np.inf, 0.0), where=slack > 0)
        worst = max(worst, float(over.max(initial=0.0)))
        difference = max(difference, float(apart.max(initial=0.0)))
    return worst, difference


def prove_live(subject: Subject, pairs: Sequence[Pair], removed: NDArray[np.bool_]) -> dict[str, Any]:
    """The embeddings of one batch with heads masked, and of the same model with heads cut; the model stays whole.

    Returns:
        `difference`, the largest of the embeddings; `allowed`, how far errors within the layers' bounds move them;
        `identical`, whether they are the same bits; and `equal`.
    """
    live, batch = subject.live, proof_batch(subject)
    assert live is not None
    masked = embed(live, [batch], removed)
    with cut_live(live.sites, kept_in(subject, removed)):
        smaller = live.encoder.embed(batch)
    with without(live, removed):
        slacks = [(site, pair.slack) for site, pair in zip(live.sites, pairs, strict=True)]
        allowed = allowed_move(live.encoder, batch, slacks, masked)
    difference, identical = float(np.abs(masked - smaller).max()), bool((masked == smaller).all())
    return {
        "difference": difference,
        "allowed": allowed,
        "identical": identical,
        "equal": difference <= allowed,
    }


def proof_batch(subject: Subject) -> Any:
    """The shortest texts of a live model, as a batch of their own."""
    first = subject.batches[0]
    length = int(first["attention_mask"][:PROOF_TEXTS].sum(dim=-1).max())
    return {name: tensor[:PROOF_TEXTS, :length] for name, tensor in first.items()}


def _problems(subject: Subject) -> list[Problem]:
    live = subject.live
    if live is None:
        return [calls[0].problem for calls in subject.calls]
    batch = proof_batch(subject)
    _, problems = record(live.sites, lambda: live.encoder.embed(batch))
    return [problems[site.name][0] for site in live.sites]
