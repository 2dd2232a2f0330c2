"""Data: what each head of each recorded call weighs, and how near that is to what was recorded."""

from __future__ import annotations

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
    """One item of the batch in one part.

    Attributes:
        weights: (H, Lq, Lk), of the heads that are shown; 0 where they may not attend.
        where: bool (H, Lq, Lk), which keys each query may attend to.
        queries, keys: (H, Lq, d) and (G, Lk, d), of these heads.
        shares: (H, Lq, Lk), the other's weights minus these, over what rounding allows both; None if there is no other.
        measures: name -> a number for each head.
    """

    part: Part
    item: int
    weights: NDArray
    where: NDArray[np.bool_]
    queries: NDArray
    keys: NDArray
    shares: NDArray | None
    measures: Mapping[str, list[float | None]]


@dataclass(eq=False)
class Nearness:
    """How near a part is to the definition.

    Attributes:
        ratios: RECORDED or a backend -> worst error / allowed error; recorded outputs, all stages of a backend.
        messages: the same names -> what is over its bound.
        keyless: rows (item, head and query) that may attend to nothing; the recorded output is not compared there.
        not_numbers: how many of the shown weights are NaN.
        apart: the largest |difference| / allowed of the other's weights; None if there is no other.
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
    """One part with its pictures, item by item."""

    part: Part
    pictures: tuple[Picture, ...]
    nearness: Nearness


@dataclass(frozen=True)
class Sources:
    """Who computes what is shown.

    Args:
        backends: none: the definition. One: it, beside the definition. More: the second beside the first.
        compared: another recording with its calls by position; the definition computes both.
    """

    backends: tuple[Backend, ...] = ()
    compared: tuple[Recording, Mapping[int, int]] | None = None

    @property
    def base(self) -> str:
        """Whose weights are shown."""
        return self.backends[0].name if len(self.backends) > 1 else DEFINITION

    @property
    def other(self) -> str | None:
        """Whose difference from it is shown."""
        if self.compared is not None:
            return "the other recording"
        return self.backends[-1].name if self.backends else None


def see(
    recording: Recording,
    parts: Sequence[Part],
    sources: Sources,
    progress: Callable[[str], None] = lambda text: None,
) -> Iterator[Seen]:
    """Compute every part, one after another.

    Raises:
        SpecError: a backend can't compute a layer.
    """
    for part in parts:
        progress(f"{part.layer}, pass {part.number + 1}")
        yield _seen(recording, part, sources)


def _seen(recording: Recording, part: Part, sources: Sources) -> Seen:
    nearness = Nearness()
    rows = [_call(recording, position, part, sources, nearness) for position in part.calls]
    weights, where, queries, shares = (
        _stacked([getattr(row, name) for row in rows], part) for name in ("weights", "where", "queries", "shares")
    )
    assert weights is not None
    assert where is not None
    assert queries is not None
    keys = rows[-1].keys
    nearness.not_numbers = int(np.isnan(weights).sum())
    if shares is not None:
        nearness.apart = float(np.nan_to_num(np.abs(shares), nan=np.inf).max(initial=0.0))
    pictures = tuple(
        Picture(
            part,
            item,
            weights[item],
            where[item],
            queries[item],
            keys[item],
            None if shares is None else shares[item],
            measured(weights[item], where[item], is_cross=part.is_cross),
        )
        for item in range(part.batch)
    )
    return Seen(part, pictures, nearness)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The arrays of one call, of the heads that are shown: (B, H, Lq, Lk), queries and keys (B, heads, L, d)."""

    weights: NDArray
    where: NDArray
    queries: NDArray
    keys: NDArray
    shares: NDArray | None


def _stacked(arrays: list[NDArray | None], part: Part) -> NDArray | None:
    """The rows of all calls of a part; keys that came later are 0 in the rows of earlier calls."""
    own = [array for array in arrays if array is not None]
    if len(own) < len(arrays):
        return None
    if len(own) == 1:
        return own[0]
    width = max(array.shape[-1] for array in own)
    padded = [np.pad(array, [(0, 0)] * 3 + [(0, width - array.shape[-1])]) for array in own]
    return np.concatenate(padded, axis=2)


def _call(recording: Recording, position: int, part: Part, sources: Sources, nearness: Nearness) -> _Rows:
    problem = recording.problems[position]
    dtype = recording.layers[recording.calls[position].layer].dtype
    precision = Precision.of(dtype)
    wanted = answer(problem, precision)
    found = judge_original(problem, precision, wanted)
    nearness.add(RECORDED, found)
    nearness.keyless += found.rows_without_key
    answers = [(wanted.trace, wanted)]
    for backend in sources.backends:
        answers.append(_computed(backend, part.layer, problem, wanted, precision))
        nearness.add(backend.name, judge_trace(*answers[-1], dtype))
    base, other = (answers[1] if len(answers) > 2 else answers[0]), answers[-1]
    shares = None
    if sources.compared is not None:
        recorded, partners = sources.compared
        layer = recorded.layers[recorded.calls[partners[position]].layer]
        theirs = answer(recorded.problems[partners[position]], Precision.of(layer.dtype))
        shares = _shares(theirs.trace, wanted.trace, theirs.allowed_error["weights"], wanted.allowed_error["weights"])
    elif sources.backends:
        of_base = base[1].allowed_error["weights"] if len(answers) > 2 else np.zeros(())
        shares = _shares(other[0], base[0], other[1].allowed_error["weights"], of_base)
    heads, kv_heads = list(part.heads), list(part.kv_heads)
    trace = base[0]
    assert trace.weights is not None
    assert trace.queries is not None
    assert trace.keys is not None
    return _Rows(
        trace.weights[:, heads],
        wanted.where[:, heads],
        trace.queries[:, heads],
        trace.keys[:, kv_heads],
        None if shares is None else shares[:, heads],
    )


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


def _shares(other: Trace, base: Trace, of_other: NDArray, of_base: NDArray) -> NDArray:
    """(other - base) / (what each may be off), of the weights: 0 where they are alike, infinite where none may be."""
    assert other.weights is not None
    assert base.weights is not None
    with np.errstate(all="ignore"):
        difference = other.weights.astype(np.float64) - base.weights
        alike = (difference == 0.0) | (np.isnan(other.weights) & np.isnan(base.weights))
        return np.where(alike, 0.0, difference / (of_other + of_base))
