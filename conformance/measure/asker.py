"""Asker: a subject that can be asked anything in a limited time. Behaviour: is it a function, in which precision?"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF, Precision
from conformance.cases.problem import Problem
from conformance.judging.distance import Nearness
from conformance.judging.expected import Expected, answer
from conformance.measure.designs import CONFIGS, changed, differentiated, generic
from conformance.subjects.ask import CannotExpress, Session, SubjectFailed, ask, can_be_asked_again, within
from conformance.zoo.forward.projections import STAGE_OF
from mha_core import AttentionConfig, AttentionMask, SpecError, Trace
from mha_core.errors import listed
from mha_core.parts.query_key_norm import QueryKeyNorm
from mha_core.parts.rotary import Rotary
from mha_core.stages import GRADIENT
from mha_core.weights import Weights

MOST_CONFIGS = 3  # layers that a subject is asked as: a dependence on sizes is named only if it holds in all of them
SECONDS = 30.0  # default of the time that all questions of one diagnosis may take
SLOW = 0.1  # seconds of a call, the longest aside, from which on a subject is asked less: it compiles each size

FIRST_WAIT, LATER_WAIT, TIMES_LONGER, MOST_UNANSWERED = 10.0, 1.0, 20.0, 4
"""Seconds that a call may take before one had no answer, and after, at least; so many times the longest with one; and
the number of calls without an answer in time after which no more are made."""


@dataclass(eq=False)
class Asker:
    """A runner of one subject (a tested layer) on further problems. It caches answers and limits their total time.

    Args:
        subject: anything with `prepare(config, weights) -> run(inputs) -> Trace`.
        seconds: the time that all calls may take together. After that, no problem is run; each counts as refused.
        configs: the layers' configs to use. Default: those of CONFIGS that the subject accepts.

    Attributes:
        precision: the precision of the error bounds: the subject's, or the precision of `inside` if one was seen.
        inside: the narrower dtype in which the subject was seen to compute; None if none was seen.
        refused: reason why a problem had no answer -> number of such problems.
        questions: the number of calls.
        spent: the seconds that all calls took.
        read: what was read of its answers (see `solve`).
    """

    subject: Any
    seconds: float = SECONDS
    configs: tuple[AttentionConfig, ...] = ()
    precision: Precision = field(init=False)
    inside: str | None = None
    refused: Counter[str] = field(default_factory=Counter)
    questions: int = 0
    spent: float = 0.0
    read: dict[object, Any] = field(default_factory=dict, repr=False)
    _longest: float = 0.0
    _unanswered: int = 0
    _answers: dict[Problem, Trace | None] = field(default_factory=dict, repr=False)
    _known: dict[bytes, Trace | None] = field(default_factory=dict, repr=False)
    _rounded: dict[Problem, Problem | None] = field(default_factory=dict, repr=False)
    _wanted: dict[Problem, Expected] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.precision = self.subject.precision
        if not self.configs:
            self.configs = self._accepted()

    def learn(self, taken: Sequence[Problem]) -> None:
        """If `configs` is empty, set it to the configs in `taken` with which the subject answers a random call."""
        if not self.configs:
            configs = dict.fromkeys(problem.config for problem in taken)
            asked = ((one, self.made(lambda _, one=one: [generic(one)])) for one in configs)  # type: ignore[misc]
            self.configs = tuple(one for one, call in asked if call and self.ask(call[0]) is not None)[:MOST_CONFIGS]

    def made(self, problems: Callable[[Asker], Sequence[Problem]]) -> Sequence[Problem]:
        """Return `problems(self)`. If that raises SpecError, count its message in `refused` and return []."""
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
        """Return the subject's own weights if they can't be replaced, as in a live layer; else None."""
        return self.subject.weights if hasattr(self.subject, "fitted") else None

    @property
    def slow(self) -> bool:
        """Return whether the subject's calls take so long that it should be run on fewer problems."""
        return self.spent - self._longest > SLOW * self.questions

    @property
    def unit(self) -> float:
        """Return the unit roundoff of the subject's arithmetic."""
        return UNIT_ROUNDOFF[self.precision.storage]

    @property
    def nearness(self) -> Nearness:
        """Return how near the subject's arrays must be to a model's."""
        return Nearness.of(self.unit, inside=self.inside is not None)

    def narrow_to(self, dtype: str) -> None:
        """Judge by the bounds of a narrower dtype from here on."""
        self.inside, self.precision = dtype, Precision.of(dtype)
        self._wanted.clear()

    @property
    def out_of_time(self) -> bool:
        """Return whether no question is asked any more."""
        return self.spent >= self.seconds or self._unanswered >= MOST_UNANSWERED

    def ask(self, problem: Problem) -> Trace | None:
        """Return the subject's answer, in float64, to `rounded(problem)`; None if the subject gives none."""
        if problem not in self._answers:
            made_of = _made_of(problem)  # what one probe reads, the next often asks for again
            if made_of not in self._known:
                self._known[made_of] = self.ask_again(problem)
            self._answers[problem] = self._known[made_of]
        return self._answers[problem]

    def in_turn(self, problems: Sequence[Problem]) -> list[Trace]:
        """Prepare one layer, run it on the problems in order, and return the answers up to the first failure."""
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
        """Return the subject's output for a problem; None if the subject gives no answer."""
        trace = self.ask(problem)
        return None if trace is None else trace.output

    def is_right(self, problem: Problem) -> bool:
        """Return whether the subject's output is within the error bounds. The subject must answer the problem."""
        output = self.output(problem)
        assert output is not None
        return self.wanted(problem).allows("output", output, "float64")

    def wanted(self, problem: Problem) -> Expected:
        """Return the expected answer to a problem, with error bounds for `precision`."""
        if problem not in self._wanted:
            self._wanted[problem] = _answer(_made_of(self.rounded(problem)), self.precision)
        return self._wanted[problem]

    def right(self, problem: Problem, name: str) -> NDArray:
        """Return the right array of a stage."""
        return self.wanted(problem).trace.arrays()[name]

    def rounded(self, problem: Problem) -> Problem:
        """Return the problem in the subject's dtype. A problem gives the same object each time.

        A subject with fixed sizes or weights gets the nearest problem that fits it, from its method `fitted`.
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
        """Run the subject on a problem and return its answer as `ask` does, but without the cache of answers."""
        if self.out_of_time:
            late = f"{MOST_UNANSWERED} calls had no answer in time, so no more were made"
            spent = f"the time for experiments, {self.seconds:g} s, was spent"
            return self._refuse(late if self._unanswered >= MOST_UNANSWERED else spent)
        limit, start = self._patience, time.perf_counter()
        self.questions += 1
        try:
            asked = self.rounded(problem)
            arrays = ask(within(self.subject, limit), asked).arrays()
        except CannotExpress as reason:
            return self._refuse(str(reason))
        except SubjectFailed as reason:
            self._unanswered += time.perf_counter() - start >= limit
            return self._refuse(str(reason))
        finally:
            seconds = time.perf_counter() - start
            self.spent += seconds if seconds < limit else 0.0  # what is waited for in vain has a limit of its own
        self._longest = max(self._longest, seconds)
        output = arrays["output"]
        shape = (asked.sizes.batch, asked.sizes.query_len, asked.config.output_dim)
        if output.shape != shape or output.dtype.kind != "f":
            return self._refuse(f"its output is {output.dtype} {output.shape} where {shape} was expected")
        return Trace.of_arrays({name: np.asarray(array, np.float64) for name, array in arrays.items()})

    def _refuse(self, reason: str) -> Trace | None:
        self.refused[reason] += 1
        return None


def _made_of(problem: Problem) -> bytes:
    """Return what a problem is made of: equal problems have equal bytes."""
    return pickle.dumps((problem.config, dict(problem.weights), problem.inputs))


@lru_cache(maxsize=1024)
def _answer(made_of: bytes, precision: Precision) -> Expected:
    """Return what the definition gives, with its bounds: other layers measured in this process are asked the same."""
    return answer(Problem(*pickle.loads(made_of)), precision)


RATE, SCALE = 0.4, 0.37  # of dropout, and of scores, in layers that are compared with those without

NUDGES, SMOOTH = (1e-10, 1e-4, 3e-4), 0.1
"""How far queries are moved, as a share of them, and how far answers may be from moving as much."""

NAMES_SHOWN = 4
RANDOM = "Equal calls have different answers, as where dropout is left on: nothing else can be measured."


@dataclass(frozen=True)
class Behaviour:
    """A finding on whether a subject is a function, with equal answers to equal calls.

    Attributes:
        remarks: sentences about equal calls that had different answers.
        is_function: whether equal calls of newly prepared layers have equal answers. If not, nothing can be measured.
        shared: a stage that reuses numbers of an earlier layer of equal sizes, which prevents measurements; or None.
    """

    remarks: tuple[str, ...] = ()
    is_function: bool = True
    shared: str | None = None


def observe(asker: Asker) -> Behaviour:
    """Return the Behaviour that equal questions show."""
    if not asker.configs or not can_be_asked_again(asker.subject):
        return Behaviour()
    problem = generic(asker.configs[0])
    first, again = (_output(asker, problem) for _ in range(2))
    if first is not None and again is not None and not _alike(asker, first, again):
        return Behaviour((RANDOM,), is_function=False)
    if shared := next(_shared(asker, problem), None):
        return Behaviour((shared[1],), shared=shared[0])
    return Behaviour((*_of_repeats(asker, problem), *_of_gradients(asker, problem), *_of_chance(asker, problem)))


def rounds_inside(asker: Asker, model: Callable[[Problem], NDArray | None] | None = None) -> bool:
    """Return whether a float64 subject rounds the queries to about float32. If `model` is given, it is tested instead.

    It rounds if the output is proportional to large changes of the queries (1e-4 of their size) but not to small ones
    (1e-10). Each number is changed by its own factor, because a norm of the queries would undo a common one.
    """
    if asker.subject.dtype != "float64" or not asker.configs:
        return False
    problem = generic(asker.configs[0])
    shares = np.random.default_rng(0).uniform(size=problem.inputs.queries.shape)
    moved = [changed(problem, queries=problem.inputs.queries * (1.0 + by * shares)) for by in (0.0, *NUDGES)]
    outputs = [*map(model or asker.output, moved), model(moved[0]) if model else _output(asker, moved[0])]
    if any(output is None or not np.isfinite(output).all() for output in outputs):
        return False
    at, *others, again = (np.asarray(output) for output in outputs)
    little, much, more = ((other - at) * (NUDGES[0] / by) for other, by in zip(others, NUDGES, strict=True))
    size = float(np.abs(much).max(initial=0.0))
    apart = [float(np.abs(one - much).max(initial=0.0)) / size for one in (little, more)] if size else [0.0, 0.0]
    return np.array_equal(at, again) and apart[0] > SMOOTH > apart[1]


def _output(asker: Asker, problem: Problem) -> NDArray | None:
    trace = asker.ask_again(problem)
    return None if trace is None else trace.output


def _alike(asker: Asker, array: NDArray, other: NDArray) -> bool:
    """Return whether two answers differ by no more than the order of sums explains."""
    return array.shape == other.shape and Nearness.of(asker.unit).near(array, other, 0.0)


Fields = Callable[[int], Mapping[str, Any]]
"""A function: number of channels that are added to the layer -> fields of its config."""

NORM = "query_key_norm"
SETTINGS: tuple[tuple[str, str, Fields, Fields], ...] = (
    ("scale", "scores", lambda n: {}, lambda n: {"scale": SCALE}),
    ("softcap", "scores", lambda n: {"softcap": 9.0}, lambda n: {"softcap": 0.9}),
    ("base of rotary positions", "queries", lambda n: {"rotary": Rotary(n)}, lambda n: {"rotary": Rotary(n, base=2.0)}),
    ("eps of the query-key norm", "queries", lambda n: {NORM: QueryKeyNorm()}, lambda n: {NORM: QueryKeyNorm(eps=1.0)}),
)
"""Settings by which layers may differ alone: (the name, the stage that it is for, the fields of two such layers)."""


def _shared(asker: Asker, problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield (stage, sentence) of what is kept by the shapes of a call for all layers: the second layer gets it."""
    if asker.slow or asker.fixed_weights is not None or problem.config.score != "scaled_dot":
        return
    sizes = count(92, 2)  # of shapes that no case has, nor anything else that was asked
    said = (
        "that of the first layer that was called with these shapes: it is kept by the shapes of a call for all layers"
    )

    def is_shared(one: Fields, other: Fields, weight: str | None = None) -> bool:
        pairs = (one, other), (other, one)
        return all(_is_shared(asker, next(sizes), problem.config, pair, weight) for pair in pairs)

    plain, normed = SETTINGS[0][2], SETTINGS[-1][2]
    for name, stage, one, other in SETTINGS:
        if is_shared(one, other):
            yield stage, f"The {name} is {said}."
    if is_shared(plain, plain, ""):
        found = [name for name in problem.weights if is_shared(plain, plain, name)]
        stage = STAGE_OF.get(found[0].partition(".")[0], "queries") if found else "queries"
        what = f"What depends on {listed(found, NAMES_SHOWN)}" if found else "Something that depends on the weights"
        yield stage, f"{what} is {said}."
    if is_shared(normed, normed, "q_norm.weight"):
        yield "queries", f"The weight of the query-key norm is {said}."


