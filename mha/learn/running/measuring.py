"""What a wrong step does, measured: a learner's function in the definition's place, asked by experiments.

Its mistake is on no file, so it is made a subject of which every other step is the definition's. The probes that
isolate its step are asked, and what they show is said only if it gives the learner's numbers in every case of the
exercise.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.judging.expected import Expected
from conformance.measure.asker import SLOW, Asker
from conformance.measure.faults import TROUBLE, lower, unwarned
from conformance.measure.outcome import Model
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from conformance.measure.softmax.exclusion import filled
from conformance.subjects.ask import CannotExpress
from conformance.workers.wire import sendable
from conformance.zoo.bug import Bug, BuggySubject, DoesNotApply, pipelines
from mha.learn.bench import PIPELINE, Place, bench
from mha.learn.exercise import StepExercise
from mha.learn.exercises import exercise
from mha.learn.judge import first_wrong, formed
from mha.learn.names import Answer, mistakes, same
from mha.learn.running.attempt import Asked, Unfit, answer_of, captured, found
from mha_core import AttentionConfig, AttentionMask, Trace
from mha_core.reference import pipeline as reference
from mha_core.reference.backward import BACKWARD
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State, Step

SECONDS = 4.0
"""Most seconds of computing that measuring takes; what is not found by then is not said."""

OF_QUERIES = ("queries", "scores", "scores-square")
OF_HEADS = ("equal-channels", "value-channels", "one-key", "equal-scores", "chosen-keys", "items-of-equal-scores")
OF_SCORES = ("score-size", "queries", "keys", "scores", "scores-square", "items")
OF_GRADIENTS = ("gradients", "gradients-of-square-calls", "gradients-of-items")

FILL = re.compile(r".*excluded-filled-(-?(?:inf|[\d.]+(?:e[+-]?\d+)?))(.*)")
"""The id of a bug that fills excluded scores: the number, and what else is told of it."""

OTHER_FILLS = (-np.inf, -1e4, -1e9)

NOT_SET = "Weights of excluded keys are what is computed, 0 / 0 too: nothing sets them to 0."

PROBES = {
    ("q_proj",): ("score-size", *OF_QUERIES, "projection-biases"),
    ("queries",): OF_QUERIES,
    ("unscaled",): OF_SCORES,
    ("unscaled", "similarity"): (*OF_SCORES, "given-scale"),
    ("capped",): ("scores", "softcap", "softcap-with-scale"),
    ("allowed",): ("mask-lengths", "mask-causal", "mask-offset", "mask-window", "mask-lengths-per-query"),
    ("weights",): ("same-value", "equal-scores", "softmax", "softmax-moderate", "masked-scores", "items"),
    ("heads",): OF_HEADS,
    ("merged",): OF_HEADS,
    ("merged", "output"): (*OF_HEADS, "output-bias", "one-key-with-biases"),
    ("keys",): ("keys", "past", "past-of-items"),
    ("d_scores",): OF_GRADIENTS,
    ("d_keys",): OF_GRADIENTS,
    ("d_queries", "d_keys"): OF_GRADIENTS,
}
"""The part that an exercise stands for -> the probes that isolate it."""


@sendable
@dataclass(frozen=True)
class Said:
    """What was measured, and what to change."""

    sentence: str
    fix: str


def measured_in(path: str, name: str, answers: tuple[Answer, ...]) -> tuple[Said, ...]:
    """What the function in a file does, where it gave these answers in an exercise's cases; () if that is not found."""
    one = exercise(name)
    assert isinstance(one, StepExercise)
    with captured():
        try:
            function = found(path, one.function)
        except Unfit:
            return ()
        asked = Asked(path, one.function, one.parameters, one.names, (), one.dialect)
        return said_of(one, lambda arguments, shapes: answer_of(asked, function, arguments, shapes), answers)


Call = Callable[[tuple[Any, ...], tuple[tuple[int, ...], ...]], Answer]
"""(arguments, shapes to be returned) -> what a learner's function gives. It may raise Unfit."""


