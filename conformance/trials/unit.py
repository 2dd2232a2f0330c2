"""Layers that the diagnosis is tried on, each by its id, and a trial as work for a worker process.

1-17, 1-17x2, 1-17g     drawn layers, as in `made`; 1-17r takes only some calls
zoo:ID                  the reference with a bug of the zoo, of which only the output shows (or the gradients)
rewritten:NUMBER        a known bug written anew into another layer, from the tests of this repository
right:NAME:DTYPE        a right layer: a formulation of `conformance.calibration`, or a backend
native:NAME:DTYPE       a framework's own layer, by the name of its entry point: right but for its known deviations
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from itertools import groupby
from pathlib import Path
from typing import Any

import conformance
from conformance.bounds.precision import Precision
from conformance.calibration.formulations import FORMULATIONS, formulation
from conformance.cases.table import all_cases
from conformance.deviations.known import ENTRY_POINT_GROUP, load
from conformance.diagnosis.diagnose import Diagnosis, Runs, diagnose
from conformance.measure.search.measure import measure
from conformance.subjects.backend import BackendSubject
from conformance.subjects.load import DEFAULT_TIME_LIMIT
from conformance.subjects.subject import Subject
from conformance.trials.faults import BACKWARD
from conformance.trials.judge import Known, Verdict, answer_of, judge
from conformance.trials.made import Trial, of_id
from conformance.workers import Unit
from conformance.workers.described import describe_backend, describe_subject
from conformance.workers.interpreters import NUMPY, Home, Settings
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import all_bugs
from mha_core import AttentionConfig, AttentionInputs, BackendError, SpecError, Trace
from mha_core.backend import Backend, Run, names
from mha_core.errors import one_line
from mha_core.files.declared import declared
from mha_core.weights import Weights

ZOO, REWRITTEN, RIGHT, NATIVE = "zoo", "rewritten", "right", "native"
"""How ids begin, except those of drawn layers."""

TESTS = "tests.conformance.diagnosis.bugs_in_other_code"
"""The module of the known bugs that were written anew."""

RIGHT_DTYPES = ("float64", "float32")

NATIVES, NATIVE_DTYPE = "mha.subjects", "float32"
"""The group of the entry points of native layers, and the dtype in which all of them compute."""

CPU = "cpu"

TOGETHER = 4
"""Items of one unit."""


@dataclass(frozen=True)
class Outcome:
    """The result of one trial.

    Attributes:
        id, kind, words: of the layer: the kind of its first fault, and what is wrong.
        verdict: the judgement; None if the diagnosis failed, for the reason `failed`.
        seconds, busy: how long the diagnosis took, and the processor time of it.
    """

    id: str
    kind: str
    words: str
    verdict: Verdict | None
    seconds: float = 0.0
    busy: float = 0.0
    failed: str = ""

    @property
    def group(self) -> str:
        """Its row in the table: singles, pairs, triples, restricted, gradients, or how its id begins."""
        if ":" in self.id:
            return self.id.partition(":")[0]
        if self.id.endswith("r"):
            return "restricted"
        return "gradients" if self.id.endswith("g") else {"x2": "pairs", "x3": "triples"}.get(self.id[-2:], "singles")


@dataclass(frozen=True)
class OutputOnly:
    """Another subject without its stages: it gives the output, and the gradients if `gradients`."""

    subject: Subject
    gradients: bool = False
    name: str = field(default="layer")

    device = "cpu"

    @property
    def dtype(self) -> str:
        return self.subject.dtype

    @property
    def precision(self) -> Precision:
        return self.subject.precision

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """As the subject."""
        inner = self.subject.prepare(config, weights)

        def run(inputs: AttentionInputs) -> Trace:
            trace = inner(inputs if self.gradients else replace(inputs, cotangent=None))
            return Trace(output=trace.output, gradients=trace.gradients if self.gradients else None)

        return run


def ids_of_zoo() -> list[str]:
    """One for each bug that differs."""
    return [f"{ZOO}:{bug.id}" for bug in all_bugs() if not bug.equivalent]


def ids_of_rewritten() -> list[str]:
    """One for each known bug that was written anew. Raises SpecError outside a checkout of the repository."""
    return [f"{REWRITTEN}:{number}" for number in range(len(_rewritten()))]


def ids_of_right() -> list[str]:
    """One for each right layer.

    Not those with one product for all projections: there a NaN among the keys reaches the queries, as a case shows.
    """
    names = [name for name, ways in FORMULATIONS.items() if not ways.packed]
    return [f"{RIGHT}:{name}:{dtype}" for dtype in RIGHT_DTYPES for name in names]


def ids_of_backends(backends: Iterable[Backend]) -> list[str]:
    """One for each backend in each of its dtypes."""
    return [f"{RIGHT}:{backend.name}:{dtype}" for backend in backends for dtype in backend.dtypes(CPU)]


def ids_of_natives(backends: Iterable[Backend]) -> list[str]:
    """One for each layer of the backends' frameworks."""
    folders = [declared(ENTRY_POINT_GROUP, "a table of deviations")[backend.name].value for backend in backends]
    specs = {point.value: name for name, point in reversed(_natives().items())}  # one may have several names
    return [f"{NATIVE}:{name}:{NATIVE_DTYPE}" for spec, name in specs.items() if spec.startswith(tuple(folders))]


