"""Port a trained model: each call of its attention functions in every backend, and the whole model with each backend.

The proof has three parts. What the model's own attention functions give agrees with the definition of what they are
handed, call by call, within the computed bound. So does what every backend gives for the same calls. And with a
backend's attention in the place of the model's own, the model's outputs move no further than errors within those bounds
can move them. A decoder also goes on with the texts, token by token, through each backend.

What stands before and behind an attention function is the model's own throughout, and is not judged.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.diagnosis.brief import describe
from conformance.diagnosis.diagnose import diagnose
from conformance.judging.expected import Expected, answer
from conformance.subjects.backend import BackendSubject
from mha.coverage import Coverage, Survey, kind_of
from mha.port.arrays import LoadedArrays
from mha.port.model import TrainedModel
from mha.recipes.judge import Judgement, judge_original, judge_trace
from mha.recordings.at_seam import intercepted, prove
from mha.recordings.explain import explain
from mha.recordings.hooks import hooks_of
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha.seam.function import computed_by
from mha.undetectable_bugs.find import UndetectableBugs, undetectable_bugs
from mha_core import AttentionConfig, SpecError
from mha_core.backend import Backend, Run
from mha_core.errors import one_line
from mha_core.heads import split_heads
from mha_core.seam import AttentionCall, Handle, Handover

ORIGINAL = "original"
"""Name of the model's own modules, among the names of backends."""

TOKENS = 20
"""How many tokens a decoder goes on with."""

DRAWS = 8
"""The number of times that all outputs are moved by their bounds, with other signs each time."""

DIAGNOSED = 6
"""The most of a backend's differing calls that a diagnosis looks at; more tell little and take long."""

SCHEMA_VERSION = 3


@dataclass(frozen=True)
class LayerResult:
    """A comparison of one call of an attention function with the reference; the model or a backend computed the call.

    Attributes:
        layer: the name of the module that makes the call, with a number if it makes several.
        by: what computed the call: ORIGINAL, or the name of a backend.
        equal: whether every intermediate array (scores, weights, ...) is within its bound.
        ratio: the largest error / allowed error in these arrays.
        error: largest difference of the output from the reference.
        messages: a line on each array that exceeds its bound, or on why nothing was computed.
    """

    layer: str
    by: str
    equal: bool
    ratio: float
    error: float
    messages: tuple[str, ...] = ()

    @classmethod
    def of(cls, layer: str, by: str, found: Judgement) -> Self:
        messages = tuple(mismatch.message for mismatch in found.mismatches)
        return cls(layer, by, found.equal, found.worst, found.error, messages)


@dataclass(frozen=True)
class EmbeddingResult:
    """A comparison of two outputs of a model: with one backend's attention in it, and with its own attention.

    Attributes:
        by: the name of the backend.
        difference: the largest difference between the two outputs.
        allowed: how much the outputs may differ if the error in each attention call is within its bound.
        cosine: the smallest cosine similarity of an item's two outputs, over all items.
    """

    by: str
    difference: float
    allowed: float
    cosine: float

    @property
    def equal(self) -> bool:
        """Return whether the embeddings differ by no more than `allowed`."""
        return self.difference <= self.allowed