def said_of(one: StepExercise, call: Call, answers: Sequence[Answer], *, seconds: float = SECONDS) -> tuple[Said, ...]:
    """What a function does that gave these answers in all cases, one sentence for each mistake; () if not found.

    Args:
        one: the exercise.
        call: calls the function.
        answers: of every case, in their order.
        seconds: of computing, at most.
    """
    steps = _steps(one, call)
    if one.covers not in PROBES or steps is None or len(answers) != len(bench(one).places):
        return ()
    with unwarned(), np.errstate(all="ignore"):
        try:
            return _first(one, steps, answers, seconds)
        except OutOfTime:
            return ()


def _first(one: StepExercise, steps: dict[str, Step], answers: Sequence[Answer], seconds: float) -> tuple[Said, ...]:
    """What the first model says that gives all answers, probe after probe."""
    forward = {name: step for name, step in steps.items() if name in FORWARD}
    backward = {name: step for name, step in steps.items() if name in BACKWARD}
    subject = _Alone(Bug("learner", "", "", "", forward=forward, backward=backward), backward=one.backward)
    asker = _TimedAsker(subject, seconds / SLOW, until=time.process_time() + seconds)
    known = [mistake.bug for mistake in mistakes(one)]
    models: tuple[Model, ...] = ((),)
    for id in PROBES[one.covers]:
        models = measure(subject, start=models, asker=asker, zoo=known, probes=select_probes([id], alone=True)).models
        within = sorted(models, key=lambda bugs: sum(not bug.steps <= set(one.covers) for bug in bugs))
        for where, places in _limits(one, answers):
            for model in within:
                if model and _gives(one, model, answers, places):
                    least = _least(one, model, answers, places)
                    return _said(tuple(_any_fill(one, bug, least, answers, places) for bug in least), where)
    return ()


def _limits(one: StepExercise, answers: Sequence[Answer]) -> Iterator[tuple[str, frozenset[int]]]:
    """To which calls what is said may be limited: none; those in which an argument is None, or is given, if the others
    are right. Each with the cases that are such calls, by their numbers.
    """
    places = bench(one).places
    yield "", frozenset(range(len(places)))
    wrong = {
        i for i, (place, answer) in enumerate(zip(places, answers, strict=True)) if first_wrong(one, place, answer)
    }
    for number, argument in enumerate(one.arguments):
        missing = frozenset(i for i, place in enumerate(places) if place.arguments[number] is None)
        given = frozenset(range(len(places))) - missing
        if missing and given and wrong <= missing:
            yield f"Where {argument.name} is None: ", missing
        elif missing and given and wrong <= given:
            yield f"Where {argument.name} is not None: ", given


def _said(model: Model, where: str) -> tuple[Said, ...]:
    return tuple(Said(where + (lower(bug.sentence) if where else bug.sentence), bug.fix) for bug in model)


def _least(one: StepExercise, model: Model, answers: Sequence[Answer], places: frozenset[int]) -> Model:
    """The model without what the answers do not need."""
    for bug in model:
        rest = tuple(other for other in model if other is not bug)
        if rest and _gives(one, rest, answers, places):
            return _least(one, rest, answers, places)
    return model


def _any_fill(one: StepExercise, bug: Bug, model: Model, answers: Sequence[Answer], places: frozenset[int]) -> Bug:
    """The bug; without its number if it fills excluded scores with one, and another would give the answers too."""
    fill = FILL.fullmatch(bug.id)
    if fill is None:
        return bug
    rest = tuple(other for other in model if other is not bug)
    for other in (each for number in OTHER_FILLS if number != float(fill[1]) for each in filled(number)):
        alike = FILL.fullmatch(other.id)
        if alike is not None and alike[2] == fill[2] and _gives(one, (*rest, other), answers, places):
            says = (
                NOT_SET if alike[1] == "-inf" else bug.sentence.replace(f"become {fill[1]}", "become a finite number")
            )
            return replace(bug, sentence=says)
    return bug


