"""Port a trained model: its real inputs and outputs, each attention layer in every backend, and the whole model again.

The proof has three parts. The outputs of the model's own modules agree with the reference, layer by layer,
within the computed bound. So do the outputs of every backend on the inputs of those modules. And with a
backend's layers in place of the model's own, the sentence embeddings, or the logits of a decoder, move no further than
errors within those bounds can move them. A decoder also goes on with the texts, token by token, through each backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.diagnosis.brief import describe
from conformance.diagnosis.diagnose import diagnose
from conformance.judging.expected import Expected, answer
from conformance.subjects.backend import BackendSubject
from mha.coverage import Coverage
from mha.port.arrays import LoadedArrays
from mha.port.decoder import Decoder, padded
from mha.port.encoder import Encoder
from mha.port.moved import allowed_move
from mha.recipes import Site, record, replaced, survey
from mha.recipes.judge import Judgement, judge_original, judge_trace
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha.undetectable_bugs.find import UndetectableBugs, undetectable_bugs
from mha_core import SpecError
from mha_core.backend import Backend
from mha_core.errors import one_line
from mha_core.layouts.conventions import with_pairs

ORIGINAL = "original"
"""Name of the model's own modules, among the names of backends."""

TOKENS = 20
"""How many tokens a decoder goes on with."""

AS_IN_FILE = "file"
"""Stands after a backend's name where rows have the order of the file."""

DIAGNOSED = 6
"""How many of a backend's differing layers a diagnosis looks at; more tell little and take long."""

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class LayerResult:
    """The comparison of one layer, computed by the model itself or by one backend, with the reference.

    Attributes:
        layer: its name within the model.
        by: ORIGINAL, or a backend.
        equal: whether every stage is within its bound.
        ratio: worst error / allowed error of all stages.
        error: largest difference of the output from the reference.
        messages: every stage that is over its bound, or why nothing was computed.
    """

    layer: str
    by: str
    equal: bool
    ratio: float
    error: float
    messages: tuple[str, ...] = ()

    @classmethod
    def of(cls, layer: str, by: str, found: Judgement) -> LayerResult:
        messages = tuple(mismatch.message for mismatch in found.mismatches)
        return cls(layer, by, found.equal, found.worst, found.error, messages)


@dataclass(frozen=True)
class EmbeddingResult:
    """The comparison of sentence embeddings, or logits, with one backend's layers in the model to the model's own.

    Attributes:
        by: the backend.
        difference: largest difference of any number in them.
        allowed: how far errors within the bounds of all layers move them.
        cosine: the smallest cosine of a text's two embeddings, or of its logits.
    """

    by: str
    difference: float
    allowed: float
    cosine: float

    @property
    def equal(self) -> bool:
        """Whether the embeddings differ by no more than `allowed`."""
        return self.difference <= self.allowed


