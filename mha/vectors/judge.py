"""Judge answers: a folder of files, each the output to one vector, against what the vectors' own files allow."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.diagnosis.diagnose import Diagnosis, diagnose
from conformance.judging.compare import Mismatch, check_values
from conformance.subjects.ask import CannotExpress
from conformance.zoo.bug import Bug
from mha.recordings.replay import call_digest
from mha.vectors.table import size_of
from mha.vectors.tensors import FLOATS, from_file
from mha.vectors.write import FORMAT, MANIFEST, digest_of
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, RotaryInputs, SpecError, Trace
from mha_core.backend import Run
from mha_core.call.call import FLOATS as OF_CALL
from mha_core.call.rotary import ARRAYS as OF_ROTARY
from mha_core.dtypes import check_held, storage_dtype
from mha_core.errors import meant, shown
from mha_core.files.outside import parse_json_object
from mha_core.heads import merge_heads
from mha_core.stages import is_gradient
from mha_core.weights import Weights


@dataclass(frozen=True)
class Verdict:
    """A verdict on the answer to one test vector (a call with its right result).

    Attributes:
        id, form, case, dtype: of the vector.
        status: "equal", "differs", "refused" (the answer's file is cut off, or has other arrays) or "not answered".
        ratio: the largest error / allowed error; None if nothing was compared.
        message: a line on the mistake; "" if there is none.
        judged: the names of the arrays that were compared.
    """

    id: str
    form: str
    case: str
    dtype: str
    status: str
    ratio: float | None = None
    message: str = ""
    judged: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Judgement:
    """A judgement of answers. `diagnoses`: one per dtype with wrong answers. `strangers`: files of no known vector."""

    made_by: str
    digest: str
    verdicts: tuple[Verdict, ...]
    diagnoses: tuple[Diagnosis, ...]
    strangers: tuple[str, ...]

    def of(self, *statuses: str) -> list[Verdict]:
        """Return the verdicts of these statuses."""
        return [one for one in self.verdicts if one.status in statuses]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dict of JSON values, with each diagnosis in words."""
        from conformance.diagnosis.brief import brief

        return {
            "schema": 1,
            "made_by": self.made_by,
            "digest": self.digest,
            "verdicts": [{**asdict(one), "judged": list(one.judged)} for one in self.verdicts],
            "diagnoses": [brief(one).to_dict() for one in self.diagnoses],
            "strangers": list(self.strangers),
        }


OF_ROW = frozenset(["id", "form", "case", "dtype", "purpose", "features", "config", "call", "asks", "sha256"])
ID = re.compile(r"[a-z0-9.-]+")
"""What is read of a row of the manifest; and an id, which is the name of a file."""


class Folder:
    """A folder of test vectors. Raises SpecError, in one line, if a file is missing or was changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / MANIFEST).is_file():
            raise SpecError(f"{path} is no folder of vectors: it has no {MANIFEST} (mha vectors --out makes one)")
        self.manifest = parse_json_object((path / MANIFEST).read_bytes(), what=str(path / MANIFEST))
        form = self.manifest.get("format")
        if form != FORMAT:
            raise SpecError(f"{path} has vectors of format {shown(repr(form))}, and this version reads {FORMAT}")
        if digest_of(self.manifest) != self.manifest.get("digest"):
            raise SpecError(f"{path / MANIFEST} is not as it was written: its digest is another")
        self.rows: list[dict[str, Any]] = self.manifest.get("vectors", [])
        for row in self.rows:
            if not isinstance(row, dict) or not set(row) >= OF_ROW or not ID.fullmatch(str(row["id"])):
                raise SpecError(f"{path / MANIFEST} has a row that is none of a vector: {shown(repr(row))}")
            file = self.file_of(row)
            if not file.is_file():
                raise SpecError(f"{file} is missing, which {MANIFEST} lists")
            if hashlib.sha256(file.read_bytes()).hexdigest() != row["sha256"]:
                raise SpecError(f"{file} is not as it was written: its digest is another")

    def file_of(self, row: Mapping[str, Any]) -> Path:
        """Return the path of a vector's file."""
        return self.path / f"{row['id']}.safetensors"

    def arrays(self, row: Mapping[str, Any]) -> dict[str, NDArray]:
        """Return the arrays of a vector's file, by name."""
        return {name: array for name, (_, array) in from_file(self.file_of(row)).items()}


def judge(folder: Folder, answers: Path, progress: Callable[[str], None] = lambda what: None) -> Judgement:
    """Judge every answer in a folder, and search for bugs that explain the wrong ones.

    Raises:
        SpecError: the folder does not exist, or no file in it answers a test vector.
    """
    if not answers.is_dir():
        raise SpecError(f"there is no folder of answers {answers}")
    ids = [row["id"] for row in folder.rows]
    there = sorted(file.stem for file in answers.glob("*.safetensors"))
    strangers = tuple(name for name in there if name not in set(ids))
    if len(strangers) == len(there):
        near = f": {strangers[0]}.safetensors{meant(strangers[0], ids)}" if strangers else ""
        raise SpecError(f"{answers} has no file ID.safetensors with the id of a vector, such as {ids[0]}{near}")
    verdicts, given = [], {}
    for row in folder.rows:
        said = {name: row[name] for name in ("id", "form", "case", "dtype")}
        file = answers / f"{row['id']}.safetensors"
        if not file.is_file():
            verdicts.append(Verdict(**said, status="not answered"))
            continue
        vector = folder.arrays(row)
        try:
            answer = answer_in(file, row, vector)
        except (SpecError, OSError) as error:
            verdicts.append(Verdict(**said, status="refused", message=str(error)))
            continue
        ratios, wrong = compared(answer, vector)
        status = "differs" if wrong else "equal"
        message = wrong[0].message if wrong else ""
        verdicts.append(Verdict(**said, status=status, ratio=max(ratios), message=message, judged=tuple(answer)))
        given[row["id"]] = row, vector, answer
    diagnoses = explained(verdicts, given, progress)
    said = folder.manifest
    return Judgement(str(said["made_by"]), str(said["digest"]), tuple(verdicts), tuple(diagnoses), strangers)


def answer_in(file: Path, row: Mapping[str, Any], vector: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Return the arrays in an answer's file, cast to the vector's dtype. `row`: the vector's row in the manifest.

    Raises:
        SpecError: the file has no output, an array that is not asked for, or one of another shape or dtype.
    """
    read = from_file(file)
    if "output" not in read:
        raise SpecError(f"{file} has no array 'output' (it has: {shown(', '.join(sorted(read))) or 'none'})")
    if strange := [name for name in read if name not in row["asks"]]:
        raise SpecError(
            f"{file} has {shown(strange[0])!r}, which is not asked for (asked for: {', '.join(row['asks'])})"
        )
    found = {}
    for name in (name for name in row["asks"] if name in read):
        code, array = read[name]
        shape = vector[f"expected/{name}"].shape
        if array.shape != shape:
            raise SpecError(f"{file}: {name} must have shape {shape}. Got {array.shape}.")
        if code not in FLOATS.values():
            raise SpecError(f"{file}: {name} must be {FLOATS[row['dtype']]}. Got {code}.")
        check_held(f"{file}: {name}", array, row["dtype"])
        found[name] = array.astype(storage_dtype(row["dtype"]))
    return found


def compared(answer: Mapping[str, NDArray], vector: Mapping[str, NDArray]) -> tuple[list[float], list[Mismatch]]:
    """Return (largest error / allowed error of each array, a Mismatch for each wrong array)."""
    found = []
    for name, array in answer.items():
        allowed = vector[f"allowed/{name}"].astype(np.float64)
        found.append(check_values(name, array, vector[f"expected/{name}"], allowed, np.isfinite(allowed)))
    return [ratio for ratio, _ in found], [wrong for _, wrong in found if wrong is not None]


def problem_of(row: Mapping[str, Any], vector: Mapping[str, NDArray]) -> Problem:
    """Return the call of a vector in terms of the definition."""

    def of(kind: str) -> dict[str, NDArray]:
        return {name.partition("/")[2]: array for name, array in vector.items() if name.startswith(kind)}

    config, call, given = AttentionConfig.from_dict(row["config"]), row["call"], of("inputs/")
    offset = call["query_offset"]
    mask = AttentionMask(
        **{name: given.get(name) for name in ("valid_lens", "allowed", "bias")},
        causal=call["causal"],
        query_offset=np.array(offset) if isinstance(offset, list) else offset,
        window=None if call["window"] is None else tuple(call["window"]),
    )
    rotary = {name: given[name] for name in OF_ROTARY if name in given}
    own: dict[str, Any] = {name: given.get(name) for name in (*OF_CALL, "dropout_keep", "cotangent") if name != "bias"}
    if row["form"] == "heads" and own["cotangent"] is not None:
        own["cotangent"] = merge_heads(own["cotangent"])
    inputs = AttentionInputs(**own, mask=mask, rotary=RotaryInputs(**rotary) if rotary else None)
    return Problem(config, of("weights/"), inputs)


@dataclass(frozen=True, eq=False)
class Answers:
    """A stand-in for a backend: it returns the answers to test vectors of one dtype, and refuses other calls."""

    dtype: str
    given: Mapping[bytes, Trace]
    name: str = "answers"
    device: str = "cpu"
    recorded: ClassVar[bool] = True

    @cached_property
    def precision(self) -> Precision:
        return Precision.of(self.dtype)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            found = self.given.get(call_digest(config, weights, inputs))
            if found is None:
                raise CannotExpress("it was not answered")
            return found

        return run


Answered = tuple[Mapping[str, Any], Mapping[str, NDArray], Mapping[str, NDArray]]
"""The row of a vector, its arrays, and the answer."""

SOME = 16
"""Most answers that are right, and that are not, on which the whole zoo is tried; what is found is tried on all of the
dtype, and in other dtypes on all that are wrong and so many that are right."""


def explained(
    verdicts: Sequence[Verdict], given: Mapping[str, Answered], progress: Callable[[str], None]
) -> list[Diagnosis]:
    """Return a Diagnosis for each dtype with wrong answers. In later dtypes, only bugs of the first are tried."""
    found: list[Diagnosis] = []
    bugs: tuple[Bug, ...] | None = None
    differ = {one.id for one in verdicts if one.status == "differs"}
    for dtype in dict.fromkeys(one.dtype for one in verdicts if one.id in differ):
        cases, traces = [], {}
        for id, answered in given.items():
            if answered[0]["dtype"] == dtype:
                case, trace = asked(*answered)
                cases.append((case, id in differ))
                traces[call_digest(*_call_of(case))] = trace
        subject = Answers(dtype, traces)
        cases.sort(key=lambda one: size_of(one[0]))
        wrong, right = ([case for case, is_wrong in cases if is_wrong is kind] for kind in (True, False))
        if bugs is None:
            first = diagnose(subject, [*_spread(wrong), *_spread(right)], progress=progress)
            told = (*first.explanations, *first.partly, *first.closest)
            bugs = tuple(dict.fromkeys(bug for one in told for bug in one.bugs))
        some = _spread(right) if found else right
        found.append(diagnose(subject, [*wrong, *some], bugs=bugs, progress=progress))
    return found


def _spread(cases: Sequence[Case]) -> list[Case]:
    """SOME of the cases, small and large; all of them if there are no more."""
    return [cases[number * len(cases) // SOME] for number in range(SOME)] if len(cases) > SOME else list(cases)


def _call_of(case: Case) -> tuple[AttentionConfig, Weights, AttentionInputs]:
    problem = case.build()
    return problem.config, problem.weights, problem.inputs


def asked(row: Mapping[str, Any], vector: Mapping[str, NDArray], answer: Mapping[str, NDArray]) -> tuple[Case, Trace]:
    """Return (the test vector as a Case of the test suite, its answer as a Trace)."""
    problem = problem_of(row, vector)
    trace = Trace.of_arrays(dict(_as_defined(row, answer)))
    if trace.gradients is None:
        problem = problem.with_inputs(cotangent=None)
    return Case.of_problem(f"{row['form']}-{row['case']}", row["purpose"], problem, "it is a vector"), trace


def _as_defined(row: Mapping[str, Any], answer: Mapping[str, NDArray]) -> Iterator[tuple[str, NDArray]]:
    """The arrays of an answer in the shapes of the definition; gradients only if all of them are there."""
    whole = {name for name in row["asks"] if is_gradient(name)} <= set(answer)
    for name, array in answer.items():
        if name == "output" and row["form"] == "heads":
            yield name, merge_heads(array)
        elif whole or not is_gradient(name):
            yield name, array
