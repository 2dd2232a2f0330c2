"""A learner's whole layer: its file runs in the process of its framework, and is judged as `mha check --subject` does,
in a process of ours, the first cases first.
"""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.case_unit import CaseUnit
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.cases.sequence import Asked
from conformance.cases.table import all_cases, all_sequences
from conformance.judging.result import Result
from conformance.subjects import in_time
from conformance.subjects.answers import CannotExpress, SubjectFailed
from conformance.subjects.load import LoadedSubject, load_subject
from conformance.workers.described import RemoteSubject
from conformance.workers.execute import call
from conformance.workers.interpreters import Settings
from conformance.zoo.bug import Bug
from conformance.zoo.registry import all_bugs
from conformance.zoo.registry import select as select_bugs
from mha.learn.exercise import NUMPY, LayerExercise
from mha.learn.exercises import all_exercises, exercise
from mha.learn.running.attempt import Beginning, Unfit, captured, found
from mha.learn.running.classes import ClassSubject
from mha.learn.running.promises import PROMISES
from mha.learn.running.workshop import ask, home
from mha.learn.tracks.own import OF_LAYERS
from mha_core import AttentionConfig, AttentionInputs, AttentionMask
from mha_core.backend import Run
from mha_core.call.masks import allowed_keys
from mha_core.errors import SpecError, shown
from mha_core.reference import pipeline as reference
from mha_core.weights import Weights

SECONDS = 10.0
"""Seconds that one case may take."""


def dtype_of(dialect: str) -> str:
    """Return the dtype in which a layer is tested: "float64" in NumPy, else "float32", the frameworks' default."""
    return "float64" if dialect == NUMPY else "float32"


@dataclass(frozen=True)
class Layered:
    """A verdict on a learner's layer.

    Attributes:
        result: the first result that is not right; None if all are.
        right: how many cases are right.
        unsupported: how many cases the layer can't express.
        reason: why the layer can't be run at all, in one line; "" if it can.
        printed: the beginning of what the file printed.
        unkept: a sentence on wrong parameters or dropout of a class, which no case reveals; "" if they are right.
    """

    result: Result | None = None
    right: int = 0
    unsupported: int = 0
    reason: str = ""
    printed: str = ""
    unkept: str = ""


def judged(dialect: str, path: str, subject: str, name: str, seconds: float = SECONDS) -> Layered:
    """Return the verdict on a learner's layer. Its cases run in the order of `cases_of`, up to the first that fails.

    Args:
        dialect: the framework of the layer, which decides what interpreter runs the layer.
        path: the learner's file.
        subject: the name of the layer in that file.
        name: the name of the exercise.
        seconds: how long one case may take.
    """
    reason, printed = ask(dialect, 30.0 * seconds, prepared, path, subject, dtype_of(dialect), seconds)
    if reason:
        return Layered(reason=reason, printed=printed)
    unkept = ask(dialect, seconds, unkept_by, path, "parameters")
    layered: Layered = Layered() if unkept else _worked(_judged, dialect, path, subject, name, seconds=seconds)
    if layered.result is None and not unkept:
        unkept = ask(dialect, seconds, unkept_by, path, "dropout")
    return replace(layered, printed=ask(dialect, seconds, printed_by, path), unkept=unkept)


Explained: TypeAlias = tuple[bool, tuple[tuple[Bug, ...], ...]]
"""Whether every case is explained, or nearly all that are wrong; and the bugs of each explanation."""


def diagnosed(
    dialect: str, path: str, exercise: LayerExercise, cases: tuple[str, ...], seconds: float = SECONDS
) -> Explained | str:
    """Return what `explained` returns for the layer in a learner's file. If it can't run, return the reason (a str)."""
    reason, _ = ask(dialect, 30.0 * seconds, prepared, path, exercise.subject, dtype_of(dialect), seconds)
    if reason:
        return str(reason)
    try:
        found: Explained = _worked(explained, dialect, path, exercise.subject, cases, exercise.alone, seconds=seconds)
    except SpecError as error:
        return shown(str(error), 300)
    return found


def _worked(work: Callable[..., Any], dialect: str, path: str, subject: str, *arguments: Any, seconds: float) -> Any:
    """Return the result of some work on a prepared layer, done in a process of ours."""
    if in_time.IS_ALONE:
        return work(layer_of(path), *arguments)
    return call(Settings(), work, _remote(dialect, path, subject, seconds), *arguments)