def _natives() -> dict[str, EntryPoint]:
    return declared(NATIVES, "a framework's own layer")


def home_of(id: str) -> str:
    """The name of the `Home` in which it is tried: its backend's, that of its subject, or NUMPY."""
    name = id.split(":")[1] if id.startswith((f"{RIGHT}:", f"{NATIVE}:")) else ""
    if id.startswith(f"{NATIVE}:"):
        return _natives()[name].value if name in _natives() else NUMPY
    return name if name in names() and name not in FORMULATIONS else NUMPY


def found_by(id: str) -> tuple[Trial | Known, Subject]:
    """(truth, subject) of an id. Raises SpecError for an unknown id."""
    sort, _, rest = id.partition(":")
    if sort == ZOO:
        bug = next((bug for bug in all_bugs() if bug.id == rest), None)
        if bug is None:
            raise SpecError(f"bug {rest!r} is not known; `mha bugs` lists them")
        gradients = bug.stage == BACKWARD
        known = Known(id, bug.id, bug.sentence, frozenset((bug.stage,)), bug.stage, gradients)
        return known, OutputOnly(BuggySubject(bug), gradients, name=id)
    if sort == REWRITTEN:
        subjects = _rewritten()
        if not rest.isdecimal() or int(rest) >= len(subjects):
            raise SpecError(f"rewritten bugs have numbers from 0 to {len(subjects) - 1}. Got {rest!r}.")
        one = subjects[int(rest)]
        stage = next(bug.stage for bug in all_bugs() if bug.id == one.bug)
        gradients = stage == BACKWARD
        return Known(id, one.bug, one.bug, frozenset((stage,)), stage, gradients), one.showing(gradients=gradients)
    if sort == RIGHT:
        name, _, dtype = rest.partition(":")
        right = Known(id, None, "nothing is wrong", frozenset(), f"{RIGHT}, {dtype}")
        if home_of(id) == NUMPY:
            return right, OutputOnly(formulation(name, dtype), name=name)
        return right, OutputOnly(_of_backend(name, dtype), gradients=True, name=name)
    if sort == NATIVE:
        name, _, dtype = rest.partition(":")
        if name not in _natives():
            raise SpecError(f"a native layer {name!r} is not known (known: {', '.join(sorted(_natives()))})")
        native = Known(id, None, "nothing is wrong but what is listed", frozenset(), f"{NATIVE}, {dtype}")
        return native, describe_subject(_natives()[name].value, dtype, DEFAULT_TIME_LIMIT, Settings())
    trial = of_id(id)
    return trial, trial.subject()


def _of_backend(name: str, dtype: str) -> Subject:
    try:
        backend = describe_backend(name, Settings())
    except BackendError as error:
        raise SpecError(str(error)) from error
    if dtype not in backend.dtypes(CPU):
        raise SpecError(f"{name} has no dtype {dtype!r} on {CPU} (it has: {', '.join(backend.dtypes(CPU))})")
    return BackendSubject(backend, dtype, CPU)


def _rewritten() -> list[Any]:
    root = str(Path(conformance.__file__).parents[1])
    if root not in sys.path:
        sys.path.append(root)  # an installed program does not look where its checkout is
    try:
        module = importlib.import_module(TESTS)
    except ImportError as error:
        raise SpecError(f"the bugs written anew are in {TESTS}: run this in a checkout of the repository") from error
    return [*module.KNOWN, *module.BACKWARD]


