"""The suite "onnx": every backend, and ONNX's own expected numbers, judged on ONNX's test vectors.

Both sides are compared with the reference under its computed bounds, so that two sides that agree with
it agree with each other. A vector is used once, in its own dtype; a backend that does not compute in
that dtype gets its numbers in float32, which can represent them all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, ClassVar

from conformance.bounds.precision import Precision
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.onnx.vectors import Vector, as_numpy, load_vectors
from conformance.subjects.backend import BackendSubject, paths_to_check
from conformance.subjects.function import OtherDtype
from conformance.subjects.load import load_subject
from conformance.subjects.subject import Subject
from mha_core import AttentionConfig, AttentionInputs, Rotary, RotaryInputs, SpecError, Trace
from mha_core.backend import Backend, Run
from mha_core.dtypes import round_to
from mha_core.heads import merge_heads, split_heads
from mha_core.reference import pipeline as reference
from mha_core.weights import Weights

SUITE = "onnx"


@dataclass(frozen=True)
class VectorSubject:
    """A subject that computes nothing: it returns the outputs that ONNX expects of one test vector."""

    problem: Problem
    dtype: str
    name: str = "onnx"
    device: str = "cpu"
    recorded: ClassVar[bool] = True

    @property
    def precision(self) -> Precision:
        # ONNX's evaluator computes every step in the dtype of the inputs.
        return replace(Precision.of(self.dtype), softmax=self.dtype)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            recorded: dict[str, Any] = dict(self.problem.recorded)
            if "output" not in recorded:
                # ONNX recorded scores alone: the reference's output stands in for the one that it has not.
                recorded["output"] = reference.run(config, weights, inputs).output
            rounded: dict[str, Any] = {name: round_to(array, self.dtype) for name, array in recorded.items()}
            return Trace(**rounded)

        return run


CATCHES = "what ONNX's test vector of this name tests"


@dataclass(frozen=True)
class VectorCase:
    """One problem of one vector, and the case made of it."""

    vector: Vector
    case: Case
    problem: Problem


def onnx_cases(names: Sequence[str] = ()) -> list[VectorCase]:
    """Return ONNX's test vectors as cases with ids "onnx:NAME". `names`: the ids of those to return; () for all.

    Raises:
        SpecError: onnx is not installed; a vector is not known, or can't be translated.
    """
    vectors: list[Vector] = [
        *load_vectors(Vector, "Attention", "test_attention_"),
        *load_vectors(RotaryVector, "RotaryEmbedding", "test_"),
    ]
    known = {f"{SUITE}:{vector.name}" for vector in vectors}
    for name in names:
        if name not in known:
            raise SpecError(f"case {name!r} is not known; `mha check --suite onnx --list` lists them")
    found = []
    for vector in vectors:
        if names and f"{SUITE}:{vector.name}" not in names:
            continue
        for part, problem in vector.problems().items():
            case = Case.of_problem(f"{SUITE}:{vector.name}{part}", CATCHES, problem, "ONNX's choice")
            found.append(VectorCase(vector, case, problem))
    return found


def runs(
    cases: Sequence[VectorCase],
    backends: Sequence[Backend],
    specs: Sequence[str] = (),
    path: str | None = None,
    load: Callable[[str, str], Subject] = load_subject,
) -> list[tuple[Case, Subject]]:
    """Return every pair (case, subject). Subjects are ONNX's recorded outputs, the backends, and the layers in `specs`.

    `path`: the path (a way to run a layer) that all backends take; None: the default paths of each backend.
    `load(spec, dtype)` returns the subject that a spec (MODULE:NAME) names.
    """
    load = cache(load)
    made: list[Callable[[VectorCase], Subject]] = [lambda one: VectorSubject(one.problem, one.vector.dtype)]
    made += [partial(_backend_subject, backend, one) for backend in backends for one in paths_to_check(backend, path)]
    made += [partial(_own_subject, load, spec) for spec in specs]
    return [(one.case, make(one)) for make in made for one in cases]


def _backend_subject(backend: Backend, path: str | None, one: VectorCase) -> Subject:
    dtype = one.vector.dtype if one.vector.dtype in backend.dtypes("cpu") else "float32"
    return BackendSubject(backend, dtype, "cpu", path)


def _own_subject(load: Callable[[str, str], Subject], spec: str, one: VectorCase) -> Subject:
    try:
        return load(spec, one.vector.dtype)
    except OtherDtype:
        return load(spec, "float32")


# ONNX's own test vectors of its RotaryEmbedding operator, as problems of this definition.
#
# What the operator turns is given as queries and as keys to a layer without projections. Its tables are random numbers,
# not cosine and sine of an angle.


KNOWN = ("interleaved", "num_heads", "rotary_embedding_dim")


@dataclass(frozen=True, eq=False)
class RotaryVector(Vector):
    """One test case of RotaryEmbedding."""

    def problems(self) -> dict[str, Problem]:
        """Return {"": the vector's problem}. Raises SpecError if the vector has an attribute that is not known here."""
        self.check("attribute", self.attributes, KNOWN)
        x, cos, sin = (as_numpy(self.inputs[name]) for name in ("input", "cos_cache", "sin_cache"))
        (turned,) = map(as_numpy, self.outputs.values())
        num_heads = x.shape[1] if x.ndim == 4 else int(self.attributes["num_heads"])
        if x.ndim == 3:
            x, turned = split_heads(x, num_heads), split_heads(turned, num_heads)
        if "position_ids" in self.inputs:
            places = self.inputs["position_ids"]
            cos, sin = cos[places], sin[places]
        settings = Rotary(
            self.attributes.get("rotary_embedding_dim") or x.shape[3],
            interleaved=bool(self.attributes.get("interleaved", 0)),
        )
        width = num_heads * x.shape[3]
        config = AttentionConfig(width, num_heads, projections=False, rotary=settings)
        queries, keys, values = (merge_heads(x) for _ in range(3))
        inputs = AttentionInputs(queries, keys, values, rotary=RotaryInputs(cos=cos, sin=sin))
        return {"": Problem(config, {}, inputs, {"queries": turned, "keys": turned})}