@dataclass(frozen=True)
class PortReport:
    """A report by `port` on a model that ran with each backend's attention.

    Attributes:
        tokens: the number of tokens of each text; () if arrays were given.
        arrays: where each parameter of the model comes from, and which arrays of its files were ignored; None if it was
            not loaded from files.
        coverage: which of the modules that look like attention made calls that were recorded.
        unread: name of a module -> why its attention function could not be replaced by a backend's.
        rows_without_key: how many queries in the model's own calls were not compared, because they are fully masked.
        failed: name of a backend -> why it computed nothing.
        diagnoses: ORIGINAL or a backend with wrong numbers -> the first wrong array and the bug that explains it.
        versions: ORIGINAL or backend -> package -> version.
        unseen: bugs that would not have changed these calls noticeably; None if they were not looked for.
        outputs: what the model returns, in words: sentence embeddings, logits of the last token, or outputs.
        continued: ORIGINAL or backend -> the model's continuation of each text with this attention; {} for an encoder.
        interrupted: whether the user ended the run before the report was complete.
    """

    model: str
    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    arrays: LoadedArrays | None
    coverage: Coverage
    unread: dict[str, str]
    rows_without_key: int
    dtype: str
    heads: tuple[int, ...]
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
        """Return whether all layers and embeddings are equal within their bounds, and all continuations the same."""
        within = all(one.equal for one in self.layers) and all(one.equal for one in self.embeddings)
        return within and len(set(self.continued.values())) <= 1

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict of JSON values."""
        fields = asdict(self)
        fields["embeddings"] = [{**asdict(found), "equal": found.equal} for found in self.embeddings]
        return {
            "schema": SCHEMA_VERSION,
            "equal": self.equal,
            **fields,
            "arrays": None if self.arrays is None else self.arrays.to_dict(),
            "coverage": self.coverage.to_dict(),
            "unseen": None if self.unseen is None else self.unseen.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class _Call:
    """One call with the reference's answer to it, and the comparison of the model's own output with that.

    `slack` (B, H, Lq, dv) is how far the model's own output and a backend's may differ.
    """

    name: str
    kind: str
    problem: Problem
    wanted: Expected
    original: Judgement
    slack: NDArray


@dataclass
class _Seen:
    """The calls of one run, in order; None for one that can't be read."""

    calls: list[tuple[str, Any, Problem | None]] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str, module: Any, handover: Handover | SpecError) -> None:
        try:
            if isinstance(handover, SpecError):
                raise handover
            read = handover.read()
            self.calls.append((name, module, Problem(read.config, read.weights, read.inputs, read.outputs)))
        except SpecError as error:
            self.calls.append((name, module, None))
            self.unread.setdefault(name, str(error))

    def named(self) -> Iterator[tuple[str, str, Problem]]:
        """Yield name, class and problem of each call that was read; the name has a number if there are several."""
        often = Counter(name for name, _, problem in self.calls if problem is not None)
        met: Counter[str] = Counter()
        for name, module, problem in self.calls:
            if problem is None:
                continue
            met[name] += 1
            shown = name or "the model"
            kind = "a function" if module is None else kind_of(module)
            yield (f"{shown}#{met[name]}" if often[name] > 1 else shown), kind, problem


