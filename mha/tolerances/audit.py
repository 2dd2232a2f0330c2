"""Audit a comparison: which bugs of the zoo it lets pass on recorded calls, although the computed bounds see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.bounds.precision import Precision
from conformance.cases.table import all_cases
from conformance.judging.expected import expected
from conformance.zoo.bug import DoesNotApply
from conformance.zoo.registry import all_bugs
from conformance.zoo.shows import Shows
from mha.recordings.recording import Recording
from mha.undetectable_bugs.find import SHOWN, UndetectableBugs, undetectable_bugs
from mha_core import SpecError
from mha_core.dtypes import round_to
from mha_core.errors import listed
from mha_core.reference.state import State

SCHEMA_VERSION = 1

SECONDS = 60.0
"""Default time limit."""


@dataclass(frozen=True)
class Audit:
    """An audit of a comparison such as allclose: the bugs that it lets pass.

    Attributes:
        comparison: the comparison in words.
        passed: ids of bugs that pass the comparison in every call, though they exceed the error bound in one; largest
            error first.
        caught: ids of the bugs that exceed the bound and fail the comparison.
        untried: ids of the bugs that exceed the bound, but for which there was no time to compare.
        unseen: the bugs that even the error bounds can't show with these calls.
        late: whether the time ran out before every bug had been compared in every call.
        shown_in: id of a case of the test suite -> ids of bugs in `passed` that the comparison catches in that case.
            Each bug is listed once, in the smallest such case.
        strict: 0.0 if all outputs within the error bounds pass the comparison, or if it is of whole outputs. Otherwise
            right layers may fail the comparison: `strict` is the largest error bound of the calls in which they may.
    """

    comparison: str
    passed: tuple[str, ...]
    caught: tuple[str, ...]
    untried: tuple[str, ...]
    unseen: UndetectableBugs
    late: bool = False
    strict: float = 0.0
    shown_in: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict of JSON values."""
        lists = {name: list(getattr(self, name)) for name in ("passed", "caught", "untried")}
        return {
            "schema": SCHEMA_VERSION,
            "comparison": self.comparison,
            **lists,
            "late": self.late,
            "strict": self.strict,
            "shown_in": {case: list(bugs) for case, bugs in self.shown_in.items()},
            "unseen": self.unseen.to_dict(),
        }

    def text(self) -> str:
        """Return the result in words: which bugs pass, and which ones even the bounds would not show."""
        calls = "this call" if self.unseen.calls == 1 else f"these {self.unseen.calls} calls"
        seen = len(self.unseen.seen)
        lines = [
            f"On {calls} {self.comparison} lets {len(self.passed)} of the {seen} bugs pass that the computed bounds see"
            + (f": {listed(self.passed, SHOWN)}" if self.passed else ".")
        ]
        for case, bugs in self.shown_in.items():
            lines.append(f"  in case {case} (`mha check --list`) it would show {listed(bugs, SHOWN)}")
        if self.shown_in and (
            never := [bug for bug in self.passed if all(bug not in one for one in self.shown_in.values())]
        ):
            lines.append(f"  in no case tried: {listed(never, SHOWN)}")
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
        one, right = _outputs(shows, state)
        if self.comparison.each and shows is not self.last:
            self.last, allowed = shows, shows.wanted.allowed_error["output"]
            if not self.comparison.passes(right + allowed, right):
                self.strict = max(self.strict, float(allowed.max()))
        return _differs(self.comparison, one, right)


def _outputs(shows: Shows, state: State) -> tuple[NDArray, NDArray]:
    """The output of a run with a bug, and the right one, as the dtype has them."""
    one, right = (round_to(run["output"], shows.dtype).astype(np.float64) for run in (state, shows.right))
    return one, right


def _differs(comparison: Comparison, one: NDArray, right: NDArray) -> bool:
    return one.shape != right.shape or not comparison.passes(one, right)


def _shown_in(names: Collection[str], comparison: Comparison, dtype: str, end: float) -> dict[str, tuple[str, ...]]:
    """See `Audit.shown_in`; `end` is when time is up."""
    left = [bug for bug in all_bugs() if bug.id in names]
    found: dict[str, tuple[str, ...]] = {}
    for case in sorted(all_cases(), key=lambda case: case.batch * case.query_len * case.key_len):
        if not left or time.monotonic() > end:
            break
        if case.expensive:
            continue
        shows, shown = Shows.of(expected(case, Precision.of(dtype)), dtype), []
        if not np.isfinite(shows.right["output"]).all():  # no comparison of numbers passes it, right or wrong
            continue
        for bug in left:
            with suppress(DoesNotApply):
                state, changed = shows.forward(bug)
                if changed and _differs(comparison, *_outputs(shows, state)):
                    shown.append(bug.id)
        if shown:
            found[case.id] = tuple(shown)
            left = [bug for bug in left if bug.id not in shown]
    return found