def unread(dialect: str, path: str, exercise: LayerExercise, case: str, seconds: float = SECONDS) -> tuple[str, ...]:
    """Return the names of inputs, masks and parameters that never change the output in `exercise.first` and `case`."""
    reason, _ = ask(dialect, 30.0 * seconds, prepared, path, exercise.subject, dtype_of(dialect), seconds)
    if reason:
        return ()
    try:
        arguments = (exercise.subject, exercise.name, case)
        names: tuple[str, ...] = _worked(_unread, dialect, path, *arguments, seconds=seconds)
    except (SpecError, SubjectFailed, CannotExpress):
        return ()
    return names


def _remote(dialect: str, path: str, subject: str, seconds: float) -> RemoteSubject:
    spec = f"{Path(path).stem}:{subject}"
    return RemoteSubject(
        spec=spec,
        name=subject,
        dtype=dtype_of(dialect),
        device="cpu",
        precision=Precision.of(dtype_of(dialect)),
        selector=f"--subject {spec}",
        origin=spec,
        limit=seconds,
        source=(f"{__name__}:{layer_of.__qualname__}", path),
        place=home(dialect).name,
    )


# In a process of ours ------------------------------------------------------------------------------------


def cases_of(one: LayerExercise) -> tuple[str | Asked, ...]:
    """Return a layer's test cases in order: the exercise's `first` and `own`, the test suite's, sequences of calls."""
    full = [case for case in all_cases() if _is_full(case) and not one.alone]
    sequences = [
        sequence
        for sequence in (all_sequences() if one.has_state else ())
        if all(_is_full(case) for step in sequence.steps() for case in (step.case, step.beside) if case is not None)
    ]
    return (*one.first, *one.own, *(case for case in full if case.id not in one.first), *sequences)


def _judged(subject: RemoteSubject | LoadedSubject, name: str) -> Layered:
    one = exercise(name)
    assert isinstance(one, LayerExercise)
    cases = cases_of(one)
    right = unsupported = 0
    for case, result in zip(cases, CaseUnit(subject, cases).run(0), strict=True):
        assert result is not None
        if result.status == "unsupported":
            unsupported += 1
            if case in (*one.first, *one.own):
                return Layered(result, right, unsupported)
        elif result.status != "equal":
            return Layered(result, right, unsupported)
        else:
            right += 1
    return Layered(None, right, unsupported)


def rehearsed(one: LayerExercise, path: str) -> Iterator[None]:
    """Run a right layer on its test cases, and yield after each. Later verdicts reuse what was computed for it."""
    prepared(path, one.subject, dtype_of(one.dialect))
    for _ in CaseUnit(layer_of(path), cases_of(one)).run(0):
        yield


def _unread(subject: RemoteSubject | LoadedSubject, name: str, case: str) -> tuple[str, ...]:
    one = exercise(name)
    assert isinstance(one, LayerExercise)
    asked = {*one.first, case}
    moved: dict[str, bool] = {}
    for problem in (_with_whole_mask(each.build()) for each in (*all_cases(), *one.own) if each.id in asked):
        mine, right = _output(subject, problem), _right(problem)
        if np.isnan(mine).all():  # anything may be its reason
            continue
        for argument, other in _with_others(problem, "mask" if "mask" in one.parameters else "allowed"):
            if not np.allclose(right, _right(other), equal_nan=True):
                moves = not np.allclose(mine, _output(subject, other), rtol=0.0, atol=1e-6, equal_nan=True)
                moved[argument] = moved.get(argument, False) or moves
    return tuple(argument for argument, moves in moved.items() if not moves)


def _with_whole_mask(problem: Problem) -> Problem:
    """The same problem with a mask of one array."""
    allowed = allowed_keys(problem.inputs.mask, problem.sizes, problem.config.num_heads)
    return replace(problem, inputs=replace(problem.inputs, mask=AttentionMask(allowed=allowed)))


def _output(subject: RemoteSubject | LoadedSubject, problem: Problem) -> NDArray:
    return np.asarray(subject.prepare(problem.config, problem.weights)(problem.inputs).output)


def _right(problem: Problem) -> NDArray:
    return np.asarray(reference.run(problem.config, problem.weights, problem.inputs).output)


def _with_others(problem: Problem, mask: str) -> Iterator[tuple[str, Problem]]:
    """Name of an argument, and the problem with another one in its place."""
    inputs, weights = problem.inputs, problem.weights
    for name in ("queries", "keys", "values"):
        other: Any = {name: np.roll(getattr(inputs, name), 1, -1)}
        yield name, replace(problem, inputs=replace(inputs, **other))
    rolled = AttentionMask(allowed=np.roll(inputs.mask.allowed, 1, -2))  # of the queries: what is padding stays so
    yield mask, replace(problem, inputs=replace(inputs, mask=rolled))
    for name, parameter in weights.items():
        yield f'weights["{name}"]', replace(problem, weights={**weights, name: np.roll(parameter, 1, -1)})