def _is_shared(
    asker: Asker, size: int, config: AttentionConfig, fields: tuple[Fields, Fields], weight: str | None
) -> bool:
    """Return whether the first of two layers of equal sizes is right, and not the second.

    They differ in fields of their configs; or in the weight of that name, "": in all, where one is given.
    """
    wider = _wider(config, size)
    configs = [replace(wider, **some(size)) for some in fields]
    held, drawn = (dict(generic(configs[0], seed=seed).weights) for seed in (0, 1))
    right: list[bool] = []
    for one in configs:
        call = generic(one, query_len=size - 73, key_len=size - 70)  # odd and even ones, so that each is new
        call = replace(call, weights={**call.weights, **held})
        right.append(asker.output(call) is not None and asker.is_right(call))
        if right == [False]:
            return False
        held.update({name: array for name, array in drawn.items() if weight in ("", name)})
    return right == [True, False]


def _wider(config: AttentionConfig, size: int) -> AttentionConfig:
    """Return the config of a layer each of whose sizes is so much more."""
    widths: dict[str, Any] = {"head_dim": config.head_dim + size, "value_head_dim": config.value_head_dim + size}
    embed = config.num_heads * widths["head_dim"]
    given = {name: getattr(config, name) for name in ("query_dim", "key_dim", "value_dim", "output_dim")}
    widths |= {name: embed if old == config.embed_dim else old + size for name, old in given.items()}
    return replace(config, embed_dim=embed, **widths)