_runs: dict[str, Runs] = {}
"""In the worker: dtype -> the runs of the zoo's bugs, which are the same for every subject."""


def kind_of(truth: Trial | Known) -> str:
    """The kind of the first fault, by which trials are counted."""
    return truth.faults[0].kind if isinstance(truth, Trial) else truth.kind


def tried(id: str, runs: Runs | None = None, *, experiments: bool = True) -> tuple[Outcome, Diagnosis]:
    """Diagnose the layer of an id, and judge the diagnosis.

    Args:
        id: of the layer.
        runs: runs of the zoo's bugs from an earlier diagnosis in the same dtype.
        experiments: whether the diagnosis asks the layer more than the cases.
    """
    truth, subject = found_by(id)
    cases = [case for case in all_cases() if not case.expensive]
    began, worked = time.perf_counter(), time.process_time()  # of all threads: a search has its own
    diagnosis = diagnose(subject, cases, runs=runs, experiments=experiments)
    if experiments and isinstance(truth, Known) and truth.bug is None and not diagnosis.failing:
        # The diagnosis runs no probe on a layer that is right in every case; here each probe must find it right.
        diagnosis = replace(diagnosis, measured=measure(subject))
    busy, seconds = time.process_time() - worked, time.perf_counter() - began
    verdict = judged(truth, subject, diagnosis)
    return Outcome(id, kind_of(truth), truth.words, verdict, seconds, busy), diagnosis


def judged(truth: Trial | Known, subject: Subject, diagnosis: Diagnosis) -> Verdict:
    """The verdict, with three rules for layers that were not drawn.

    A bug of the zoo is described if it is named. Of a right layer every claim is wrong. Of a native layer a difference
    is right if its deviation is listed for that case.
    """
    verdict = judge(truth, subject, diagnosis)
    if not isinstance(truth, Known):
        return verdict
    if truth.id.startswith(NATIVE) and diagnosis.failing:
        table = load()
        listed = all(table.listed_for(subject, case, subject.dtype) for case in diagnosis.failing)
        right = listed and not diagnosis.findings
        return replace(verdict, stage=right, described=right, wrong=not right)
    if truth.bug is None:
        measured = diagnosis.measured
        said = bool(diagnosis.failing or diagnosis.findings) or not verdict.silent
        said |= measured is not None and (measured.differs or any(measured.models))
        return replace(verdict, differs=said, stage=not said, described=not said, wrong=said)
    answer = answer_of(diagnosis)
    named = any(bug.id == truth.bug for claim in (*answer.confident, *answer.partly) for bug in claim.bugs or ())
    described = verdict.described or named
    # A rewritten bug is in a layer that differs in other ways too (in empty rows, say), perhaps at an earlier stage.
    stage = verdict.stage or (named and truth.id.startswith(REWRITTEN))
    return replace(verdict, stage=stage, described=described, wrong=verdict.wrong and not described)


@dataclass(frozen=True)
class TrialUnit(Unit):
    """Some ids, diagnosed with or without experiments; the answer of each is its Outcome."""

    ids: tuple[str, ...]
    experiments: bool = True

    @property
    def home(self) -> Home:
        return Home(home_of(self.ids[0]), time_limit=600.0)

    def __len__(self) -> int:
        return len(self.ids)

    def run(self, start: int) -> Iterator[Outcome]:
        for id in self.ids[start:]:
            dtype = id.rpartition(":")[2] if id.startswith((RIGHT, NATIVE)) else "float64"
            try:
                yield tried(id, _runs.setdefault(dtype, Runs()), experiments=self.experiments)[0]
            except Exception as error:  # counted as failed; the other trials go on
                yield Outcome(id, kind_of(truth := found_by(id)[0]), truth.words, None, failed=one_line(error))

    def lost(self, item: int, reason: str) -> Outcome:
        return Outcome(self.ids[item], "", "", None, failed=reason)


def units_of(ids: Sequence[str], *, experiments: bool = True) -> list[TrialUnit]:
    """The ids in units, in their order."""
    found = []
    for _, group in groupby(ids, home_of):
        of_home = tuple(group)
        found += [of_home[start : start + TOGETHER] for start in range(0, len(of_home), TOGETHER)]
    return [TrialUnit(some, experiments) for some in found]
