"""Data: what each head of each recorded call weighs, and how near that is to what was recorded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import Expected, answer
from conformance.subjects.ask import CannotExpress, SubjectFailed, ask
from conformance.subjects.backend import BackendSubject
from mha.recipes.judge import Judgement, judge_original, judge_trace
from mha.recordings.recording import Recording
from mha.view.measures import measured
from mha.view.plan import Part
from mha_core import SpecError, Trace
from mha_core.backend import Backend

DEFINITION = "the definition"
"""The reference, among the names of who computes."""

RECORDED = "recorded"


@dataclass(frozen=True, eq=False)
class Picture:
    """The arrays that the page shows for one batch item in one Part (one layer in one forward pass).

    Attributes:
        weights: (H, Lq, Lk), the attention weights of the shown heads; 0 at masked keys.
        where: bool (H, Lq, Lk), True at keys that a query may attend to.
        queries, keys: (H, Lq, d) and (G, Lk, d), the queries and keys of these heads.
        measures: name of a measure -> a number for each head.
        shares: (H, Lq, Lk), (compared weights - `weights`) / allowed difference; None if no weights are compared.
    """

    part: Part
    item: int
    weights: NDArray
    where: NDArray[np.bool_]
    queries: NDArray
    keys: NDArray
    measures: Mapping[str, list[float | None]]
    shares: NDArray | None = None


@dataclass(eq=False)
class Nearness:
    """A comparison of a Part's numbers (one layer in one forward pass) with the reference's.

    Attributes:
        ratios: "recorded" or name of a backend -> the largest error / allowed error in all of its arrays.
        messages: "recorded" or name of a backend -> sentences on arrays that exceed their bounds.
        keyless: how many rows (item, head, query) are fully masked; the recorded output is not compared there.
        not_numbers: how many of the shown weights are NaN.
        apart: the largest |shown - other weight| / allowed difference; None if `Sources` has no other weights.
    """

    ratios: dict[str, float] = field(default_factory=dict)
    messages: dict[str, list[str]] = field(default_factory=dict)
    keyless: int = 0
    not_numbers: int = 0
    apart: float | None = None

    def add(self, name: str, found: Judgement) -> None:
        """Take a judgement of one call in."""
        self.ratios[name] = max(self.ratios.get(name, 0.0), found.worst)
        self.messages.setdefault(name, []).extend(mismatch.message for mismatch in found.mismatches)


@dataclass(frozen=True, eq=False)
class Seen:
    """A Part (one layer in one forward pass) with a Picture for each batch item, and its Nearness to the reference."""

    part: Part
    pictures: tuple[Picture, ...]
    nearness: Nearness


@dataclass(frozen=True)
class Sources:
    """A choice of what computes the shown attention weights, and the weights to compare them with.

    Args:
        backends: with none, the reference's weights are shown, not compared. With one, the reference's are shown, and
            compared with the backend's. With two, the first one's are shown, and compared with the second's.
        compared: (second recording, call position -> position of the same call in the second recording). The reference
            computes the weights of both recordings. None: no second recording.
    """

    backends: tuple[Backend, ...] = ()
    compared: tuple[Recording, Mapping[int, int]] | None = None

    @property
    def base(self) -> str:
        """Return the name of what computes the shown weights."""
        return self.backends[0].name if len(self.backends) > 1 else DEFINITION

    @property
    def other(self) -> str | None:
        """Return the name of the backend or recording that the shown weights are compared with, or None."""
        if self.compared is not None:
            return "the other recording"
        return self.backends[-1].name if self.backends else None


def see(
    recording: Recording,
    parts: Sequence[Part],
    sources: Sources,
    progress: Callable[[str], None] = lambda text: None,
) -> Iterator[Seen]:
    """Yield a Seen for every Part, one after another: its pictures and comparisons.

    Raises:
        SpecError: a backend can't compute a layer.
    """
    for part in parts:
        progress(f"{part.layer}, pass {part.number + 1}")
        yield _seen(recording, part, sources)


def _seen(recording: Recording, part: Part, sources: Sources) -> Seen:
    nearness = Nearness()
    calls = [_call(recording, position, part, sources, nearness) for position in part.calls]
    arrays = {name: _stacked([call[name] for call in calls]) for name in calls[0] if name != "keys"}
    arrays["keys"] = calls[-1]["keys"]
    weights, where = arrays["weights"], arrays["where"]
    nearness.not_numbers = int(np.isnan(weights).sum())
    if "shares" in arrays:
        nearness.apart = float(np.nan_to_num(np.abs(arrays["shares"]), nan=np.inf).max(initial=0.0))
    pictures = tuple(
        Picture(
            part,
            item,
            measures=measured(weights[item], where[item], is_cross=part.is_cross),
            **{name: array[item] for name, array in arrays.items()},
        )
        for item in range(part.batch)
    )
    return Seen(part, pictures, nearness)


def _stacked(arrays: list[NDArray]) -> NDArray:
    """The rows of all calls of a part; keys that came later are 0 in the rows of earlier calls."""
    if len(arrays) == 1:
        return arrays[0]
    width = max(array.shape[-1] for array in arrays)
    padded = [np.pad(array, [(0, 0)] * 3 + [(0, width - array.shape[-1])]) for array in arrays]
    return np.concatenate(padded, axis=2)


def _call(recording: Recording, position: int, part: Part, sources: Sources, nearness: Nearness) -> dict[str, NDArray]:
    """The arrays of one call, by the names of Picture, of the heads that are shown: (B, heads, L, ...)."""
    problem = recording.problems[position]
    dtype = recording.layers[recording.calls[position].layer].dtype
    precision = Precision.of(dtype)
    wanted = answer(problem, precision)
    found = judge_original(problem, precision, wanted)
    nearness.add(RECORDED, found)
    nearness.keyless += found.rows_without_key
    answers = [(wanted.trace, wanted.allowed_error["weights"])]
    for backend in sources.backends:
        trace, own = _computed(backend, part.layer, problem, wanted, precision)
        answers.append((trace, own.allowed_error["weights"]))
        nearness.add(backend.name, judge_trace(trace, own, dtype))
    base, bound = answers[1] if len(answers) > 2 else (wanted.trace, np.zeros(()))
    if sources.compared is not None:
        recorded, partners = sources.compared
        layer = recorded.layers[recorded.calls[partners[position]].layer]
        theirs = answer(recorded.problems[partners[position]], Precision.of(layer.dtype))
        bound = wanted.allowed_error["weights"]
        answers.append((theirs.trace, theirs.allowed_error["weights"]))
    assert base.weights is not None
    assert base.queries is not None
    assert base.keys is not None
    arrays = {"weights": base.weights, "where": wanted.where, "queries": base.queries}
    if len(answers) > 1:
        arrays["shares"] = _shares(*answers[-1], base, bound)
    heads = {name: array[:, list(part.heads)] for name, array in arrays.items()}
    return {**heads, "keys": base.keys[:, list(part.kv_heads)]}


def _computed(
    backend: Backend, layer: str, problem: Problem, wanted: Expected, precision: Precision
) -> tuple[Trace, Expected]:
    """What a backend gives for a call, and the reference's answer with the backend's own bounds."""
    if precision.storage not in backend.dtypes("cpu"):
        raise SpecError(f"{backend.name} does not compute in {precision.storage}, the dtype of {layer}")
    subject = BackendSubject(backend, precision.storage, "cpu")
    try:
        trace = ask(subject, wanted.problem)
    except (CannotExpress, SubjectFailed) as error:
        raise SpecError(f"{backend.name} can't compute {layer}: {error}") from error
    if trace.weights is None or trace.queries is None or trace.keys is None:
        raise SpecError(f"{backend.name} does not show its weights, queries and keys")
    return trace, wanted if subject.precision == precision else answer(problem, subject.precision)


def _shares(other: Trace, of_other: NDArray, base: Trace, of_base: NDArray) -> NDArray:
    """(other - base) / (what each may be off), of the weights: 0 where they are alike, infinite where none may be."""
    assert other.weights is not None
    assert base.weights is not None
    with np.errstate(all="ignore"):
        difference = other.weights.astype(np.float64) - base.weights
        alike = (difference == 0.0) | (np.isnan(other.weights) & np.isnan(base.weights))
        return np.where(alike, 0.0, difference / (of_other + of_base))
