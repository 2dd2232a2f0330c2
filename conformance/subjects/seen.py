"""Subjects seen another way: the second of two equal calls, and outputs of another form than (B, Lq, Do)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from conformance.subjects.ask import within
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import Run
from mha_core.weights import Weights


@dataclass(frozen=True)
class Seen:
    """A base class of wrappers around a `subject` (a tested layer). A wrapper also has the subject's attributes."""

    subject: Any

    def __getattr__(self, name: str) -> Any:
        if name == "subject":  # it is looked for before it is there where this is copied
            raise AttributeError(name)
        return getattr(self.subject, name)

    def within(self, seconds: float) -> Self:
        """Return this subject with a shorter time limit."""
        return replace(self, subject=within(self.subject, seconds))


@dataclass(frozen=True)
class SecondCall(Seen):
    """A subject that wraps another one: it calls the prepared layer twice, and returns the second answer."""

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """Return a run that calls the subject's run twice and returns the second answer."""
        run: Run = self.subject.prepare(config, weights)

        def second(inputs: AttentionInputs) -> Any:
            run(inputs)
            return run(inputs)

        return second


@dataclass(frozen=True)
class Form:
    """A wrong shape of a subject's outputs, where (B, Lq, Do) is right.

    Attributes:
        said, change: the shape in words, and what to change in the code.
        shape: function (B, Lq, Do) -> the wrong shape.
        to_output: function (array, B, Lq) -> the array with shape (B, Lq, Do).
    """

    said: str
    change: str
    shape: Callable[[int, int, int], tuple[int, ...]]
    to_output: Callable[[NDArray, int, int], NDArray]


def _permuted(*order: int) -> Form:
    """The form in which axis i of (B, Lq, Do) stands at the place of i in `order`."""
    letters = ("B", "Lq", "Do")
    back = tuple(order.index(axis) for axis in range(3))
    moved = [axis for axis in range(3) if order[axis] != axis]
    one = f"Exchange axes {moved[0]} and {moved[1]}" if len(moved) == 2 else f"Transpose it by {back}"
    return Form(
        f"({', '.join(letters[axis] for axis in order)})",
        f"{one}.",
        lambda *sizes: tuple(sizes[axis] for axis in order),
        lambda array, batch, length: np.transpose(array, back),
    )


FORMS = (
    *(_permuted(*order) for order in ((1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1))),
    Form(
        "(B * Lq, Do)",
        "Reshape it to (B, Lq, Do).",
        lambda batch, length, width: (batch * length, width),
        lambda array, batch, length: array.reshape(batch, length, -1),
    ),
)
"""Other forms of an output; two axes exchanged come first."""


def form_of(shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Form | None:
    """Return the Form (wrong layout) of all outputs, or None. `shapes`: (actual shape, right shape) of each output."""
    is_right = all(got == right for got, right in shapes)
    fits = (form for form in FORMS if all(got == form.shape(*right) for got, right in shapes))
    return None if is_right else next(fits, None)


@dataclass(frozen=True)
class Reformed(Seen):
    """A subject that wraps one whose outputs have another shape. It returns only the outputs, as (B, Lq, Do)."""

    form: Form

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """Return a run that gives the subject's outputs as (B, Lq, Do)."""
        run: Run = self.subject.prepare(config, weights)

        def reformed(inputs: AttentionInputs) -> Trace:
            answer: Any = run(inputs)
            output = answer["output"] if isinstance(answer, dict) else getattr(answer, "output", answer)
            batch, length = np.shape(inputs.queries)[:2]
            return Trace(output=self.form.to_output(np.asarray(output), batch, length))

        return reformed
