"""Asker: a subject that can be asked anything, with a limit on the time, and a note of what it refuses."""

from __future__ import annotations

import hashlib
import pickle
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF, Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import Expected, answer
from conformance.judging.near import Nearness
from conformance.measure.designs import CONFIGS, generic
from conformance.subjects.ask import CannotExpress, Session, SubjectFailed, ask, within
from mha_core import AttentionConfig, SpecError, Trace
from mha_core.weights import Weights

MOST_CONFIGS = 3
"""Layers that a subject is asked as: a dependence on sizes is named only if it holds in all of them."""

SECONDS = 30.0
"""Default of the time that all questions of one diagnosis may take."""

SLOW = 0.1
"""Seconds of a call, the longest aside, from which on a subject is asked less: it compiles each size."""

FIRST_WAIT, LATER_WAIT, TIMES_LONGER, MOST_UNANSWERED = 10.0, 1.0, 20.0, 4
"""Seconds that a call may take before one had no answer, and after, at least; so many times the longest with one; and
the number of calls without an answer in time after which no more are made."""

KEPT, SMALL = 2048, 2**16
"""Answers of the definition that are kept from one layer to the next: how many, and of how many bytes."""


@dataclass(eq=False)
class Asker:
    """Asks a subject, once per problem.

    Args:
        subject: anything with `prepare(config, weights) -> run(inputs) -> Trace`.
        seconds: the time that its answers may take together; after that every question is refused.
        configs: the layers that it may be asked as. Default: those of CONFIGS that it takes.

    Attributes:
        precision: the arithmetic that its bounds are of; narrower than declared once that is seen.
        inside: that dtype, or None.
        refused: why a question had no answer -> how often.
        questions: how many were asked.
        spent: the seconds that they took.
    """

    subject: Any
    seconds: float = SECONDS
    configs: tuple[AttentionConfig, ...] = ()
    precision: Precision = field(init=False)
    inside: str | None = None
    refused: Counter[str] = field(default_factory=Counter)
    questions: int = 0
    spent: float = 0.0
    _longest: float = 0.0
    _unanswered: int = 0
    _answers: dict[Problem, Trace | None] = field(default_factory=dict, repr=False)
    _by_digest: dict[bytes, Trace | None] = field(default_factory=dict, repr=False)
    _rounded: dict[Problem, Problem | None] = field(default_factory=dict, repr=False)
    _wanted: dict[Problem, Expected] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.precision = self.subject.precision
        if not self.configs:
            self.configs = self._accepted()

    def learn(self, taken: Sequence[Problem]) -> None:
        """Take the configs of a restrictive subject from calls that it has answered."""
        if not self.configs:
            configs = dict.fromkeys(problem.config for problem in taken)
            asked = ((one, self.made(lambda _, one=one: [generic(one)])) for one in configs)  # type: ignore[misc]
            self.configs = tuple(one for one, call in asked if call and self.ask(call[0]) is not None)[:MOST_CONFIGS]

    def made(self, problems: Callable[[Asker], Sequence[Problem]]) -> Sequence[Problem]:
        """Return the problems; [], with a note of why, where a layer has no such call."""
        try:
            return problems(self)
        except SpecError as error:
            self._refuse(str(error))
            return []

    def _accepted(self) -> tuple[AttentionConfig, ...]:
        """Return the richest configs that it takes."""
        found: list[AttentionConfig] = []
        for config in CONFIGS:
            if len(found) < MOST_CONFIGS and self.ask(generic(config)) is not None:
                found.append(config)
        if not found:  # a layer that confuses queries with keys takes as many of both
            found = [config for config in CONFIGS if self.ask(generic(config, key_len=3)) is not None]
        return tuple(found[:MOST_CONFIGS])

    @property
    def fixed_weights(self) -> Weights | None:
        """The weights of a subject that can't be asked with others, as a live layer; else None."""
        return self.subject.weights if hasattr(self.subject, "fitted") else None

    @property
    def slow(self) -> bool:
        """Whether its calls take long, so that it is asked less."""
        return self.spent - self._longest > SLOW * self.questions

    @property
    def unit(self) -> float:
        """The unit roundoff of its arithmetic."""
        return UNIT_ROUNDOFF[self.precision.storage]

    @property
    def nearness(self) -> Nearness:
        """How near its arrays and a model's must be."""
        return Nearness.of(self.unit, inside=self.inside is not None)

    def narrow_to(self, dtype: str) -> None:
        """Judge by the bounds of a narrower dtype from here on."""
        self.inside, self.precision = dtype, Precision.of(dtype)
        self._wanted.clear()

    @property
    def out_of_time(self) -> bool:
        """Whether no question is asked any more."""
        return self.spent >= self.seconds or self._unanswered >= MOST_UNANSWERED

    def ask(self, problem: Problem) -> Trace | None:
        """Return its answer, as float64, to a problem rounded to its dtype; None, with a note of why, without one."""
        if problem not in self._answers:
            digest = _digest(problem)  # what one probe reads, the next often asks for again
            if digest not in self._by_digest:
                self._by_digest[digest] = self.ask_again(problem)
            self._answers[problem] = self._by_digest[digest]
        return self._answers[problem]

    def in_turn(self, problems: Sequence[Problem]) -> list[Trace]:
        """Return all that one prepared layer gives for several problems, up to the first that it fails at."""
        found: list[Trace] = []
        start = time.perf_counter()
        try:
            session = Session(within(self.subject, self._patience), self.rounded(problems[0]))
            for problem in problems:
                self.questions += 1
                found.append(session.answer(self.rounded(problem)))
        except (CannotExpress, SubjectFailed):
            pass
        self.spent += time.perf_counter() - start
        return found

    def output(self, problem: Problem) -> NDArray | None:
        """Return its output, or None."""
        trace = self.ask(problem)
        return None if trace is None else trace.output

    def is_right(self, problem: Problem) -> bool:
        """Return whether its answer is the definition's, within the bounds; it must have given one."""
        output = self.output(problem)
        assert output is not None
        return self.wanted(problem).allows("output", output, "float64")

    def wanted(self, problem: Problem) -> Expected:
        """Return the definition's answer with the bounds of the subject's precision."""
        if problem not in self._wanted:
            self._wanted[problem] = _answer(self.rounded(problem), self.precision)
        return self._wanted[problem]

    def rounded(self, problem: Problem) -> Problem:
        """Return the problem as the subject gets it: the same object for the same problem.

        In its dtype, and where its sizes or weights are fixed (`fitted`) the nearest that it can be asked.
        """
        fitted = getattr(self.subject, "fitted", None)
        if self.subject.dtype == "float64" and fitted is None:
            return problem
        if problem not in self._rounded:
            nearest = problem if fitted is None else fitted(problem)
            self._rounded[problem] = None if nearest is None else nearest.rounded(self.subject.dtype)
        found = self._rounded[problem]
        if found is None:
            raise CannotExpress("a call that is not of its sizes")
        return found

    @property
    def _patience(self) -> float:
        """The seconds that the next call may take."""
        return max(LATER_WAIT if self._unanswered else FIRST_WAIT, TIMES_LONGER * self._longest)

    def ask_again(self, problem: Problem) -> Trace | None:
        """Return as `ask` does, but ask even if it has been asked before."""
        if self.out_of_time:
            self._refuse(self._late)
            return None
        limit, start = self._patience, time.perf_counter()
        self.questions += 1
        try:
            asked = self.rounded(problem)
            arrays = ask(within(self.subject, limit), asked).arrays()
        except CannotExpress as reason:
            self._refuse(str(reason))
            return None
        except SubjectFailed as reason:
            self._unanswered += time.perf_counter() - start >= limit
            self._refuse(str(reason))
            return None
        finally:
            seconds = time.perf_counter() - start
            self.spent += seconds if seconds < limit else 0.0  # what is waited for in vain has a limit of its own
        self._longest = max(self._longest, seconds)
        output = arrays["output"]
        shape = (asked.sizes.batch, asked.sizes.query_len, asked.config.output_dim)
        if output.shape != shape or output.dtype.kind != "f":
            self._refuse(f"its output is {output.dtype} {output.shape} where {shape} was expected")
            return None
        return Trace.of_arrays({name: np.asarray(array, np.float64) for name, array in arrays.items()})

    @property
    def _late(self) -> str:
        if self._unanswered >= MOST_UNANSWERED:
            return f"{MOST_UNANSWERED} calls had no answer in time, so no more were made"
        return f"the time for experiments, {self.seconds:g} s, was spent"

    def _refuse(self, reason: str) -> Trace | None:
        self.refused[reason] += 1
        return None


_answers: OrderedDict[tuple[bytes, Precision], Expected] = OrderedDict()
"""What the definition gives, with its bounds: every layer that is measured in this process is asked much the same."""


def _answer(problem: Problem, precision: Precision) -> Expected:
    key = _digest(problem), precision
    if key in _answers:
        _answers.move_to_end(key)
        return _answers[key]
    found = answer(problem, precision)
    if sum(array.nbytes for array in found.trace.arrays().values()) <= SMALL:
        _answers[key] = found
        if len(_answers) > KEPT:
            _answers.popitem(last=False)
    return found


def _digest(problem: Problem) -> bytes:
    """Return what a problem is made of, in a few bytes: equal problems have equal ones."""
    made_of = pickle.dumps((problem.config, dict(problem.weights), problem.inputs))
    return hashlib.blake2b(made_of, digest_size=16).digest()