def port(
    trained: TrainedModel,
    given: Sequence[str] | Mapping[str, NDArray],
    backends: Sequence[Backend],
    *,
    dtype: str = "float32",
    strict: bool = False,
    unseen: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    verdicts: Callable[[str], None] = lambda line: None,
) -> PortReport:
    """Return a report on a model that runs on texts or arrays with each backend's attention in place of its own.

    If the user interrupts the run after the model's own calls were compared, the report has what was done so far.

    Args:
        trained: the model, loaded in `dtype`.
        given: texts, or arrays by the names of the model's arguments.
        backends: the backends that compute, on the CPU.
        dtype: the dtype in which model and backends compute.
        strict: True to raise SpecError if the calls of a module that looks like attention were not recorded.
        unseen: whether to search for known bugs that would not have changed these outputs noticeably.
        progress: called with a text on the current step.
        verdicts: called with a line on the model's own result, then with one on each backend's.

    Raises:
        SpecError: the texts, the arrays or the model can't be used.
    """
    texts = () if isinstance(given, Mapping) else tuple(given)
    batch = trained.given(given) if isinstance(given, Mapping) else trained.batch(texts)
    hooks = hooks_of(trained.model)

    def run(handle: Handle) -> NDArray:
        with intercepted(hooks, trained.model, handle):
            return trained.run(batch)

    progress("running the model")
    seen = _Seen()
    outputs = run(lambda call: call.recorded(seen))
    coverage = _coverage(trained.model, seen)
    if strict:
        coverage.check()
    calls = []
    for name, kind, problem in seen.named():
        progress(f"reference: {name}")
        calls.append(_judged(name, kind, problem, dtype))
    if not calls:
        raise SpecError(_none(trained, seen, coverage))
    if not np.isfinite(outputs).all():
        raise SpecError(f"{trained.name} gives what is no finite number, so nothing can be compared with it")
    allowed = _allowed_move(run, seen, calls, outputs)
    results = [LayerResult.of(call.name, ORIGINAL, call.original) for call in calls]
    ported, failed, diagnoses = [], {}, {}
    goes_on = {ORIGINAL: trained.continued(batch, TOKENS)} if trained.goes_on and texts else {}
    interrupted, not_shown = False, None
    verdicts(_counted(results, ORIGINAL))
    try:
        wrong = [call for call in calls if not call.original.equal]
        if wrong:
            progress("diagnosis of the model's own attention")
            diagnoses[ORIGINAL] = describe(explain(_recording(wrong[:DIAGNOSED], dtype))[0])
        for backend in backends:
            progress(f"{backend.name}: layers")
            try:
                found = [_by(backend, call, dtype) for call in calls]
                progress(f"{backend.name}: the whole model")
                handle = computed_by(partial(_prepared, backend), seen.unread)
                again = run(handle)
                if goes_on:
                    progress(f"{backend.name}: {TOKENS} tokens")
                    with intercepted(hooks, trained.model, handle):
                        goes_on[backend.name] = trained.continued(batch, TOKENS)
            except Exception as error:  # whatever a framework raises; the other backends still run
                failed[backend.name] = one_line(error)
                verdicts(f"{backend.name} did not run: {failed[backend.name]}")
                continue
            results += [LayerResult.of(call.name, backend.name, each) for call, each in zip(calls, found, strict=True)]
            difference = float(np.abs(again - outputs).max())
            cosine = float(_cosines(again, outputs).min())
            ported.append(EmbeddingResult(backend.name, difference, allowed, cosine))
            through = "equal" if ported[-1].equal else "different"
            verdicts(f"{_counted(results, backend.name)}; {trained.outputs} {through}")
            differing = [call for call, each in zip(calls, found, strict=True) if not each.equal]
            if differing:
                diagnoses[backend.name] = _diagnosed(backend, differing[:DIAGNOSED], dtype, progress)
        if unseen:
            not_shown = undetectable_bugs(_recording(calls, dtype), progress=progress)
    except KeyboardInterrupt:
        interrupted = True
    return PortReport(
        model=trained.name,
        texts=texts,
        tokens=tuple(int(mask.sum()) for mask in batch["attention_mask"]) if texts else (),
        arrays=trained.arrays,
        coverage=coverage,
        unread=seen.unread,
        rows_without_key=sum(call.original.rows_without_key for call in calls),
        dtype=dtype,
        heads=tuple(sorted({call.problem.config.num_heads for call in calls})),
        layers=tuple(results),
        embeddings=tuple(ported),
        failed=failed,
        diagnoses=diagnoses,
        versions={
            ORIGINAL: {package: version(package) for package in ("torch", "transformers")},
            **{backend.name: backend.versions() for backend in backends},
        },
        unseen=not_shown,
        outputs=trained.outputs,
        continued=goes_on,
        interrupted=interrupted,
    )


def _counted(results: Sequence[LayerResult], by: str) -> str:
    """How many layers are equal by these results, in a line."""
    own = [one for one in results if one.by == by]
    equal = sum(one.equal for one in own)
    return f"{by}: {equal} of {len(own)} layers equal, worst {max((one.ratio for one in own), default=0.0):.2g}"


def _cosines(a: NDArray, b: NDArray) -> NDArray:
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.divide((a * b).sum(axis=-1), norms, out=np.ones_like(norms), where=norms > 0.0)


