"""What an exercise is: a row of a table, with the function to write, its arguments, and the cases that judge it.

A step exercise stands for a part of the reference's pipeline. Its function gets what the reference has before that part
and gives what the reference has after it; the bugs of the zoo that are in that part are its mistakes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from conformance.cases.case import Case
from conformance.cases.table import select
from mha_core.reference.backward import BACKWARD
from mha_core.reference.state import State

NUMPY = "numpy"


@dataclass(frozen=True)
class Value:
    """An argument of a function that the learner writes, or an array that the function returns.

    Attributes:
        name: its name in the signature and in messages.
        about: its dtype and shape, as text for the exercise's docstring.
        source: the name of the reference's step whose result is the value, or a function: results of all steps -> the
            value. Default: the value is not computed.
        part: a function: the step's result -> the needed part of it. Default: all of it.
    """

    name: str
    about: str
    source: str | Callable[[Any], Any] = ""
    part: Callable[[Any], Any] | None = None

    def read(self, arrays: State | Mapping[str, Any]) -> Any:
        """Return the value in one case."""
        whole = arrays[self.source] if isinstance(self.source, str) else self.source(arrays)
        return self.part(whole) if self.part else whole


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """An exercise.

    Args:
        name: its name for `mha learn check`. With "_" in place of "-", it is the name of the function and of the file.
        track: the folder of its file.
        task: what to write, in a sentence or two.
        arguments: the function's arguments.
        rules: ids of the rules of attention (in `mha_core.reference.rules`) that the exercise is about.
        advice: what a hint says, in the words of the lessons, if the mistake is unknown. Default: the rules.
        dialect: the framework that the function is written in.
    """

    name: str
    track: str
    task: str
    arguments: tuple[Value, ...] = ()
    rules: tuple[str, ...] = ()
    advice: str = ""
    dialect: str = NUMPY

    @property
    def function(self) -> str:
        """Return the name of the function to write."""
        return self.name.replace("-", "_")

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the function's arguments."""
        return tuple(argument.name for argument in self.arguments)

    @property
    def signature(self) -> str:
        """Return the function's signature, such as softmax(scores, allowed)."""
        return f"{self.function}({', '.join(self.parameters)})"

    @property
    def file(self) -> str:
        """Return the path of the exercise's file in the learner's folder."""
        return f"{self.track}/{self.name.replace('-', '_')}.py"


@dataclass(frozen=True, kw_only=True)
class StepExercise(Exercise):
    """An exercise: write a function that does some steps of the reference's computation.

    Args:
        returned: the arrays that the function returns.
        covers: the steps that the function does, in their order. Default: those whose results it returns.
        cases: the test cases, the easiest first: ids of cases in the test suite, or new cases.
        tiny: cases that can be followed by hand. The hint shows a failing one if no bug explains a wrong answer.
        also: ids of bugs in steps before `covers` that a learner can still make, such as a mask that is ignored.
        never: ids of bugs that can't be made with these arguments, such as bugs of heads if there is only one.
        drawn: a function: a seed -> a new case. A file must be right in such a case too, so that a table of answers
            does not pass. Default: a function that draws new inputs for the first case.
        source: the name of the exercise that this one translates; "" if it is no translation.
        function_name: the name of the function. Default: that of the exercise.
    """

    track: str = "write"
    returned: tuple[Value, ...]
    covers: tuple[str, ...] = ()
    cases: tuple[str | Case, ...]
    tiny: tuple[Case, ...] = ()
    also: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    drawn: Callable[[int], Case] | None = None
    source: str = ""
    function_name: str = ""

    def __post_init__(self) -> None:
        if not self.covers:
            object.__setattr__(self, "covers", tuple(str(one.source) for one in self.returned))

    @property
    def broadcasts(self) -> bool:
        """Return whether the answer is a mask; any shape that broadcasts to the right shape is then accepted."""
        return self.covers == ("allowed",)

    @property
    def backward(self) -> bool:
        """Return whether the exercise needs gradients."""
        return self.covers[0] in BACKWARD

    @property
    def function(self) -> str:
        return self.function_name or super().function

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the arrays that the function returns."""
        return tuple(one.name for one in self.returned)

    @cached_property
    def judged_by(self) -> tuple[Case, ...]:
        """Return the cases that judge an answer, as objects."""
        return tuple(case if isinstance(case, Case) else select((case,))[0] for case in self.cases)

    def drawn_case(self, number: int) -> Case:
        """Return a case that stands in no table, made from a number."""
        if self.drawn is not None:
            return self.drawn(number)
        return replace(self.judged_by[0], id=f"{self.judged_by[0].id}-{number}")


@dataclass(frozen=True, kw_only=True)
class CatchExercise(Exercise):
    """An exercise: choose sizes, a mask and inputs of a call whose result a hidden bug changes.

    Args:
        bug: the id of the bug.
        shown_by: the id of a case whose result this bug changes, for the last hint.
        target: the least number of known bugs, the hidden one included, that must change the call's result.
    """

    bug: str
    shown_by: str
    target: int

    @property
    def function(self) -> str:
        return "problem"


@dataclass(frozen=True, kw_only=True)
class LayerExercise(Exercise):
    """An exercise: write a whole layer. It is judged as `mha check --subject` judges one.

    Args:
        subject: the name of the function or class in the file.
        first: the ids of the cases that come first; the others follow if these are right.
        own: further cases, which are not in the test suite.
        alone: whether `first` and `own` are the only cases.
        has_state: whether the layer has a state (such as a cache), so that sequences of calls are judged too.
        code: the code at the beginning of the exercise's file.
        tiny: a call that can be followed by hand; the file shows its numbers.
        returned: the arrays that a call returns.
    """

    subject: str
    first: tuple[str, ...]
    own: tuple[Case, ...] = ()
    alone: bool = False
    has_state: bool = False
    code: str
    tiny: Case
    returned: tuple[Value, ...] = (Value("output", "float64 (B, Lq, Do)", "output"),)

    @property
    def function(self) -> str:
        return self.subject


@dataclass(frozen=True, kw_only=True)
class HeadsExercise(Exercise):
    """An exercise on a trained layer: rate each head's importance (`kind` "importance"), or remove heads ("cut").

    The learner's function may return one array, or a dict of arrays.
    """

    kind: str
    returned: tuple[Value, ...]


@dataclass(frozen=True)
class Interval:
    """A call of an experiment: its arguments, and the interval in which its result must lie."""

    arguments: tuple[Any, ...]
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class NumbersExercise(Exercise):
    """An exercise: write an experiment whose results lie within known intervals.

    Args:
        intervals: the calls, each with the interval of its result. The file shows the first one.
        drawn: a function: a seed -> further calls, each with the interval of its result.
        mistakes: pairs (sentence on a mistake, function: arguments of a call -> approximate result with the mistake).
    """

    intervals: tuple[Interval, ...]
    drawn: Callable[[int], tuple[Interval, ...]]
    mistakes: tuple[tuple[str, Callable[..., float]], ...] = ()

    def explained(self, numbers: Sequence[float], calls: Sequence[Interval]) -> str:
        """Return the sentence on the mistake whose results in `calls` are close to the learner's `numbers`, or ""."""
        for words, about in self.mistakes:
            beside = [(number, about(*call.arguments), call) for number, call in zip(numbers, calls, strict=True)]
            if all(abs(n / made - 1.0) <= (call.high - call.low) / (call.high + call.low) for n, made, call in beside):
                return words
        return ""
