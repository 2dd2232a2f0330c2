"""A Plan: which cases a run asks of which subject, and how often.

By default a run leaves out what has not shown a fault of its own: a dtype beside another on the same path, a third and
a fourth time. `mha check --all` leaves out nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conformance.cases.case import Case
from conformance.cases.sequence import Asked
from conformance.judging.repeats import Again
from conformance.subjects.subject import Subject

FAST = "fast"
"""The path that a layer takes when nobody asks for its weights."""

WIDE = "float64"
"""The dtype in which the path "fast" is asked the cases of `FAST_IN_WIDE` alone, if it is asked all in another."""

FAST_IN_WIDE = frozenset(
    {
        *("prime", "every-source", "bias-excludes", "lone-open-key", "nan-in-open-key", "long", "no-keys"),
        *("square-no-bias", "square-causal", "square-lens-per-query", "square-nan-in-padding", "additive-grouped"),
        "square-nan-in-query",
        *("blocks-past-the-keys", "blocks-of-uneven-lengths", "blocks-in-training", "blocks-long"),
        *("decoding-step", "decoding-step-in-parts", "decode-long", "causal-softcap-long"),
        *("rotary", "rotary-yarn", "query-key-norm-before", "query-key-norm-after"),
    }
)
"""The cases that together take every branch of the backends' fast paths, and show every step taken in float32."""


@dataclass(frozen=True)
class Plan:
    """A plan of one run: which cases each subject runs, and how right answers are checked by repeated calls.

    Args:
        subjects: all subjects of the run.
        everything: whether each subject runs every case, and each right answer is checked in every way.

    >>> from conformance.cases.table import select_asked
    >>> from conformance.subjects.backend import ReferenceSubject
    >>> plan = Plan((ReferenceSubject(),))
    >>> [asked.id for asked in plan.asked(ReferenceSubject(), select_asked(("prime", "sequence-masks")))]
    ['prime', 'sequence-masks']
    """

    subjects: Sequence[Subject]
    everything: bool = False

    def asked(self, subject: Subject, cases: Sequence[Asked]) -> list[Asked]:
        """Return those of the given cases and sequences of calls that the subject runs."""
        return [case for case in cases if self._asks(subject, case)]

    def again(self, subject: Subject) -> Again:
        """Return how calls with right answers are repeated: "in every way", "in two ways", "in one way" or "never"."""
        if self.everything:
            return "in every way"
        if subject.dtype != self._main_dtype(subject):
            return "never"
        # What stands between one case and the next is asked of the usual path, and in sequences of both.
        return "in one way" if _path(subject) == FAST and self._has_usual(subject) else "in two ways"

    def only_with_all(self, cases: Sequence[Asked]) -> list[str]:
        """Return lines on the cases and repeated calls that this run leaves out, but a run with `--all` has."""
        if self.everything:
            return []
        found = []
        narrowed = [subject for subject in self.subjects if self._is_narrowed(subject)]
        left_out = [case for case in cases if isinstance(case, Case) and case.id not in FAST_IN_WIDE]
        if narrowed and left_out:
            found.append(f"{len(left_out)} case{'s' * (len(left_out) > 1)} on the path {FAST} in {WIDE}")
        if any(self._has_fast(subject) for subject in self.subjects):
            found += [f"{one.id} on other paths than {FAST}" for one in cases if getattr(one, "one_path", False)]
        if any(isinstance(case, Case) for case in cases):
            found.append("a layer asked more than twice again, or again in a second dtype")
            if any(self.again(subject) == "in one way" for subject in self.subjects):
                found.append(f"a layer asked again after another case on the path {FAST}")
        return found

    def _asks(self, subject: Subject, case: Asked) -> bool:
        if isinstance(case, Case):
            return self.everything or not self._is_narrowed(subject) or case.id in FAST_IN_WIDE
        if self.everything:  # what a layer keeps does not depend on its dtype, and a sequence is dozens of calls
            return subject.dtype == self._same_layer(subject)[0].dtype
        elsewhere = case.one_path and _path(subject) is None and self._has_fast(subject)
        return subject.dtype == self._main_dtype(subject) and not elsewhere

    def _same_layer(self, subject: Subject) -> list[Subject]:
        """The subjects that differ from this one in their dtype alone."""
        return [one for one in self.subjects if (one.name, one.device) == (subject.name, subject.device)]

    def _main_dtype(self, subject: Subject) -> str:
        """The first dtype in which this layer is asked every case."""
        return next(one.dtype for one in self._same_layer(subject) if not self._is_narrowed(one))

    def _is_narrowed(self, subject: Subject) -> bool:
        """Whether it is asked the cases of `FAST_IN_WIDE` alone: if its path was not chosen, nor its dtype."""
        beside = {one.dtype for one in self._same_layer(subject)} - {WIDE}
        return _path(subject) == FAST and subject.dtype == WIDE and bool(beside) and self._has_usual(subject)

    def _has_usual(self, subject: Subject) -> bool:
        return any(_backend(one) is _backend(subject) and _path(one) is None for one in self.subjects)

    def _has_fast(self, subject: Subject) -> bool:
        backend = _backend(subject)
        return backend is not None and any(_backend(one) is backend and _path(one) == FAST for one in self.subjects)


def _backend(subject: Subject) -> Any:
    return getattr(subject, "backend", None)


def _path(subject: Subject) -> str | None:
    return getattr(subject, "path", None)
