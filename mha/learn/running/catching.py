"""Judge a call that a learner chose: does it show the hidden bug, and how many others does it show?"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import answer
from conformance.subjects.handout import input_arrays
from conformance.workers.wire import is_sendable, sendable
from conformance.zoo.bug import Bug, DoesNotApply
from conformance.zoo.registry import all_bugs, select
from conformance.zoo.shows import Shows
from mha.learn.running.attempt import NotBegun, Unfit, called, captured, found
from mha.undetectable_bugs.needed_calls import is_of_gradients, need_of
from mha_core import AttentionConfig, AttentionInputs, SpecError
from mha_core.errors import one_line, shown

PRECISION = Precision.of("float64")

MOST_NUMBERS = 2_000_000
"""Most numbers of all scores, inputs, weights and outputs of a call: 259 bugs are tried on it."""


@sendable
@dataclass(frozen=True)
class Chosen:
    """A result of calling a learner's `problem()`: the Problem, or the reason why there is none."""

    problem: Problem | None = None
    reason: str = ""
    begun: bool = True
    printed: str = ""


def chosen(path: str) -> Chosen:
    """Call `problem()` of a learner's file (in a worker process), and return the Problem, or why there is none."""
    with captured() as printed:
        try:
            made = called(found(path, "problem", ()), (), path)
            return Chosen(_checked(made), printed=printed())
        except NotBegun:
            return Chosen(reason="problem is still to be written", begun=False)
        except (Unfit, SpecError) as error:
            return Chosen(reason=shown(str(error), 300), printed=printed())


def _checked(made: Any) -> Problem:
    if not isinstance(made, (tuple, list)) or len(made) != 3:
        raise Unfit(f"problem() must return (config, weights, inputs); it returned {type(made).__name__}")
    config, weights, inputs = made
    if type(config) is not AttentionConfig or type(inputs) is not AttentionInputs or not isinstance(weights, dict):
        raise Unfit("problem() must return an AttentionConfig, a dict of weights and AttentionInputs, in this order")
    try:
        problem = Problem(config, {str(name): np.array(array) for name, array in weights.items()}, inputs)
        if not all(map(is_sendable, (*problem.weights.values(), *input_arrays(inputs).values()))):
            raise Unfit("its arrays must hold numbers")
    except (SpecError, Unfit):
        raise
    except Exception as error:  # arrays of somebody's own
        raise Unfit(f"what problem() returned can't be used: {one_line(error)}") from error
    sizes = problem.sizes
    scores = sizes.batch * config.num_heads * sizes.query_len * sizes.key_len
    numbers = scores + sum(array.size for array in problem.weights.values())
    numbers += sum(np.size(array) for array in inputs.leaves().values())
    if numbers > MOST_NUMBERS:
        raise Unfit(f"it has {numbers} numbers; a call of at most {MOST_NUMBERS} shows every bug just as well")
    return problem


class Shown:
    """A test of which bugs change the output of one call, or its gradients if the call has a cotangent."""

    def __init__(self, problem: Problem) -> None:
        self._shows = Shows.of(answer(problem, PRECISION), "float64", ("output",))

    def by(self, bug: Bug) -> bool:
        """Return whether this bug changes the call's result."""
        try:
            return self._shows.first_difference(bug) is not None
        except DoesNotApply:
            return False

    def all(self) -> tuple[int, int]:
        """Return how many bugs change the call's result, and how many there are."""
        bugs = [bug for bug in all_bugs() if not bug.equivalent]
        return sum(map(self.by, bugs)), len(bugs)


def caught(problem: Problem, bug: str, target: int) -> tuple[bool, str]:
    """Return (whether the hidden bug and, with it, `target` bugs or more change a call's result, sentence on that)."""
    shows = Shown(problem)
    number, total = shows.all()
    is_caught = shows.by(select((bug,))[0])
    first = "caught" if is_caught else "not caught: the hidden bug changes nothing in it"
    return is_caught and number >= target, f"{first}; your call shows {number} of {total} bugs; {target} is the level's"


def never_asked(problem: Problem) -> list[str]:
    """Return the features that a call lacks, in words, each with the number of bugs that can't show without it."""
    bugs = [bug for bug in all_bugs() if not bug.equivalent]
    found: Counter[str] = Counter()
    for bug in bugs:
        need = need_of(bug)
        if problem.inputs.cotangent is None and is_of_gradients(bug):
            found["gradients: a cotangent among the inputs"] += 1
        elif need is not None and not need[1](problem):
            found[need[0]] += 1
    return [f"{words} ({count})" for words, count in found.most_common()]