def _is_full(case: Case) -> bool:
    """Whether no array is empty: no exercise asks for empty ones."""
    return min(case.batch, case.query_len, case.key_len) > 0


def _own_cases() -> tuple[Case, ...]:
    """The cases of layers that are in no table, each once."""
    own = [case for one in all_exercises() if isinstance(one, LayerExercise) for case in one.own]
    return tuple({case.id: case for case in own}.values())


def explained(subject: RemoteSubject | LoadedSubject, cases: tuple[str, ...], keeps_padding: bool = False) -> Explained:
    """Return (whether all answers to these cases are explained, tuples of bugs: each tuple explains them by itself).

    Frequent mistakes are tried first, then all bugs. `keeps_padding`: bugs are also tried in a layer that does not zero
    padded rows. The returned bugs lack their functions, since these can't be sent to another process.
    """
    from conformance.diagnosis.diagnose import diagnose  # much to load, which a verdict does without

    asked = [case for case in (*all_cases(), *_own_cases()) if case.id in cases]
    found = diagnose(subject, asked, bugs=OF_LAYERS)
    if not found.explanations:
        found = diagnose(subject, asked)
    if keeps_padding and not found.explanations:
        beside = diagnose(subject, asked, bugs=_with_padding())
        found = beside if beside.explanations else found
    explanations = found.explanations or found.partly
    sent = {bug: replace(bug, forward={}, backward={}) for one in explanations for bug in one.bugs}
    return bool(found.explanations), tuple(tuple(sent[bug] for bug in one.bugs) for one in explanations)


def _with_padding() -> list[Bug]:
    """Each bug in a layer that computes with rows of padding as they are."""
    kept = select_bugs(("padding-not-zeroed",))[0]
    return [replace(bug, forward={**kept.forward, **bug.forward}) for bug in all_bugs() if bug.forward]


# In the process of the framework -------------------------------------------------------------------------


class _Quiet:
    """A subject whose prints are kept in `held`."""

    def __init__(self, subject: Any, held: Beginning) -> None:
        self.subject, self.held = subject, held

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        asked: Callable[..., str | None] | None = getattr(self.subject, "supports", None)
        with captured(self.held):
            return None if asked is None else asked(config, inputs)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        with captured(self.held):
            run: Run = self.subject.prepare(config, weights)

        def quietly(inputs: AttentionInputs) -> Any:
            with captured(self.held):
                return run(inputs)

        return quietly


_layers: dict[str, LoadedSubject] = {}
"""Path -> the subject of the file, as it was when it was last prepared."""


def prepared(path: str, subject: str, dtype: str, seconds: float = SECONDS) -> tuple[str, str]:
    """Import a file anew and keep its layer. Return (the reason if that failed, else ""; what the file printed)."""
    held = Beginning()
    with captured(held):
        try:
            loaded = _loaded(path, subject, dtype, seconds)
        except (SpecError, Unfit) as error:
            return shown(str(error), 300), held.getvalue()
    _layers[path] = replace(loaded, original=_Quiet(loaded.original, held))
    return "", held.getvalue()


def layer_of(path: str) -> LoadedSubject:
    """Return the layer (as a subject of tests) that `prepared` loaded from a file. SpecError if its process ended."""
    if path not in _layers:
        raise SpecError(
            f"{Path(path).name} is no longer loaded: its process was ended; ask again, or give it more time"
        )
    return _layers[path]


def printed_by(path: str) -> str:
    """Return the beginning of what a file's layer printed since `prepared` loaded it; "" if its process ended."""
    if path not in _layers:
        return ""
    quiet: _Quiet = _layers[path].original
    return quiet.held.getvalue()


def unkept_by(path: str, promise: str) -> str:
    """Return what is wrong with the "parameters" or "dropout" (`promise`) of a file's class; "" if nothing is."""
    quiet: _Quiet = layer_of(path).original
    if not isinstance(quiet.subject, ClassSubject):
        return ""
    with captured(quiet.held):
        return PROMISES[promise](type(quiet.subject).made, quiet.subject.dialect)


def _loaded(path: str, subject: str, dtype: str, seconds: float) -> LoadedSubject:
    """The subject of a file, imported anew."""
    found(path, subject)  # words for a file that is empty, or can't be imported
    file = Path(path)
    sys.modules.pop(file.stem, None)
    os.chdir(file.parent)
    if str(file.parent) in sys.path:
        sys.path.remove(str(file.parent))
    sys.path.insert(0, str(file.parent))
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        return load_subject(f"{file.stem}:{subject}", dtype, time_limit=seconds)
    finally:
        sys.dont_write_bytecode = bytecode
