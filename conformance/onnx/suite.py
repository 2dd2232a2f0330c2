"""The suite "onnx": every backend, and ONNX's own expected numbers, judged on ONNX's test vectors.

Both sides are compared with the reference under its computed bounds, so that two sides that agree with
it agree with each other. A vector is used once, in its own dtype; a backend that does not compute in
that dtype gets its numbers in float32, which can represent them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, ClassVar

from conformance.bounds.precision import Precision
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.onnx.rotary import rotary_vectors
from conformance.onnx.vectors import Vector, load_vectors
from conformance.subjects.backend import BackendSubject, paths_to_check
from conformance.subjects.function import OtherDtype
from conformance.subjects.load import load_subject
from conformance.subjects.subject import Subject
from mha_core import AttentionConfig, AttentionInputs, SpecError, Trace
from mha_core.backend import Backend, Run
from mha_core.dtypes import round_to
from mha_core.reference import pipeline as reference
from mha_core.weights import Weights

SUITE = "onnx"


@dataclass(frozen=True)
class VectorSubject:
    """A subject that returns ONNX's expected outputs of one test vector."""

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
    """Return every vector's problems as cases, with ids "onnx:NAME"; with `names` only these vectors.

    Raises:
        SpecError: onnx is not installed; a vector is not known, or can't be translated.
    """
    vectors: list[Vector] = [*load_vectors(Vector, "Attention", "test_attention_"), *rotary_vectors()]
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
    """Return (case, subject) for every run: each case on ONNX's outputs, on every backend and on all in `specs`.

    Backends run on `path`, or on their default paths; a spec is MODULE:NAME, and `load(spec, dtype)` makes
    a subject of it.
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
