"""Asker: a subject that can be asked anything, with a limit on the time, and a note of what it refuses."""

from __future__ import annotations

import hashlib
import pickle
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF, Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import Expected, answer
from conformance.judging.near import Nearness
from conformance.measure.budget import Costs, answered
from conformance.measure.designs import CONFIGS, generic, resized
from conformance.subjects.ask import CannotExpress, Session, SubjectFailed, ask, within
from mha_core import AttentionConfig, SpecError, Trace
from mha_core.weights import Weights

LEAST_CONFIGS = 3
"""A dependence on sizes is named only if it holds in this many configs (where the subject takes as many)."""

MOST_CONFIGS = 4

SECONDS = 15.0
"""Default of the time that all questions of one diagnosis may take."""

SHARE = 0.5
"""Of the time that is left, what looking for one explanation may take of a subject whose calls take long."""

SLOW = 2.5
"""So many times that for a subject that compiles or takes long for another reason; it is asked less."""


OTHER_SIZES = ((1, 3), (3, 4), (5, 6))
"""Batches, query and key lengths that tell whether a layer takes others than those that it is known to take."""

KEPT, SMALL = 2048, 2**16
"""Answers of the definition that are kept from one layer to the next: how many, and of how many bytes."""


@dataclass(eq=False)
class Asker:
    """Asks a subject, once per problem.

    Args:
        subject: anything with `prepare(config, weights) -> run(inputs) -> Trace`.
        seconds: the time that its answers may take together, SLOW times that if each takes long; after that every
            question is refused.
        configs: the layers that it may be asked as. Default: those of CONFIGS that it takes.

    Attributes:
        precision: the arithmetic that its bounds are of; narrower than declared once that is seen.
        inside: that dtype, or None.
        sizes: the one batch, query and key length that it takes; None each: any.
        refused: why a question had no answer -> how often.
        questions: how many were asked.
        spent: the seconds that they took.
        costs: what calls cost, by how new their sizes are.
    """

    subject: Any
    seconds: float = SECONDS
    configs: tuple[AttentionConfig, ...] = ()
    precision: Precision = field(init=False)
    inside: str | None = None
    sizes: tuple[int | None, int | None, int | None] = (None, None, None)
    refused: dict[str, int] = field(default_factory=dict)
    questions: int = 0
    spent: float = 0.0
    costs: Costs = field(default_factory=Costs)
    _until: float = field(default=float("inf"), repr=False)
    _answers: dict[Problem, Trace | None] = field(default_factory=dict, repr=False)
    _forward: dict[Problem, Problem] = field(default_factory=dict, repr=False)
    _resized: dict[Problem, Problem] = field(default_factory=dict, repr=False)
    _by_digest: dict[bytes, Trace | None] = field(default_factory=dict, repr=False)
    _rounded: dict[Problem, Problem | None] = field(default_factory=dict, repr=False)
    _wanted: dict[tuple[Problem, bool], Expected] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.precision = self.subject.precision
        if not self.configs:
            self.configs = self._accepted()

    def learn(self, taken: Sequence[Problem]) -> None:
        """Of a subject that takes none of the usual calls: what it can be asked as, from calls that it has answered."""
        if self.configs or not taken:
            return
        configs = dict.fromkeys(problem.config for problem in taken)
        self.configs = tuple(filter(self._has_usual_call, configs))[:MOST_CONFIGS]
        usual = Counter(problem.sizes[:3] for problem in taken if problem.sizes.past_len == 0 and problem.sizes.batch)
        if any(self.ask(generic(config)) is not None for config in self.configs) or not usual:
            return
        own = usual.most_common(1)[0][0]
        for axis, others in enumerate(OTHER_SIZES):
            asked = [(*own[:axis], other, *own[axis + 1 :]) for other in others]
            if not any(self.ask(resized(generic(self.configs[0]), *one)) is not None for one in asked):
                self.sizes = (*self.sizes[:axis], own[axis], *self.sizes[axis + 1 :])
        self.configs = self._accepted() or self.configs

    def made(self, problems: Callable[[Asker], Sequence[Problem]]) -> Sequence[Problem]:
        """The problems; none, with a note of why, where a layer has no such call: no rotary position is below 0."""
        try:
            return problems(self)
        except SpecError as error:
            self._refuse(str(error))
            return ()

    def _has_usual_call(self, config: AttentionConfig) -> bool:
        return bool(self.made(lambda _: [generic(config)]))

    def nearest(self, problems: Sequence[Problem]) -> list[Problem]:
        """The problems; where it takes calls of some sizes alone, the nearest of these."""
        if self.sizes == (None, None, None):
            return list(problems)
        for problem in problems:
            if problem not in self._resized:
                wanted = zip(self.sizes, problem.sizes, strict=False)
                batch, query_len, key_len = (own if only is None else only for only, own in wanted)
                self._resized[problem] = resized(problem, batch, query_len, key_len)
        return list(dict.fromkeys(self._resized[problem] for problem in problems))

    def generic(self, config: AttentionConfig, **how: Any) -> Problem:
        """`designs.generic` in sizes that it takes."""
        return self.nearest([generic(config, **how)])[0]

    def _accepted(self) -> tuple[AttentionConfig, ...]:
        """The richest configs that it takes: those with all sizes different, and at least one that is plain."""
        found: list[AttentionConfig] = []
        for config in CONFIGS:
            most = LEAST_CONFIGS if self.costs.slow else MOST_CONFIGS
            if len(found) < most and self.ask(self.generic(config), gradients=not found) is not None:
                found.append(config)
        if not found:  # a layer that confuses queries with keys takes as many of both
            found = [config for config in CONFIGS if self.ask(generic(config, query_len=4, key_len=4)) is not None]
        return tuple(found[:MOST_CONFIGS])

    @property
    def fixed_weights(self) -> Weights | None:
        """The weights of a subject that can't be asked with others, as a live layer; else None."""
        return self.subject.weights if hasattr(self.subject, "fitted") else None

    @property
    def hides_gradients(self) -> bool:
        """Whether it has answered, and never with gradients where these were asked for."""
        answers = (trace for problem, trace in self._answers.items() if problem.inputs.cotangent is not None)
        given = [trace.gradients for trace in answers if trace is not None]
        return bool(given) and not any(given)

    @property
    def dtype(self) -> str:
        return str(self.subject.dtype)

    @property
    def unit(self) -> float:
        """The unit roundoff of its arithmetic."""
        return UNIT_ROUNDOFF[self.precision.storage]

    @property
    def nearness(self) -> Nearness:
        return Nearness.of(self.unit, inside=self.inside is not None)

    def narrow_to(self, dtype: str) -> None:
        """From here on the bounds are those of a narrower dtype, of which its outputs are numbers."""
        self.inside = dtype
        self.precision = Precision.of(dtype)
        self._wanted.clear()

    @property
    def out_of_time(self) -> bool:
        return self.spent >= min(self._limit, self._until)

    @contextmanager
    def sparing(self) -> Iterator[None]:
        """Inside, a subject that takes long has SHARE of the time that is left, so that some is left after it."""
        before = self._until
        if self.costs.slow:
            self._until = min(before, self.spent + SHARE * max(self._limit - self.spent, 0.0))
        try:
            yield
        finally:
            self._until = before

    @property
    def _limit(self) -> float:
        return self.seconds * (SLOW if self.costs.slow else 1.0)

    def ask(self, problem: Problem, *, gradients: bool = False) -> Trace | None:
        """Its answer, as float64, to a problem rounded to its dtype; None if it gives none, with a note of why.

        Only with `gradients` is it asked for these too: a compiled layer takes three times as long then.
        """
        asked = self.asked(problem, gradients=gradients)
        if asked not in self._answers:
            if self.out_of_time:  # which may be so for a while
                return self._late()
            digest = _digest(asked)  # what one probe reads, the next often asks for again
            if digest not in self._by_digest:
                self._by_digest[digest] = self._ask(asked)
            self._answers[asked] = self._by_digest[digest]
        return self._answers[asked]

    def ask_again(self, problem: Problem) -> Trace | None:
        """As `ask`, but the subject is asked even if it has been before."""
        return self._ask(self.asked(problem))

    def in_turn(self, problems: Sequence[Problem], *, gradients: bool = False) -> list[Trace]:
        """All that one prepared layer gives for several problems, up to the first that it fails at."""
        found: list[Trace] = []
        asked = [self.asked(problem, gradients=gradients) for problem in problems]
        start = time.perf_counter()
        try:
            session = Session(within(self.subject, self.costs.patience.seconds), self.rounded(asked[0]))
            for problem in asked:
                self.questions += 1
                found.append(session.answer(self.rounded(problem)))
        except (CannotExpress, SubjectFailed):
            pass
        self.spent += time.perf_counter() - start
        return found

    def answered(
        self, problems: Sequence[Problem], answer: Callable[[Problem], bool | None], *, gradients: bool = False
    ) -> list[Problem]:
        """Those of a probe's problems that are asked and answered: see `thrift.answered`."""
        return answered(self.nearest(problems), self.costs, partial(self.asked, gradients=gradients), answer)

    def is_dear(self, problem: Problem) -> bool:
        """Whether asking it is likely to take long."""
        return self.costs.is_dear(self.asked(problem))

    def asked(self, problem: Problem, *, gradients: bool = False) -> Problem:
        """The problem, without what asks for gradients unless they are wanted: the same object for the same problem."""
        if gradients or problem.inputs.cotangent is None:
            return problem
        if problem not in self._forward:
            self._forward[problem] = replace(problem, inputs=replace(problem.inputs, cotangent=None))
        return self._forward[problem]

    def output(self, problem: Problem) -> NDArray | None:
        """Its output, or None."""
        trace = self.ask(problem)
        return None if trace is None else trace.output

    def is_right(self, problem: Problem) -> bool:
        """Whether its answer is the definition's, within the bounds; it must have given one."""
        output = self.output(problem)
        assert output is not None
        return self.wanted(problem).allows("output", output, "float64")

    def wanted(self, problem: Problem, *, gradients: bool = False) -> Expected:
        """The definition's answer with the bounds of the subject's precision; with `gradients`, these as well."""
        key = problem, gradients
        if key not in self._wanted:
            rounded = self.rounded(problem)
            self._wanted[key] = _answer(self.asked(rounded, gradients=gradients), self.precision)
        return self._wanted[key]

    def rounded(self, problem: Problem) -> Problem:
        """The problem as the subject gets it: the same object for the same problem.

        In its dtype, and where its sizes or weights are fixed (`fitted`) the nearest that it can be asked.
        """
        fitted = getattr(self.subject, "fitted", None)
        if self.dtype == "float64" and fitted is None:
            return problem
        if problem not in self._rounded:
            nearest = problem if fitted is None else fitted(problem)
            self._rounded[problem] = None if nearest is None else nearest.rounded(self.dtype)
        found = self._rounded[problem]
        if found is None:
            raise CannotExpress("a call that is not of its sizes")
        return found

    def _ask(self, problem: Problem) -> Trace | None:
        if self.out_of_time:
            return self._late()
        if (why_not := self.costs.patience.why_not(problem)) is not None:
            return self._refuse(why_not)
        limit = self.costs.patience.seconds
        start = time.perf_counter()
        self.questions += 1
        asked: Problem | None = None
        answered = True
        try:
            asked = self.rounded(problem)
            arrays = ask(within(self.subject, limit), asked).arrays()
        except (CannotExpress, SubjectFailed) as reason:
            answered = time.perf_counter() - start < limit
            asked = None if isinstance(reason, CannotExpress) else asked
            return self._refuse(str(reason))
        finally:
            seconds = time.perf_counter() - start
            self.spent += seconds if answered else 0.0  # what is waited for in vain has limits of its own
            if asked is not None:
                self.costs.note(asked, seconds, answered=answered)
        output = arrays["output"]
        shape = (asked.sizes.batch, asked.sizes.query_len, asked.config.output_dim)
        if output.shape != shape or output.dtype.kind != "f":
            return self._refuse(f"its output is {output.dtype} {output.shape} where {shape} was expected")
        return Trace.of_arrays({name: np.asarray(array, np.float64) for name, array in arrays.items()})

    def _late(self) -> Trace | None:
        return self._refuse(f"the time for experiments, {self._limit:g} s, was spent")

    def _refuse(self, reason: str) -> Trace | None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        return None

    def why_refused(self) -> Mapping[str, int]:
        """Each reason for a question without an answer -> how often, the most frequent first."""
        return dict(sorted(self.refused.items(), key=lambda item: -item[1]))


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
    """What a problem is made of, in a few bytes: equal problems have equal ones."""
    return hashlib.blake2b(
        pickle.dumps((problem.config, dict(problem.weights), problem.inputs)), digest_size=16
    ).digest()
