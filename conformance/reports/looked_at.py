"""What a run looked at: the largest sizes, the dtypes and the kinds of its calls, and the kinds that no call was.

"Equal" is said of the calls that were made. So what they were stands beside it, found in the calls themselves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.cases.sequence import Asked
from conformance.judging.result import Result
from conformance.plan import Plan
from conformance.subjects.backend import as_users_run
from conformance.subjects.load import COMPILED
from mha_core.dtypes import DTYPES
from mha_core.features import FEATURES
from mha_core.parts import PARTS

SIZES = {"batches": "B", "queries": "Lq", "keys": "Lk", "heads": "H", "head_dim": "d"}
"""Words -> the symbol of a size, of which the largest is said."""

Met = Callable[[Problem], bool]


def _lengths_of(dtype: str) -> Met:
    return lambda problem: getattr(problem.inputs.mask.valid_lens, "dtype", None) == dtype


def _is_contiguous(problem: Problem) -> bool:
    inputs = problem.inputs
    return all(array.flags.c_contiguous for array in (inputs.queries, inputs.keys, inputs.values))


KINDS: dict[str, Met] = {
    "no mask": lambda problem: bool(problem.allowed().all()) and problem.inputs.mask.bias is None,
    "int64 lengths": _lengths_of("int64"),
    "int32 lengths": _lengths_of("int32"),
    "a mask of allowed keys": lambda problem: problem.inputs.mask.allowed is not None,
    "a causal mask": lambda problem: problem.inputs.mask.causal,
    "a window": lambda problem: problem.inputs.mask.window is not None,
    "a query offset": lambda problem: bool(np.any(problem.inputs.mask.query_offset)),
    "rows without a key": lambda problem: not problem.allowed().any(axis=-1).all(),
    "arrays that are not contiguous": lambda problem: not _is_contiguous(problem),
    "one array for queries, keys and values": lambda problem: (
        problem.inputs.queries is problem.inputs.keys is problem.inputs.values
    ),
    "NaN or infinity": lambda problem: not all(np.isfinite(a).all() for a in problem.inputs.leaves().values()),
    "gradients": lambda problem: problem.inputs.cotangent is not None,
    **{
        feature.words: lambda problem, present=feature.present: present(problem.config, problem.inputs)  # type: ignore[misc]
        for feature in FEATURES
        if feature.words
    },
}
"""Words -> whether a call is of this kind."""

SEQUENCES = "a second call of another shape, mask or thread"
"""What only sequences of calls are."""


@dataclass(frozen=True)
class OfPart:
    """A description of the calls of layers with one optional part, such as rotary positions.

    Attributes:
        sizes: name of a size, such as "keys" -> its largest value in these calls.
        never: the kinds of calls that do not occur among these.
    """

    sizes: dict[str, int]
    never: tuple[str, ...]


@dataclass(frozen=True)
class LookedAt:
    """A description of the calls of a run.

    Attributes:
        sizes: name of a size, such as "keys" -> its largest value in any call.
        dtypes, devices, paths: those that were run. A path is a way in which a backend runs layers, such as "compiled".
        kinds: the kinds of calls, from KINDS and SEQUENCES, that occurred.
        never: the dtypes, devices, paths and kinds of calls that did not occur.
        with_all: in words, what `mha check --all` would run in addition.
        parts: optional part of layers, in words -> a description of the calls of layers with it.
    """

    sizes: dict[str, int]
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    paths: tuple[str, ...]
    kinds: tuple[str, ...]
    never: tuple[str, ...]
    with_all: tuple[str, ...] = ()
    parts: dict[str, OfPart] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """Return one line about all fields but `kinds`. Empty fields are left out.

        >>> LookedAt({"keys": 1100}, ("float32",), ("cpu",), ("eager",), (), ("float64", "a GPU")).line
        'Covered: keys to 1,100; float32; cpu; the path eager. Not covered: float64, a GPU.'
        """
        sizes, of_parts = _said(self.sizes), ""
        for part, calls in self.parts.items():
            never = f"; never: {', '.join(calls.never)}" if calls.never else ""
            of_parts += f" With {part}: {_said(calls.sizes)}{never}."
        paths = f"the path{'s' * (len(self.paths) > 1)} {', '.join(self.paths)}" if self.paths else ""
        said = "; ".join(filter(None, [sizes, ", ".join(self.dtypes), ", ".join(self.devices), paths]))
        never = f" Not covered: {', '.join(self.never)}." if self.never else ""
        with_all = f" Only with --all: {'; '.join(self.with_all)}." if self.with_all else ""
        return f"Covered: {said}.{never}{of_parts}{with_all}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict of JSON values, with the line."""
        return {**asdict(self), "line": self.line}


