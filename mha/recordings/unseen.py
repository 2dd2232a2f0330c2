"""Unseen: which bugs of the zoo the recorded calls would not have shown, found by running every one of them on them.

"Equal" says that no output left its bound. With one key alone, or small weights in 16 bits, a scale that is wrong by
half does not either. So each bug of the zoo is put into the reference, runs on the recorded inputs, and is held
against the same bound as what was recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.compare import ParityError, compare
from conformance.judging.expected import Expected, answer
from conformance.zoo.bug import Bug, pipelines, rounded
from conformance.zoo.registry import all_bugs
from conformance.zoo.rerun import rerun
from mha.recordings.asked import asked_by, is_of_gradients, need_of, signature
from mha.recordings.explain import items_of
from mha.recordings.recording import RecordedCall, Recording
from mha_core import STAGES, Trace
from mha_core.reference import pipeline as reference
from mha_core.reference.state import State

SECONDS = 2.0
"""How long it may take; what was not tried by then is said."""

ITEMS, ROWS = 2, 16
"""Batch items, and last queries of them, that a large call is cut to before all of it is looked at."""

FIRST = 64
"""Positions that a large call is cut to from its start, where no query attends to a later key."""

LARGE = 50_000
"""Numbers in the attention weights or the queries of a call from which on it is cut."""

HARD_LIMIT = 5.0
"""How many times as long the first run of every bug may take: without it nothing could be said."""

SHOWN = 16
"""How many bugs of one reason are named, and how many things that were never asked."""

LAST = ("block-", "online-", "fill-", "past-")
"""How the ids of bugs begin that are named after the others: those of rarer ways to compute the same."""


@dataclass(frozen=True)
class Unseen:
    """What came of every bug.

    Attributes:
        calls: how many calls there are.
        tried: the names of those that were looked at, all of it or in part.
        parts: of these, those of which only a part was.
        seen: ids of the bugs that these calls show.
        within: ids of those that change something and stay within the bound, what changes most first.
        idle: ids of those that change nothing at all, though nothing that they need is missing: one head alone, or
            sizes that are equal.
        never_asked: what no call has -> the bugs that need it.
        impossible: those that can't be made in these layers: a bias forgotten where there is none.
        untried: those that there was no time for.
    """

    calls: int
    tried: tuple[str, ...]
    parts: tuple[str, ...]
    seen: tuple[str, ...]
    within: tuple[str, ...]
    idle: tuple[str, ...]
    never_asked: Mapping[str, tuple[str, ...]]
    impossible: tuple[str, ...]
    untried: tuple[str, ...]

    @property
    def missed(self) -> int:
        """How many bugs the calls would not have shown."""
        return len(self.within) + len(self.idle) + sum(map(len, self.never_asked.values()))

    def _looked(self) -> str:
        """How many calls were looked at."""
        whole = len(self.tried) - len(self.parts)
        return " and ".join(
            [*([f"{whole} of them"] if whole else []), *([f"parts of {len(self.parts)}"] if self.parts else [])]
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        lists = ("tried", "parts", "seen", "within", "idle", "impossible", "untried")
        never = {words: list(bugs) for words, bugs in self.never_asked.items()}
        found = {name: list(getattr(self, name)) for name in lists}
        return {"calls": self.calls, "missed": self.missed, **found, "never_asked": never}

    def text(self) -> str:
        """The same in words, a line for each reason."""
        calls = "This call" if self.calls == 1 else f"These {self.calls} calls"
        total = self.missed + len(self.seen)
        looked = "" if len(self.tried) == self.calls and not self.parts else f"; looked at: {self._looked()}"
        head = f"{calls} would not have shown {self.missed} of {total} bugs that can be made here (`mha bugs`{looked}):"
        lines = [head]
        if self.within:
            lines.append(f"  within the bound: {_some(self.within)}")
        if self.idle:
            lines.append(f"  without effect in these sizes and numbers: {_some(self.idle)}")
        if self.never_asked:
            by_count = sorted(self.never_asked.items(), key=lambda item: -len(item[1]))
            lines.append(f"  never asked: {_some([f'{words} ({len(bugs)})' for words, bugs in by_count])}")
        if self.untried:
            lines.append(f"  not tried, for want of time: {len(self.untried)}")
        return "\n".join(lines) if self.missed or self.untried else f"{calls} would have shown all {total} bugs."


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def unseen(
    recording: Recording,
    names: Collection[str] | None = None,
    *,
    seconds: float = SECONDS,
    bugs: Sequence[Bug] | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Unseen:
    """Put every bug of the zoo into the reference, and see whether the recorded calls would show it.

    A bug shows if an output of the kind that was recorded leaves its bound in some call. Calls that ask the same are
    looked at one after another, large ones cut to a few items and queries first; until every bug has shown, or time
    is up.

    Args:
        recording: what was recorded.
        names: the calls that count. Default: all.
        seconds: how long it may take, roughly.
        bugs: the zoo. Default: all of it.
        progress: is told what is being done.

    >>> from mha.recordings.recording import RecordedLayer
    >>> from mha_core import AttentionConfig, AttentionInputs, init_weights
    >>> config = AttentionConfig(6, 2)
    >>> layer = RecordedLayer("", "mine.Attention", "float64", config, init_weights(config, seed=0))
    >>> x = np.random.default_rng(1).normal(size=(2, 1, 6))  # one token: its weight is 1, whatever the scale
    >>> inputs = AttentionInputs(x, x, x)
    >>> call = RecordedCall(0, inputs, {"output": reference.run(config, layer.weights, inputs).output})
    >>> found = unseen(Recording((layer,), (call,)))
    >>> "scale-missing" in found.within, "v-proj-weight-transposed" in found.seen, "a causal mask" in found.never_asked
    (True, True, True)
    """
    deadline = time.monotonic() + seconds
    zoo = [bug for bug in (all_bugs() if bugs is None else bugs) if not bug.equivalent]
    calls = [
        _Call(name, recording.layers[call.layer].dtype, call, problem)
        for name, call, problem in zip(recording.names, recording.calls, recording.problems, strict=True)
        if names is None or name in names
    ]
    problems = [call.problem for call in calls]
    verdicts = {bug.id: _Verdict() for bug in zoo}
    left = [bug for bug in zoo if not is_of_gradients(bug)]
    tried: dict[str, bool] = {}  # name -> whether it was only cut
    for call, cut in _in_order(calls):
        if not left or (tried and time.monotonic() > deadline):
            break
        progress(f"what {call.name} would have shown")
        tried[call.name] = cut
        stage = _Stage(call, cut)
        for bug in left:
            limit = deadline if verdicts[bug.id].tried else deadline + (HARD_LIMIT - 1) * seconds
            if time.monotonic() > limit:
                continue
            need = need_of(bug)
            if need is not None and not need[1](call.problem):  # it may look different in a part of it
                continue
            found = stage.run(bug)
            if found is not None or not cut:  # what can't be made in a part of a call might be in all of it
                verdicts[bug.id].hear(found)
        left = [bug for bug in left if not verdicts[bug.id].seen]
    return _sorted_out(zoo, verdicts, problems, tried)


@dataclass
class _Verdict:
    """What is known of one bug: whether it was run, could be made, changed something and how much, and showed."""

    tried: bool = False
    possible: bool = False
    seen: bool = False
    change: float = 0.0

    def hear(self, found: tuple[bool, float] | None) -> None:
        self.tried = True
        if found is not None:
            self.possible = True
            self.seen |= found[0]
            self.change = max(self.change, found[1])


def _sorted_out(
    zoo: Sequence[Bug], verdicts: Mapping[str, _Verdict], problems: Sequence[Problem], tried: Mapping[str, bool]
) -> Unseen:
    never: dict[str, list[str]] = {}
    lists: dict[str, list[str]] = {name: [] for name in ("seen", "within", "idle", "impossible", "untried")}
    for bug in zoo:
        verdict = verdicts[bug.id]
        need = need_of(bug)
        if is_of_gradients(bug):
            never.setdefault("gradients", []).append(bug.id)
        elif verdict.seen:
            lists["seen"].append(bug.id)
        elif need is not None and not asked_by(bug, problems):
            never.setdefault(need[0], []).append(bug.id)
        elif not verdict.tried:
            lists["untried"].append(bug.id)
        elif not verdict.possible:
            lists["impossible"].append(bug.id)
        else:
            lists["within" if verdict.change else "idle"].append(bug.id)
    lists["within"].sort(key=lambda name: -verdicts[name].change)
    lists["idle"].sort(key=lambda name: name.startswith(LAST))
    found = {name: tuple(names) for name, names in lists.items()}
    parts = tuple(name for name, cut in tried.items() if cut)
    return Unseen(
        len(problems), tuple(tried), parts, never_asked={words: tuple(bugs) for words, bugs in never.items()}, **found
    )


@dataclass(frozen=True, eq=False)
class _Call:
    name: str
    dtype: str
    call: RecordedCall
    problem: Problem

    @property
    def size(self) -> int:
        """Numbers in its attention weights, or in its queries, whichever is more."""
        sizes = self.problem.inputs.check(self.problem.config)
        weights = sizes.batch * self.problem.config.num_heads * sizes.query_len * sizes.key_len
        return max(weights, self.problem.inputs.queries.size)


def _in_order(calls: Sequence[_Call]) -> list[tuple[_Call, bool]]:
    """Calls, and whether each is cut: one of each kind first, small ones first; then all others; then those whole."""
    by_size = sorted(calls, key=lambda call: call.size)
    firsts: dict[tuple[object, ...], _Call] = {}
    for call in by_size:
        firsts.setdefault((call.dtype, *signature(call.problem)), call)
    others = [call for call in by_size if call not in firsts.values()]
    ordered = [*firsts.values(), *others]
    return [*((call, call.size > LARGE) for call in ordered), *((call, False) for call in ordered if call.size > LARGE)]


class _Stage:
    """One call on which bugs are run."""

    def __init__(self, call: _Call, cut: bool) -> None:
        problem = _cut(call) if cut else call.problem
        self.dtype, self.recorded = call.dtype, tuple(problem.recorded)
        self.wanted: Expected = answer(replace(problem, recorded={}), Precision.of(call.dtype))
        given = self.wanted.problem
        self.right: State = reference.run_state(given.config, given.weights, given.inputs)

    def run(self, bug: Bug) -> tuple[bool, float] | None:
        """Whether the bug shows, and how much it changes; None where it can't be made."""
        forward, _ = pipelines(bug)
        try:
            state, changed = rerun(self.right, forward, bug.forward)
        except (ValueError, IndexError):  # DoesNotApply is a ValueError; others where sizes are unheard of
            return None
        if not changed:
            return False, 0.0
        trace = rounded(Trace(**{name: state[name] for name in self.recorded}), self.dtype)
        try:
            compare(trace, self.wanted.trace, self.wanted.allowed_error, self.wanted.where, self.dtype)
        except ParityError:
            return True, 1.0
        return False, max((_change(self.right[name], state[name]) for name in STAGES), default=0.0)