def _gives(one: StepExercise, model: Model, answers: Sequence[Answer], places: frozenset[int]) -> bool:
    """Whether a model gives the learner's arrays in these cases."""
    forward, backward = pipelines(*model)
    for number in places:
        place = bench(one).places[number]
        problem = place.problem
        inputs = problem.inputs if one.backward else replace(problem.inputs, cotangent=None)
        try:
            state = reference.run_state(problem.config, problem.weights, inputs, forward=forward, backward=backward)
        except (DoesNotApply, *TROUBLE):
            return False
        if not same(tuple(np.asarray(made.read(state.arrays)) for made in one.returned), answers[number], place):
            return False
    return True


# The subject -------------------------------------------------------------------------------------------


class OutOfTime(Exception):
    """The time for measuring is over."""


@dataclass(eq=False)
class _TimedAsker(Asker):
    """A Asker that ends the search when its time is over: `until`, by `time.process_time`."""

    until: float = float("inf")

    def ask(self, problem: Any, *, gradients: bool = False) -> Trace | None:
        self._look()
        return super().ask(problem, gradients=gradients)

    def wanted(self, problem: Any, *, gradients: bool = False) -> Expected:
        self._look()  # every model that is compared needs it
        return super().wanted(problem, gradients=gradients)

    def _look(self) -> None:
        if time.process_time() > self.until:
            raise OutOfTime


class _Alone(BuggySubject):
    """The definition with a learner's step in it, of which the output is seen, and its gradients if they are asked."""

    def __init__(self, bug: Bug, *, backward: bool) -> None:
        super().__init__(bug)
        self._with_gradients = backward

    def prepare(self, config: AttentionConfig, weights: Any) -> Any:
        run = super().prepare(config, weights)

        def shown(inputs: Any) -> Trace:
            trace = run(inputs if self._with_gradients else replace(inputs, cotangent=None))
            return Trace(output=trace.output, gradients=trace.gradients)

        return shown


def _steps(one: StepExercise, call: Call) -> dict[str, Step] | None:
    """Steps of the pipeline that give what a function returns; None where that is no step's whole result."""
    sources = [returned.source for returned in one.returned]
    if not set(sources) <= set(one.covers):
        return None
    return {str(name): partial(_result, one, call, str(name), number) for number, name in enumerate(sources)}


def _result(one: StepExercise, call: Call, name: str, number: int, state: State) -> NDArray:
    """What the function gives in a call, in the shape of the step. Raises CannotExpress in one of another kind."""
    wanted = np.asarray(PIPELINE[name](state))
    if one.covers == ("allowed",) and not _sources(state.inputs.mask):
        return wanted
    arguments = tuple(argument.read(state) for argument in one.arguments)
    if not _is_of_kind(one, state, arguments):
        raise CannotExpress("a call of another kind than the exercise's")
    shapes = tuple(wanted.shape if i == number else () for i, _ in enumerate(one.returned))
    array = formed(one, call(arguments, shapes)[number], wanted)
    if array.shape != wanted.shape or array.dtype != wanted.dtype:
        raise Unfit(f"{name} has another shape or dtype")
    return array


def _is_of_kind(one: StepExercise, state: State, arguments: tuple[Any, ...]) -> bool:
    """Whether some case of the exercise is a call like this, as far as its function can tell."""
    return any(_alike(one, place, state, arguments) for place in bench(one).places)


def _alike(one: StepExercise, place: Place, state: State, arguments: tuple[Any, ...]) -> bool:
    if place.problem.config.score != state.config.score:
        return False
    if one.covers == ("allowed",) and _sources(place.problem.inputs.mask) != _sources(state.inputs.mask):
        return False
    return all((a is None) == (b is None) for a, b in zip(arguments, place.arguments, strict=True))


def _sources(mask: AttentionMask) -> frozenset[str]:
    """Which sources a mask has."""
    given = {name for name in ("valid_lens", "window", "allowed", "bias") if getattr(mask, name) is not None}
    return frozenset(given | ({"causal"} if mask.causal else set()))


__all__ = ["SECONDS", "Said", "measured_in", "said_of"]