@dataclass(frozen=True)
class PortReport:
    """The result of `port`.

    Attributes:
        tokens: the number of tokens of each text.
        arrays: where each parameter of the model comes from, and the arrays of its files that were left out.
        coverage: which modules that look like attention were read, and which were not.
        failed: backend -> why it gave no answer.
        diagnoses: backend that differs -> which stage and which bug explains it, in words.
        versions: ORIGINAL or backend -> package -> version.
        unseen: which bugs these calls would not have shown; None if they were not looked for.
        outputs: what the model gives: sentence embeddings, or logits of the last token.
        continued: ORIGINAL or backend -> what it goes on with after each text; empty for an encoder.
        interrupted: whether the user ended it before all was there.
    """

    model: str
    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    arrays: LoadedArrays
    coverage: Coverage
    dtype: str
    num_heads: int
    layers: tuple[LayerResult, ...]
    embeddings: tuple[EmbeddingResult, ...]
    failed: dict[str, str]
    diagnoses: dict[str, str]
    versions: dict[str, dict[str, str]]
    unseen: UndetectableBugs | None = None
    outputs: str = "sentence embeddings"
    continued: dict[str, tuple[str, ...]] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def equal(self) -> bool:
        """Whether all layers and embeddings are equal within their bounds, and all continued texts are the same."""
        within = all(one.equal for one in self.layers) and all(one.equal for one in self.embeddings)
        return within and len(set(self.continued.values())) <= 1

    def to_dict(self) -> dict[str, Any]:
        """The report as a dict of JSON values."""
        fields = asdict(self)
        fields["embeddings"] = [{**asdict(found), "equal": found.equal} for found in self.embeddings]
        return {
            "schema": SCHEMA_VERSION,
            "equal": self.equal,
            **fields,
            "arrays": self.arrays.to_dict(),
            "coverage": self.coverage.to_dict(),
            "unseen": None if self.unseen is None else self.unseen.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class _Layer:
    """One layer with its recorded call, the reference's answer to it, and the comparison of the module's own output.

    `slack` (B, Lq, Do) is how far the module's own output and a backend's may differ.
    """

    site: Site
    problem: Problem
    wanted: Expected
    original: Judgement
    slack: NDArray


def port(
    encoder: Encoder | Decoder,
    texts: Sequence[str],
    backends: Sequence[Backend],
    *,
    dtype: str = "float32",
    strict: bool = False,
    unseen: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    verdicts: Callable[[str], None] = lambda line: None,
) -> PortReport:
    """Port every attention layer of `encoder` into every backend, on these texts.

    An interrupt by the user, once the model's own layers are judged, ends it with what is there.

    Args:
        encoder: an encoder or a decoder, loaded in `dtype`.
        texts: the texts to embed, or to go on with.
        backends: the backends that compute the layers, on the CPU.
        dtype: the dtype in which model and backends compute.
        strict: whether modules that look like attention and have no recipe are an error.
        unseen: whether to find out which bugs of the zoo the layers' outputs would not have shown.
        progress: is told, in words, what is being done.
        verdicts: is told, in a line, what came of the model's own layers and of each backend, as it comes.

    Raises:
        SpecError: the texts or the model can't be used.
    """
    progress("embedding the texts")
    batch = encoder.batch(texts)
    sites, coverage = survey(encoder.model)
    if strict:
        coverage.check()
    embeddings, calls = record(sites, lambda: encoder.embed(batch))
    layers = []
    for site in sites:
        progress(f"reference: {site.name}")
        layers.append(_layer(site, calls[site.name], dtype))
    allowed = allowed_move(encoder, batch, [(layer.site, layer.slack) for layer in layers], embeddings)
    results = [LayerResult.of(layer.site.name, ORIGINAL, layer.original) for layer in layers]
    ported, failed, diagnoses = [], {}, {}
    goes_on = {} if isinstance(encoder, Encoder) else {ORIGINAL: encoder.continued(batch, TOKENS)}
    interrupted, not_shown = False, None
    verdicts(_counted(results, ORIGINAL))
    try:
        for backend in backends:
            progress(f"{backend.name}: layers")
            try:
                runs = [backend.prepare(one.problem.config, one.problem.weights, dtype=dtype) for one in layers]
                found = [
                    judge_trace(run(layer.wanted.problem.inputs), layer.wanted, dtype)
                    for run, layer in zip(runs, layers, strict=True)
                ]
                progress(f"{backend.name}: the whole model")
                with ExitStack() as stack:
                    for layer, run in zip(layers, runs, strict=True):
                        stack.enter_context(replaced(layer.site, run))
                    again = encoder.embed(batch)
                if not isinstance(encoder, Encoder):
                    progress(f"{backend.name}: the rows as the file has them, and {TOKENS} tokens")
                    beside = layers if encoder.pairs_beside else []
                    found += [_as_in_the_file(layer, backend, dtype) for layer in beside]
                    with ExitStack() as stack:
                        for layer, run in zip(layers, runs, strict=True):
                            stack.enter_context(replaced(layer.site, padded(run)))
                        goes_on[backend.name] = encoder.continued(batch, TOKENS)
            except Exception as error:  # whatever a framework raises; the other backends still run
                failed[backend.name] = one_line(error)
                verdicts(f"{backend.name} did not run: {failed[backend.name]}")
                continue
            names = [backend.name] * len(layers) + [f"{backend.name} {AS_IN_FILE}"] * (len(found) - len(layers))
            results += [
                LayerResult.of(layer.site.name, by, each)
                for layer, by, each in zip(layers * (len(found) // len(layers)), names, found, strict=True)
            ]
            difference = float(np.abs(again - embeddings).max())
            cosine = float(_cosines(again, embeddings).min())
            ported.append(EmbeddingResult(backend.name, difference, allowed, cosine))
            through = "equal" if ported[-1].equal else "different"
            verdicts(f"{_counted(results, backend.name)}; {encoder.outputs} {through}")
            if not all(each.equal for each in found):
                differing = [layer for layer, each in zip(layers, found, strict=False) if not each.equal]
                diagnoses[backend.name] = _diagnosed(backend, differing[:DIAGNOSED], dtype, progress)
        if unseen:
            not_shown = undetectable_bugs(_recording(layers, dtype), progress=progress)
    except KeyboardInterrupt:
        interrupted = True
    return PortReport(
        model=encoder.name,
        texts=tuple(texts),
        tokens=tuple(int(mask.sum()) for mask in batch["attention_mask"]),
        arrays=encoder.arrays,
        coverage=coverage,
        dtype=dtype,
        num_heads=layers[0].problem.config.num_heads,
        layers=tuple(results),
        embeddings=tuple(ported),
        failed=failed,
        diagnoses=diagnoses,
        versions={
            ORIGINAL: {package: version(package) for package in ("torch", "transformers")},
            **{backend.name: backend.versions() for backend in backends},
        },
        unseen=not_shown,
        outputs=encoder.outputs,
        continued=goes_on,
        interrupted=interrupted,
    )


def _counted(results: Sequence[LayerResult], by: str) -> str:
    """How many layers are equal by these results, in a line."""
    own = [one for one in results if one.by.removesuffix(f" {AS_IN_FILE}") == by]
    equal = sum(one.equal for one in own)
    return f"{by}: {equal} of {len(own)} layers equal, worst {max((one.ratio for one in own), default=0.0):.2g}"


def _cosines(a: NDArray, b: NDArray) -> NDArray:
    return (a * b).sum(axis=-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


def _as_in_the_file(layer: _Layer, backend: Backend, dtype: str) -> Judgement:
    """A layer with rows of pairs (2 k, 2 k + 1), as a GGUF file has them, in a backend, on the same inputs."""
    problem = layer.problem
    config, weights = with_pairs(problem.config, problem.weights, interleaved=True)
    turned = Problem(config, weights, problem.inputs)
    wanted = answer(turned, Precision.of(dtype))
    return judge_trace(backend.prepare(config, weights, dtype=dtype)(wanted.problem.inputs), wanted, dtype)


def _recording(layers: Sequence[_Layer], dtype: str) -> Recording:
    """The inputs and outputs of the model's own modules as a Recording."""
    held = tuple(
        RecordedLayer(one.site.name, type(one.site.module).__name__, dtype, one.problem.config, one.problem.weights)
        for one in layers
    )
    calls = (RecordedCall(i, one.problem.inputs, one.problem.recorded) for i, one in enumerate(layers))
    return Recording(held, tuple(calls))


def _layer(site: Site, calls: list[Problem], dtype: str) -> _Layer:
    if len(calls) != 1:
        raise SpecError(f"{site.name} must be called once for a batch of texts. It was called {len(calls)} times.")
    (problem,) = calls
    precision = site.precision(dtype)
    own = answer(problem, precision)
    wanted = answer(problem, Precision.of(dtype))
    slack = own.allowed_error["output"] + wanted.allowed_error["output"]
    return _Layer(site, problem, wanted, judge_original(problem, precision, own), slack)


def _diagnosed(backend: Backend, layers: Sequence[_Layer], dtype: str, progress: Callable[[str], None]) -> str:
    """Diagnose a backend that differs on these layers' real inputs, and describe the result in words."""
    why, topic = "a layer of a trained model", "a layer on its real inputs"
    cases = [Case.of_problem(layer.site.name, topic, layer.problem, why) for layer in layers]
    return describe(diagnose(BackendSubject(backend, dtype, "cpu"), cases, experiments=True, progress=progress))