def _change(right: NDArray, wrong: NDArray) -> float:
    """The largest change of a stage, relative to its largest number: at least what says that there is one."""
    if right.shape != wrong.shape:
        return 1.0
    with np.errstate(all="ignore"):
        change = np.abs(right - wrong)
        change = change[np.isfinite(change)].max(initial=0.0)
        size = np.abs(right[np.isfinite(right)]).max(initial=0.0)
    return float(max(change / size if size else 0.0, np.finfo(float).tiny))


def _cut(call: _Call) -> Problem:
    """A few batch items, those with the fewest and the most open keys, and a few queries, with all that they may see.

    What these queries give is what the layer gives for them in the whole call.
    """
    problem = call.problem
    where = problem.allowed()
    open_keys = where.sum(axis=(1, 2, 3))
    items = np.unique([int(np.argmin(open_keys)), int(np.argmax(open_keys)), *range(ITEMS)])[: max(ITEMS, 2)]
    if len(open_keys) > len(items):
        small = items_of(call.call, items)
        problem = replace(problem, inputs=small.inputs, recorded=small.outputs)
    sizes = problem.inputs.check(problem.config)
    mask = problem.inputs.mask
    if sizes.query_len <= ROWS:
        return problem
    if not mask.has_positions:
        return _part(problem, slice(sizes.query_len - ROWS, None), slice(None))
    right = 0 if mask.causal else mask.window[1] if mask.window is not None else None
    if right == 0 and sizes.query_len == sizes.key_len > FIRST and not np.any(mask.query_offset) and not sizes.past_len:
        return _part(problem, slice(FIRST), slice(FIRST))  # they attend to none of the others
    return problem


def _part(problem: Problem, rows: slice, columns: slice) -> Problem:
    """The problem with some queries and keys; what was recorded only by name."""
    inputs, mask = problem.inputs, problem.inputs.mask

    def cut(name: str, array: NDArray) -> NDArray:
        if name in ("allowed", "bias"):
            array = array[..., rows, :] if array.ndim >= 2 and array.shape[-2] > 1 else array
            return array[..., columns] if array.ndim and array.shape[-1] > 1 else array
        if name == "valid_lens":
            array = array[:, rows] if array.ndim == 2 else array
            return array if columns.stop is None else np.minimum(array, columns.stop)
        return array

    keep = inputs.dropout_keep
    changed = replace(
        inputs,
        queries=inputs.queries[..., rows, :],
        keys=inputs.keys[..., columns, :],
        values=inputs.values[..., columns, :],
        dropout_keep=None if keep is None else keep[:, :, rows, columns],
        mask=mask.map_arrays(cut),
    )
    return replace(problem, inputs=changed)
