"""What an exercise is: a row of a table, with the function to write, its arguments, and the cases that judge it.

A step exercise stands for a part of the reference's pipeline. Its function gets what the reference has before that part
and gives what the reference has after it; the bugs of the zoo that are in that part are its mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """An argument of a function to write, or an array that it returns.

    Attributes:
        name: as the signature and messages have it.
        about: its dtype and shape, as the docstring has them.
        source: the step of the pipeline whose result it is; or a function that reads it: an argument from a `State`,
            what is returned from arrays by the names of steps, those of the reference or their allowed errors. Default:
            no step gives it.
        part: takes the part that is meant out of the whole. Default: all of it.
    """

    name: str
    about: str
    source: str | Callable[[Any], Any] = ""
    part: Callable[[Any], Any] | None = None

    def read(self, arrays: State | Mapping[str, Any]) -> Any:
        """The value in one case."""
        whole = arrays[self.source] if isinstance(self.source, str) else self.source(arrays)
        return self.part(whole) if self.part else whole


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise.

    Args:
        name: as `mha learn check` takes it; with underscores it is the name of the function and of the file.
        track: the folder in which its file stands.
        task: what to write, in a sentence or two.
        arguments: of the function.
        rules: ids of the rules of the definition that it is about.
        advice: what a hint says where no mistake is named, in the words of the lessons. Default: the rules.
        dialect: the framework that it is written in.
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
        """The name of the function to write."""
        return self.name.replace("-", "_")

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the function's arguments."""
        return tuple(argument.name for argument in self.arguments)

    @property
    def signature(self) -> str:
        """Such as softmax(scores, allowed)."""
        return f"{self.function}({', '.join(self.parameters)})"

    @property
    def file(self) -> str:
        """Where it stands in the learner's folder."""
        return f"{self.track}/{self.name.replace('-', '_')}.py"


@dataclass(frozen=True, kw_only=True)
class StepExercise(Exercise):
    """Write a part of the reference's pipeline.

    Args:
        returned: by the function.
        covers: the steps of the pipeline that it stands for, in their order. Default: those that it returns.
        cases: the cases that judge it, the easiest first: ids of the table, or cases of its own.
        tiny: small cases, tried where no bug explains a wrong answer, to show one that can be followed by hand.
        also: ids of bugs of earlier steps that somebody may make with the arguments, such as a mask that is ignored.
        never: ids of bugs that nobody makes with the arguments, such as of heads where there is one.
        drawn: makes a case from a number; a file that is right in all cases is judged by one of these too, so that no
            table of their answers is right. Default: the first case with other numbers.
        source: of a translation, the name of the exercise that is translated.
        function_name: of the function. Default: that of the exercise.
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
        """Whether its answer may be anything that broadcasts to the shape asked for: a mask."""
        return self.covers == ("allowed",)

    @property
    def backward(self) -> bool:
        """Whether it needs gradients."""
        return self.covers[0] in BACKWARD

    @property
    def function(self) -> str:
        return self.function_name or super().function

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays that it returns."""
        return tuple(one.name for one in self.returned)

    @cached_property
    def judged_by(self) -> tuple[Case, ...]:
        """The cases themselves."""
        return tuple(case if isinstance(case, Case) else select((case,))[0] for case in self.cases)

    def drawn_case(self, number: int) -> Case:
        """A case that stands in no table."""
        if self.drawn is not None:
            return self.drawn(number)
        return replace(self.judged_by[0], id=f"{self.judged_by[0].id}-{number}")


@dataclass(frozen=True, kw_only=True)
class CatchExercise(Exercise):
    """Choose sizes, a mask and inputs that show a hidden bug.

    Args:
        bug: its id in the zoo.
        shown_by: the id of a case that shows it, for the last hint.
        target: how many bugs of the zoo the call must show.
    """

    bug: str
    shown_by: str
    target: int

    @property
    def function(self) -> str:
        return "problem"


@dataclass(frozen=True, kw_only=True)
class LayerExercise(Exercise):
    """Write a whole layer, judged as `mha check --subject` does.

    Args:
        subject: the name in the file that is judged.
        first: the ids of the cases that come first; the others follow where these are right.
        own: cases that are in no table.
        has_state: whether it is an object, which is asked sequences of calls too.
        code: what its file begins with.
        tiny: a call that can be followed by hand; its numbers stand in the file.
        returned: by a call.
    """

    subject: str
    first: tuple[str, ...]
    own: tuple[Case, ...] = ()
    has_state: bool = False
    code: str
    tiny: Case
    returned: tuple[Value, ...] = (Value("output", "float64 (B, Lq, Do)", "output"),)

    @property
    def function(self) -> str:
        return self.subject


@dataclass(frozen=True, kw_only=True)
class HeadsExercise(Exercise):
    """Say which heads of a trained layer matter (its `kind`: "importance"), or cut the others off ("cut").

    Its function may return one array, or a dict of them.
    """

    kind: str
    returned: tuple[Value, ...]


@dataclass(frozen=True)
class Interval:
    """One number of an experiment: the arguments of the call, and where its result must lie."""

    arguments: tuple[Any, ...]
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class NumbersExercise(Exercise):
    """Write an experiment; its numbers must lie within intervals, the first of which stands in the file.

    `drawn` makes more of them from a number.
    """

    intervals: tuple[Interval, ...]
    drawn: Callable[[int], tuple[Interval, ...]]
