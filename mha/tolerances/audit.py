"""Audit a comparison: which bugs of the zoo it lets pass on recorded calls, although the computed bounds see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.zoo.registry import all_bugs
from conformance.zoo.shows import Shows
from mha.recordings.recording import Recording
from mha.tolerances.comparisons import Comparison
from mha.undetectable_bugs.find import SHOWN, UndetectableBugs, undetectable_bugs
from mha_core import SpecError
from mha_core.dtypes import round_to
from mha_core.errors import listed
from mha_core.reference.state import State

SECONDS = 60.0
"""Default time limit."""


@dataclass(frozen=True)
class Audit:
    """What a comparison lets pass.

    Attributes:
        comparison: in words.
        passed: ids of the bugs that pass it in every call, and leave the bound in one; the largest change first.
        caught: ids of those that leave the bound and fail the comparison.
        untried: ids of those that leave the bound, and there was no time to compare.
        unseen: what even the bounds would not have shown.
        late: whether time was up before every bug had been compared in every call.
        strict: the largest error that the bound allows where the comparison does not, so that right layers may fail
            it; 0.0 if there is none, and for a comparison of whole outputs.
    """

    comparison: str
    passed: tuple[str, ...]
    caught: tuple[str, ...]
    untried: tuple[str, ...]
    unseen: UndetectableBugs
    late: bool = False
    strict: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The result as a dict of JSON values."""
        lists = {name: list(getattr(self, name)) for name in ("passed", "caught", "untried")}
        return {
            "comparison": self.comparison,
            **lists,
            "late": self.late,
            "strict": self.strict,
            "unseen": self.unseen.to_dict(),
        }

    def text(self) -> str:
        """The result in words: what passes, and what even the bounds would not show."""
        calls = "this call" if self.unseen.calls == 1 else f"these {self.unseen.calls} calls"
        seen = len(self.unseen.seen)
        lines = [
            f"On {calls} {self.comparison} lets {len(self.passed)} of the {seen} bugs pass that the computed bounds see"
            + (f": {listed(self.passed, SHOWN)}" if self.passed else ".")
        ]
        if self.untried:
            lines.append(f"  not compared, for want of time: {len(self.untried)}")
        if self.strict:
            lines.append(f"  It may fail right layers: rounding may move an element by up to {self.strict:.2g} here.")
        if self.late:
            lines.append("  Time was up: not every bug was tried in every call; --time-limit gives it more.")
        return "\n".join([*lines, self.unseen.text()])


@dataclass
class _Told:
    """Whether a comparison tells the output of a run with a bug from the right one; see `Audit.strict`."""

    comparison: Comparison
    strict: float = 0.0
    last: Shows | None = None

    def __call__(self, shows: Shows, state: State) -> bool:
        one, right = (round_to(run["output"], shows.dtype).astype(np.float64) for run in (state, shows.right))
        if self.comparison.each and shows is not self.last:
            self.last, allowed = shows, shows.wanted.allowed_error["output"]
            if not self.comparison.passes(right + allowed, right):
                self.strict = max(self.strict, float(allowed.max()))
        return one.shape != right.shape or not self.comparison.passes(one, right)


def audit(
    recording: Recording,
    comparison: Comparison,
    names: Collection[str] | None = None,
    *,
    seconds: float = SECONDS,
    progress: Callable[[str], None] = lambda what: None,
) -> Audit:
    """Run the reference with each bug of the zoo on the recorded inputs, and compare its outputs with the right ones.

    Both the bounds and the comparison see the output alone, rounded to the dtype of its call.

    Args:
        recording: the recorded calls.
        comparison: how outputs are compared.
        names: the calls that count. Default: all.
        seconds: how long each of the two searches may take, roughly.
        progress: is told what is being done.

    Raises:
        SpecError: `seconds` is no time.
    """
    calls = tuple(replace(call, outputs={"output": call.outputs["output"]}) for call in recording.calls)
    outputs = replace(recording, calls=calls)
    if not seconds >= 0.0:
        raise SpecError(f"the time limit must be a number of seconds from 0. Got {seconds:g}.")
    told = _Told(comparison)

    begun = time.monotonic()
    unseen = undetectable_bugs(outputs, names, seconds=seconds, progress=progress)
    between = time.monotonic()
    bugs = [bug for bug in all_bugs() if bug.id in unseen.seen]
    found = undetectable_bugs(
        outputs, names, seconds=seconds, bugs=bugs, told=told, cut=comparison.each, progress=progress
    )
    late = max(between - begun, time.monotonic() - between) > seconds
    return Audit(comparison.words, found.within, found.seen, found.untried, unseen, late, told.strict)