def _coverage(model: Any, seen: _Seen) -> Coverage:
    """Which modules that look like attention had a call of their attention function that was read."""
    read = {id(module): name for name, module, problem in seen.calls if problem is not None}
    survey = Survey(hooks_of(model).parts_of)
    for name, module in model.named_modules():
        survey.meet(name, module, known=id(module) in read)
    return survey.coverage(list(dict.fromkeys(read.values())))


def _none(trained: TrainedModel, seen: _Seen, coverage: Coverage) -> str:
    """Why nothing of a model can be judged, and what can be done instead, in words."""
    if seen.unread:
        name, why = next(iter(seen.unread.items()))
        return f"{trained.name}: {name or 'the model'} can't be judged: {why}"
    kinds = ", ".join(dict.fromkeys(one.kind.rpartition(".")[2] for one in coverage.unread)) or "none that has its name"
    return (
        f"{trained.name} calls no attention function that can be seen: its attention ({kinds}) has a softmax of its "
        "own, or its implementation is compiled. `mha where` compares it with a port, module by module"
    )


def _judged(name: str, kind: str, problem: Problem, dtype: str) -> _Call:
    """The call, judged by the bound that backends have; by that of PyTorch's fused kernel only if it is over that."""
    wanted = answer(problem, Precision.of(dtype))
    own, allowed = judge_original(problem, Precision.of(dtype), wanted), wanted.allowed_error["output"]
    if own.equal:
        slack = 2.0 * allowed
    else:
        proof = prove(problem, dtype, ratios=True)
        own, problem, slack = proof.judgement, proof.problem, proof.wanted.allowed_error["output"] + allowed
    return _Call(name, kind, problem, wanted, own, split_heads(slack, problem.config.num_heads))


def _allowed_move(run: Callable[[Handle], NDArray], seen: _Seen, calls: Sequence[_Call], outputs: NDArray) -> float:
    """How far the outputs may move: every call's output is moved by what it may be off, with random signs."""
    rng = np.random.default_rng(0)
    rest = iter(calls)
    slacks = [None if problem is None else next(rest).slack for _, _, problem in seen.calls]

    def moved() -> float:
        order = iter(slacks)

        def handle(call: AttentionCall) -> Any:
            slack = next(order)
            if slack is None:
                return call.run()
            own = call.read()(call.run()).output
            assert own is not None
            return call.give((own + rng.choice([-1.0, 1.0], size=slack.shape) * slack).astype(own.dtype))

        return float(np.abs(run(handle) - outputs).max())

    return max(moved() for _ in range(DRAWS))


def _prepared(backend: Backend, config: AttentionConfig, dtype: str) -> Run:
    return backend.prepare(config, {}, dtype=dtype)


def _by(backend: Backend, call: _Call, dtype: str) -> Judgement:
    """One call in a backend, compared with the reference."""
    run = _prepared(backend, call.problem.config, dtype)
    return judge_trace(run(call.wanted.problem.inputs), call.wanted, dtype)


def _recording(calls: Sequence[_Call], dtype: str) -> Recording:
    """What the model's own attention functions were handed and gave, as a Recording."""
    layers = tuple(RecordedLayer(one.name, one.kind, dtype, one.problem.config, {}) for one in calls)
    recorded = (RecordedCall(i, one.problem.inputs, one.problem.recorded) for i, one in enumerate(calls))
    return Recording(layers, tuple(recorded))


def _diagnosed(backend: Backend, calls: Sequence[_Call], dtype: str, progress: Callable[[str], None]) -> str:
    """Diagnose a backend that differs on these calls, and describe the result in words."""
    why, topic = "a layer of a trained model", "a layer on its real inputs"
    cases = [Case.of_problem(call.name, topic, call.problem, why) for call in calls]
    return describe(diagnose(BackendSubject(backend, dtype, "cpu"), cases, experiments=True, progress=progress))