def audit(
    recording: Recording,
    comparison: Comparison,
    names: Collection[str] | None = None,
    *,
    seconds: float = SECONDS,
    progress: Callable[[str], None] = lambda what: None,
) -> Audit:
    """Return an Audit: which bugs a comparison lets pass when the reference runs with them on the recorded inputs.

    Only the outputs are compared, each rounded to the dtype of its call.

    Args:
        comparison: how outputs are compared.
        names: the names of the calls to use. Default: all.
        seconds: roughly how long each of three searches may take: for `unseen`, for `passed` and for `shown_in`.
        progress: called with a text on the current step.

    Raises:
        SpecError: `seconds` is negative or NaN.
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
    after = time.monotonic()
    late = max(between - begun, after - between) > seconds
    shown_in = _shown_in(found.within, comparison, recording.layers[0].dtype, after + seconds)
    return Audit(comparison.words, found.within, found.seen, found.untried, unseen, late, told.strict, shown_in)


# Comparisons that tests of ports use in place of a bound: one tolerance for all numbers, a cosine, a divergence.


@dataclass(frozen=True)
class Comparison:
    """A way in which a test compares an output with the right one, such as allclose.

    Attributes:
        words: its name in reports, such as "allclose(atol=0.001, rtol=0)".
        passes: (output, right output), both float64 of the same shape -> whether the test passes.
        each: whether elements are compared one by one, so that an output fails if any part of it fails.
    """

    words: str
    passes: Callable[[NDArray, NDArray], bool]
    each: bool = False


def chosen(
    atol: float | None = None, rtol: float | None = None, cosine: float | None = None, kl: float | None = None
) -> Comparison:
    """Return the Comparison with the given limit: atol and rtol, cosine, or kl (Kullback-Leibler divergence).

    Raises:
        SpecError: no kind of limit is given, or several are; or a limit is out of its range.

    >>> chosen(atol=0.1).passes(np.array([1.05]), np.array([1.0])), chosen(cosine=1).words
    (True, 'cosine >= 1')
    """
    if sum(one is not None for one in (atol, cosine, kl)) != 1:
        raise SpecError(
            "give exactly one comparison: --atol (with --rtol or without), --cosine or --kl; such as --atol 1e-3"
        )
    if rtol is not None and atol is None:
        raise SpecError("--rtol belongs to --atol")
    for name, number in (("--atol", atol), ("--rtol", rtol), ("--kl", kl)):
        if number is not None and not 0.0 <= number < np.inf:
            raise SpecError(f"{name} must be a number from 0. Got {number:g}.")
    if cosine is not None and not -1.0 <= cosine <= 1.0:
        raise SpecError(f"--cosine must be a number from -1 to 1. Got {cosine:g}.")
    if atol is not None:
        return _allclose(atol, rtol or 0.0)
    if cosine is not None:
        return Comparison(f"cosine >= {cosine:g}", lambda one, right: cosine_of(one, right) >= cosine)
    return Comparison(f"KL divergence <= {kl:g}", lambda one, right: divergence(one, right) <= (kl or 0.0))


def _allclose(atol: float, rtol: float) -> Comparison:
    def passes(one: NDArray, right: NDArray) -> bool:
        return bool(np.allclose(one, right, atol=atol, rtol=rtol, equal_nan=True))

    return Comparison(f"allclose(atol={atol:g}, rtol={rtol:g})", passes, each=True)


def cosine_of(one: NDArray, right: NDArray) -> float:
    """Return the cosine similarity of two flattened outputs; 1 if both are zero; NaN if a number is not finite."""
    if np.array_equal(one, right):
        return 1.0
    with any_numbers:
        lengths = np.linalg.norm(one) * np.linalg.norm(right)
        return float(np.vdot(one, right) / lengths) if lengths else 0.0


def divergence(one: NDArray, right: NDArray) -> float:
    """Return the mean, over all rows, of the Kullback-Leibler divergence D(softmax(right) || softmax(one)), in nats."""
    if not right.size:
        return 0.0
    with any_numbers:
        mine, theirs = (x - x.max(axis=-1, keepdims=True) for x in (one, right))
        mine, theirs = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (mine, theirs))
        return float(np.mean(np.sum(np.exp(theirs) * (theirs - mine), axis=-1)))