def _of_chance(asker: Asker, problem: Problem) -> Iterator[str]:
    """Dropout that draws its own mask where none is given."""
    with_rate = replace(problem, config=replace(problem.config, dropout=RATE))
    first, again = (_output(asker, with_rate) for _ in range(2))
    if first is not None and again is not None and not _alike(asker, first, again):
        yield "With a rate of dropout its answers are random: dropout is active outside training."


def _of_repeats(asker: Asker, problem: Problem) -> Iterator[str]:
    """Yield what one prepared layer, asked again and after other calls, answers otherwise than one prepared anew."""
    config, sizes = problem.config, problem.sizes
    lower = np.tri(sizes.query_len, sizes.key_len, dtype=bool)
    others = {
        "the same call": problem,
        "another call of equal sizes": generic(config, seed=1),
        "the first call": problem,
        "a call with a mask": generic(config, seed=1, mask=AttentionMask(allowed=lower)),
        "a call with another mask": generic(config, seed=1, mask=AttentionMask(allowed=lower[::-1])),
        "a call of greater lengths": generic(config, seed=1, query_len=4, key_len=7),
    }
    problems = [replace(problem, inputs=one.inputs) for one in others.values()]  # all of one layer
    alone = [asker.output(one) for one in problems]
    answers: list[NDArray | None] = [trace.output for trace in asker.in_turn([problem, *problems])][1:]
    asked = [*answers, None][: len(problems) - 1]  # a layer that was prepared for some lengths may refuse others
    for words, fresh, given in zip(others, alone, asked, strict=False):
        if fresh is not None and (given is None or not _alike(asker, fresh, np.asarray(given, np.float64))):
            what = "fails" if given is None else "has another answer"
            yield f"A layer keeps something: asked after other calls, {words} {what}, and not in a layer prepared anew."
            return


def _of_gradients(asker: Asker, problem: Problem) -> Iterator[str]:
    """One prepared layer, differentiated again: gradients that are added up, or kept."""
    problem = differentiated(problem)
    given = [trace.gradients for trace in asker.in_turn([problem, problem])]
    if len(given) < 2 or not all(given):
        return
    first, again = ({name: np.asarray(a, np.float64) for name, a in (one or {}).items()} for one in given)
    allowed = asker.wanted(problem).allowed_error

    def differing(one: Mapping[str, NDArray], like: Mapping[str, NDArray], times: float = 1.0) -> list[str]:
        near = Nearness(asker.unit).near
        return [name for name in one if not near(times * one[name], like[name], allowed[GRADIENT + name])]

    if changed_ones := differing(first, again):
        added = not {*changed_ones} & {*differing(first, again, 2.0)}
        what = "are added up from call to call" if added else "differ in a second call with the same inputs"
        yield f"Gradients {what}: those of {listed(changed_ones, NAMES_SHOWN)}."
