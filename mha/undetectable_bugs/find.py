"""Find the bugs of the zoo that recorded calls could not have shown.

"Equal" means that no output left its bound. But with one key alone, or small weights in 16 bits, not even a scale that
is wrong by half leaves it. So each bug of the zoo is put into the reference and runs on the recorded inputs, and its
output is compared under the bound that the recorded output was compared under.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import answer
from conformance.subjects.items import items_of, take_positions, with_positions
from conformance.zoo.bug import Bug
from conformance.zoo.registry import all_bugs
from conformance.zoo.shows import Shows
from mha.recordings.recording import Recording
from mha.undetectable_bugs.needed_calls import asked_by, is_of_gradients, need_of, signature
from mha_core import STAGES
from mha_core.errors import listed
from mha_core.features import FEATURES, Feature
from mha_core.reference import pipeline as reference
from mha_core.reference.state import State

SECONDS = 2.0
"""Default time limit; bugs that were not tried by then are reported as untried."""

ITEMS, ROWS = 2, 16
"""Batch items, and last queries of them, that a large call is cut to before all of it is looked at."""

FIRST = 64
"""Positions that a large call is cut to from its start, where no query attends to a later key."""

LARGE = 50_000
"""Numbers in the attention weights or the queries of a call from which on it is cut."""

HARD_LIMIT = 5.0
"""How many times the time limit the first run of every bug may take; without it the result would be empty."""

SHOWN = 16
"""Most bugs that are named for one reason, and most requirements that are named."""

LAST = ("block-", "online-", "fill-", "past-")
"""Prefixes of the ids of bugs in rarer ways to compute attention; they are named after the others."""


Told = Callable[[Shows, State], bool]
"""Whether one problem tells a run of it with a bug from the right one."""


def leaves_bound(shows: Shows, state: State) -> bool:
    """Return whether outputs with a bug (in `state`) exceed the error bounds of the recorded outputs (in `shows`)."""
    return shows.first_stage(state) is not None


@dataclass(frozen=True)
class UndetectableBugs:
    """The result of `undetectable_bugs`: the bugs that recorded calls show or hide, and why.

    Attributes:
        calls: how many calls there are.
        tried: the names of the calls on which bugs were run.
        parts: names of calls in `tried` from which only some items and queries were used.
        seen: ids of the bugs that these calls show.
        within: ids of bugs that change outputs but stay within the bound, the largest change first.
        idle: ids of bugs that change nothing, although the calls have what they need (such as a causal mask); a reason
            may be that there is only one head, or that sizes are equal.
        never_asked: a feature that no call has ("a causal mask") -> ids of the bugs that need it to show.
        impossible: ids of bugs that these layers can't have, such as a forgotten bias where there is none.
        untried: ids of bugs for which there was no time.
        beyond: in words, settings that layers may have, though neither their arrays nor these calls reveal them.
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
    beyond: tuple[str, ...]

    @property
    def missed(self) -> int:
        """Return how many bugs the calls would not have shown."""
        return len(self.within) + len(self.idle) + sum(map(len, self.never_asked.values()))

    def _looked(self) -> str:
        """How many calls bugs were run on, in words."""
        whole = len(self.tried) - len(self.parts)
        return " and ".join(
            [*([f"{whole} of them"] if whole else []), *([f"parts of {len(self.parts)}"] if self.parts else [])]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict of JSON values."""
        return {**asdict(self), "missed": self.missed}

    def text(self, *, whole: bool = True) -> str:
        """Return the result in words: a line for each reason. `whole=False`: one line, "... (--unseen lists them)"."""
        calls = "This call" if self.calls == 1 else f"These {self.calls} calls"
        total = self.missed + len(self.seen)
        if not whole and self.missed:
            return f"{calls} would not have shown {self.missed} of {total} bugs (--unseen lists them)."
        looked = "" if len(self.tried) == self.calls and not self.parts else f"; looked at: {self._looked()}"
        head = f"{calls} would not have shown {self.missed} of {total} bugs that can be made here (`mha bugs`{looked}):"
        lines = [head]
        if self.within:
            lines.append(f"  within the bound: {listed(self.within, SHOWN)}")
        if self.idle:
            lines.append(f"  without effect in these sizes and numbers: {listed(self.idle, SHOWN)}")
        if self.never_asked:
            by_count = sorted(self.never_asked.items(), key=lambda item: -len(item[1]))
            lines.append(f"  never asked: {listed([f'{words} ({len(bugs)})' for words, bugs in by_count], SHOWN)}")
        if self.untried:
            lines.append(f"  not tried, for want of time: {len(self.untried)}")
        lines = lines if self.missed or self.untried else [f"{calls} would have shown all {total} bugs."]
        if not whole:
            return "\n".join(lines)
        return "\n".join([*lines, f"  nor a setting that no array shows: {'; '.join(self.beyond)}"])


def undetectable_bugs(
    recording: Recording,
    names: Collection[str] | None = None,
    *,
    seconds: float = SECONDS,
    bugs: Sequence[Bug] | None = None,
    told: Told = leaves_bound,
    cut: bool = True,
    progress: Callable[[str], None] = lambda what: None,
) -> UndetectableBugs:
    """Return which known bugs would not be noticed in the recorded calls, if a layer had them.

    The reference runs with each bug. A bug is noticed if a recorded output exceeds its bound in some call. Calls of
    different kinds are run first, and large calls are first cut to a few items and queries.

    Args:
        names: the names of the calls to use. Default: all.
        seconds: how long the search may take, roughly.
        bugs: the bugs to try. Default: all known ones (`mha bugs`).
        told: a function: (call, run with a bug) -> whether the bug is noticed. Default: an output exceeds its bound.
        cut: whether large calls may be cut. A bug that `told` notices in a part must then show in the whole call.
        progress: called with a text on the current step.

    >>> from mha.recordings.recording import RecordedCall, RecordedLayer
    >>> from mha_core import AttentionConfig, AttentionInputs, init_weights, reference
    >>> config = AttentionConfig(6, 2)
    >>> layer = RecordedLayer("", "mine.Attention", "float64", config, init_weights(config, seed=0))
    >>> x = np.random.default_rng(1).normal(size=(2, 1, 6))  # one token: its weight is 1, whatever the scale
    >>> inputs = AttentionInputs(x, x, x)
    >>> call = RecordedCall(0, inputs, {"output": reference.run(config, layer.weights, inputs).output})
    >>> found = undetectable_bugs(Recording((layer,), (call,)))
    >>> "scale-missing" in found.within, "v-proj-weight-transposed" in found.seen, "a causal mask" in found.never_asked
    (True, True, True)
    """
    deadline = time.monotonic() + seconds
    zoo = [bug for bug in (all_bugs() if bugs is None else bugs) if not bug.equivalent]
    calls = [
        _Call(name, recording.layer_of(position).dtype, recording.problems[position])
        for position, name in enumerate(recording.names)
        if names is None or name in names
    ]
    verdicts = {bug.id: _Verdict(bug) for bug in zoo}
    left = [one for one in verdicts.values() if not is_of_gradients(one.bug)]
    looked: list[Shows] = []
    tried: dict[str, bool] = {}  # name -> whether it was only cut
    for call, part in _in_order(calls, cut=cut):
        if not left or (tried and time.monotonic() > deadline):
            break
        progress(f"what {call.name} would have shown")
        tried[call.name] = part
        shows = _shows(call, part)
        looked.append(shows)
        for verdict in left:
            limit = deadline if verdict.tried else deadline + (HARD_LIMIT - 1) * seconds
            if time.monotonic() > limit or not asked_by(verdict.bug, [call.problem]):  # a part may look different
                continue
            found = _run(verdict.bug, shows, told)
            if found is not None or not part:  # what can't be made in a part of a call might be in all of it
                verdict.add(found)
        left = [verdict for verdict in left if not verdict.seen]
    problems = [call.problem for call in calls]
    never: dict[str, tuple[str, ...]] = {}
    lists: dict[str, list[str]] = {name: [] for name in ("seen", "within", "idle", "impossible", "untried")}
    for id, verdict in verdicts.items():
        need = verdict.never_asked(problems)
        if need:
            never[need] = (*never.get(need, ()), id)
        else:
            lists[verdict.kind].append(id)
    lists["within"].sort(key=lambda id: -verdicts[id].order)
    lists["idle"].sort(key=lambda id: id.startswith(LAST))
    return UndetectableBugs(
        len(problems),
        tuple(tried),
        parts=tuple(name for name, part in tried.items() if part),
        never_asked=never,
        beyond=beyond(problems, looked),
        **{name: tuple(ids) for name, ids in lists.items()},
    )


ROUNDING = 2.0**-40
"""A change of an output, relative to its size, that the order of its sums makes in float64."""


@dataclass
class _Verdict:
    """The findings about one bug: whether it was run, could be made, was seen, and its largest change."""

    bug: Bug
    tried: bool = False
    possible: bool = False
    seen: bool = False
    change: float = 0.0

    @property
    def order(self) -> float:
        """Return its change, to sort by: in one digit, 0 if it is rounding; further digits differ between machines."""
        return float(f"{self.change:.0e}") if self.change > ROUNDING else 0.0

    def add(self, found: tuple[bool, float] | None) -> None:
        """Take in the result of one run (see `_run`)."""
        self.tried = True
        if found is not None:
            self.possible = True
            self.seen |= found[0]
            self.change = max(self.change, found[1])

    def never_asked(self, problems: Sequence[Problem]) -> str:
        """What the bug needs and no call has, in words; "" if there is nothing."""
        if is_of_gradients(self.bug):
            return "gradients"
        need = need_of(self.bug)
        return "" if self.seen or need is None or asked_by(self.bug, problems) else need[0]

    @property
    def kind(self) -> str:
        """Return the list of `UndetectableBugs` that it belongs to."""
        if self.seen:
            return "seen"
        if not self.possible:
            return "impossible" if self.tried else "untried"
        return "within" if self.change else "idle"


@dataclass(frozen=True, eq=False)
class _Call:
    name: str
    dtype: str
    problem: Problem

    @property
    def size(self) -> int:
        """Elements of its attention weights or of its queries, whichever are more."""
        sizes = self.problem.sizes
        weights = sizes.batch * self.problem.config.num_heads * sizes.query_len * sizes.key_len
        return max(weights, self.problem.inputs.queries.size)


def _in_order(calls: Sequence[_Call], *, cut: bool = True) -> list[tuple[_Call, bool]]:
    """(call, whether it is cut) in the order of running: one call of each kind, the others, then large calls uncut."""
    by_size = sorted(calls, key=lambda call: call.size)
    firsts: dict[tuple[object, ...], _Call] = {}
    for call in by_size:
        firsts.setdefault((call.dtype, *signature(call.problem)), call)
    others = [call for call in by_size if call not in firsts.values()]
    ordered = [*firsts.values(), *others]
    if not cut:
        return [(call, False) for call in ordered]
    return [*((call, call.size > LARGE) for call in ordered), *((call, False) for call in ordered if call.size > LARGE)]


def _shows(call: _Call, cut: bool) -> Shows:
    """What the recorded outputs of a call show, or of the part that it is cut to."""
    problem = _cut(call.problem) if cut else call.problem
    wanted = answer(replace(problem, recorded={}), Precision.of(call.dtype))
    return Shows.of(wanted, call.dtype, tuple(problem.recorded))


def _run(bug: Bug, shows: Shows, told: Told = leaves_bound) -> tuple[bool, float] | None:
    """(whether the bug is visible, its largest relative change); None where the bug can't be made in this layer."""
    try:
        state, changed = shows.forward(bug)
    except (ValueError, IndexError):  # DoesNotApply is a ValueError; others where sizes are unheard of
        return None
    if not changed:
        return False, 0.0
    if told(shows, state):
        return True, 1.0
    return False, max((_change(shows.right[name], state[name]) for name in STAGES), default=0.0)


def _change(right: NDArray, wrong: NDArray) -> float:
    """Largest change of a stage relative to its largest number; never 0, as 0 means that no step changed."""
    if right.shape != wrong.shape:
        return 1.0
    with np.errstate(all="ignore"):
        change = np.abs(right - wrong)
        change = change[np.isfinite(change)].max(initial=0.0)
        size = np.abs(right[np.isfinite(right)]).max(initial=0.0)
    return float(max(change / size if size else 0.0, np.finfo(float).tiny))


def _cut(problem: Problem) -> Problem:
    """A part of the problem: the batch items with the fewest and most allowed keys, a few queries, and all their keys.

    The outputs of these queries are those of the whole call. What was recorded keeps its names, but not its shapes.
    """
    where = problem.allowed()
    open_keys = where.sum(axis=(1, 2, 3))
    items = np.unique([int(np.argmin(open_keys)), int(np.argmax(open_keys)), *range(ITEMS)])[: max(ITEMS, 2)]
    if len(open_keys) > len(items):
        problem = items_of(problem, items)
    sizes, mask = problem.sizes, problem.inputs.mask
    if sizes.query_len <= ROWS:
        return problem
    if not mask.has_positions:
        last = slice(sizes.query_len - ROWS, None)
        return replace(problem, inputs=take_positions(with_positions(problem), last, slice(None)))
    right = 0 if mask.causal else mask.window[1] if mask.window is not None else None
    if right == 0 and sizes.query_len == sizes.key_len > FIRST and not np.any(mask.query_offset) and not sizes.past_len:
        first = slice(FIRST)  # they attend to none of the others
        return replace(problem, inputs=take_positions(with_positions(problem), first, first))
    return problem


# Settings that a layer may have, that no array of it shows, and that calls could not have shown.


MOST_TRIED = 8
"""Most calls that faint settings are tried on."""


def beyond(problems: Sequence[Problem], looked: Sequence[Shows]) -> tuple[str, ...]:
    """Return in words the settings that a layer may have, though no array and no recorded call reveals them.

    Args:
        problems: all recorded calls.
        looked: the calls that are run again with other values of the settings, to see whether outputs change.
    """
    found = []
    for feature in FEATURES:
        without = [one for one in looked if not feature.present(one.wanted.problem.config, None)]
        hidden = _hidden(feature, without[:MOST_TRIED])
        if hidden is not None:
            found.append(f"{feature.words} of {hidden:g} or more")
    lengths = {problem.inputs.check(problem.config).key_len for problem in problems}
    if len(lengths) == 1:
        found.append(f"a scale that depends on the number of keys (here always {max(lengths)})")
    return (*found, f"a window or positions beyond {max(lengths)} keys")


def _hidden(feature: Feature, looked: Sequence[Shows]) -> float | None:
    """The last of the feature's `faint` values up to which none shows; None if all do, or no call is without it."""
    hidden = None
    for value in feature.faint if looked else ():
        for one in looked:
            given = one.wanted.problem
            setting: dict[str, Any] = dict.fromkeys(feature.plain, value)
            config = replace(given.config, **setting)
            state = reference.run_state(config, given.weights, given.inputs)
            if one.first_stage(state) is not None:
                return hidden
        hidden = value
    return hidden
