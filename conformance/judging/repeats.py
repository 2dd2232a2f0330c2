"""Repeats: a subject that is asked again must give equal numbers, also with its batch in another order.

A layer is a function of its weights and inputs. One that keeps something from call to call, or mixes the items of a
batch, can be right when each case is asked once: so each is asked again with its items in another order, and, if all
is asked (see `conformance.plan`), a second time before that and once more after it. The numbers must be equal within
the bound of the case; the last bits may depend on the item's place in memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from conformance.judging.compare import Mismatch, same_bits
from conformance.judging.expected import Expected
from conformance.subjects.items import reordered, take_items
from conformance.subjects.subject import Subject
from mha_core import AttentionInputs, Trace

Again = Literal["in every way", "in two ways", "in one way", "never"]
"""How often a layer is asked again that was right: four times, twice (with its items in another order, and after
another case), once (with its items in another order), or not at all."""

AGAIN = "asked a second time"
REORDERED = "with the items of the batch in another order"
AFTERWARDS = "asked again after another problem"


@dataclass(frozen=True, eq=False)
class Question:
    """A repetition of a call, unchanged or with its batch items in another order.

    Attributes:
        call: the kind of repetition in words, such as "asked a second time".
        wanted: the expected answer.
        order: int (B,), the index that each item has in the first call; None: the order is the same.
    """

    call: str
    wanted: Expected
    order: NDArray[np.integer] | None = None

    def mismatches(self, subject: Subject, trace: Trace, first: Trace) -> Iterator[Mismatch]:
        """Yield the mismatches of `trace`, the repetition's answer; none if it has the bits of `first` in `order`."""
        before = first.arrays()
        if self.order is not None:
            before = reordered(before, self.wanted.problem.inputs, self.order)
        if same_bits(trace.arrays(), before):
            return
        for mismatch in self.wanted.judge_of(subject, trace)[1]:
            yield replace(mismatch, call=self.call, message=f"{self.call}, {mismatch.message}")


@lru_cache(maxsize=512)
def questions(wanted: Expected, again: Again = "in every way") -> tuple[Question, ...]:
    """Return the repetitions of a call, to which `wanted` is the expected answer.

    There are up to three for "in every way", one for "in two ways" and "in one way", and none for "never".
    """
    if again == "never":
        return ()
    if again == "in one way":  # the other way is to ask the case before once more
        return questions(wanted, "in two ways")
    batch = wanted.problem.inputs.queries.shape[0]
    order = np.roll(np.arange(batch), 1)
    reordered = [Question(REORDERED, in_other_order(wanted, order), order)] if batch > 1 else []
    if again == "in two ways":
        return (*(reordered or [Question(AGAIN, wanted)]),)
    return (Question(AGAIN, wanted), *reordered, Question(AFTERWARDS, wanted))


def in_other_order(wanted: Expected, order: np.ndarray) -> Expected:
    """Return the expected answer to the same problem with its batch items in the order `order`."""
    problem = wanted.problem
    return Expected(
        replace(problem, inputs=take_items(problem.inputs, order)),
        Trace.of_arrays(reordered(wanted.trace.arrays(), problem.inputs, order)),
        _Reordered(wanted.allowed_error, problem.inputs, order),
        wanted.where[order],
    )


class _Reordered(Mapping[str, NDArray]):
    """What `reordered` gives, array by array when it is looked at: an answer with the same bits needs none of them."""

    def __init__(self, arrays: Mapping[str, NDArray], inputs: AttentionInputs, order: NDArray[np.integer]) -> None:
        self._arrays, self._inputs, self._order = arrays, inputs, order

    def __getitem__(self, name: str) -> NDArray:
        return reordered({name: self._arrays[name]}, self._inputs, self._order)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