def _said(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{words} to {size:,}" for words, size in sizes.items())


def looked_at(
    asked: Iterable[Asked], results: Sequence[Result], subjects: Iterable[Any], plan: Plan | None = None
) -> LookedAt | None:
    """Return a description of the calls of these results; None if no result has an answer.

    Args:
        asked: the cases and sequences of calls of the run.
        results: the results; those without an answer do not count.
        subjects: the subjects that were run; backends among them say which paths they have.
        plan: the plan of the run, which may leave out cases or repeated calls. Default: nothing was left out.
    """
    answered = [result for result in results if result.status not in ("unsupported", "failed")]
    if not answered:
        return None
    names = {result.case for result in answered}
    there = [one for one in asked if one.id in names]
    every, of_parts = _Met(), {name: _Met() for name in PARTS}
    for case, in_sequence in _calls(there, _unasked(answered)):
        problem = case.build()
        for met in (every, *(met for name, met in of_parts.items() if getattr(case.config, name) is not None)):
            met.add(case, problem, in_sequence)
    paths, all_paths = _paths(subjects, there)
    dtypes = tuple(dict.fromkeys(result.dtype for result in answered))
    devices = tuple(dict.fromkeys(result.device for result in answered))
    never = [f"{name} compiled" for name in _not_compiled(subjects, {result.subject for result in answered})]
    never += [dtype for dtype in DTYPES if dtype not in dtypes]
    never += ["a GPU"] if devices == ("cpu",) else []
    never += [f"the path {path}" for path in all_paths if path not in paths]
    never += [words for words in (*KINDS, SEQUENCES) if words not in every.kinds]
    said = tuple(words for words in (*KINDS, SEQUENCES) if words in every.kinds)
    with_all = () if plan is None else tuple(plan.only_with_all(there))
    parts = {PARTS[name]: OfPart(met.sizes, met.never) for name, met in of_parts.items() if met.sizes}
    return LookedAt(every.sizes, dtypes, devices, tuple(paths), said, tuple(never), with_all, parts)


class _Met:
    """What the calls that were added are."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.kinds: set[str] = set()

    def add(self, case: Case, problem: Problem, in_sequence: bool) -> None:
        own = case.sizes()
        self.sizes = {words: max(self.sizes.get(words, 0), own[symbol]) for words, symbol in SIZES.items()}
        self.kinds |= {words for words, met in KINDS.items() if words not in self.kinds and met(problem)}
        self.kinds |= {SEQUENCES} if in_sequence else set()

    @property
    def never(self) -> tuple[str, ...]:
        """Return the kinds that none of them is, but for those of parts."""
        return tuple(words for words in (*KINDS, SEQUENCES) if words not in self.kinds and words not in PARTS.values())


def _unasked(answered: Iterable[Result]) -> dict[str, set[str]]:
    """Return the id of each sequence -> its calls, in words, that no subject could express."""
    found: dict[str, set[str]] = {}
    for result in answered:
        words = {call for calls in result.left_out.values() for call in calls}
        found[result.case] = found.get(result.case, words) & words
    return found


def _calls(asked: Iterable[Asked], unasked: Mapping[str, set[str]]) -> Iterator[tuple[Case, bool]]:
    """Each call that was asked, and whether it is one of a sequence."""
    for one in asked:
        if isinstance(one, Case):
            yield one, False
        else:
            yield from ((step.case, True) for step in one.steps() if step.words not in unasked[one.id])


def _not_compiled(subjects: Iterable[Any], names: set[str]) -> list[str]:
    """Return the names whose subjects say how they are compiled, and were not asked so."""
    own = {one.spec: one for one in subjects if hasattr(one, "says_compiled")}
    says = [spec for spec, one in own.items() if one.says_compiled and one.name in names]
    return [own[spec].name for spec in says if f"{spec}.{COMPILED}" not in own]


def _paths(subjects: Iterable[Any], asked: Sequence[Asked]) -> tuple[list[str], list[str]]:
    """The paths of backends that were run, and all that these backends have."""
    as_users = any(isinstance(one, Case) and one.as_users_run for one in asked)
    run: dict[str, None] = {}
    there: dict[str, None] = {}
    for subject in subjects:
        backend = getattr(subject, "backend", None)
        if backend is not None:
            there |= dict.fromkeys(backend.paths())
            run |= dict.fromkeys([subject.path or backend.paths()[0]])
            if as_users:
                other = as_users_run(subject)
                run |= dict.fromkeys([other.path or backend.paths()[0]])
    return list(run), list(there)
