"""Repeats: a subject that is asked again must give equal numbers, also with its batch in another order.

A layer is a function of its weights and inputs. One that keeps something from call to call, or mixes the items of a
batch, can be right when each case is asked once: so each is asked a second time, with its items in another order, and
once more after that. The numbers must be equal within the bound of the case; the last bits may depend on the item's
place in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.judging.compare import Mismatch, ParityError, compare
from conformance.judging.expected import Expected
from conformance.subjects.ask import Session, SubjectFailed
from conformance.subjects.items import reordered, take_items
from mha_core import Trace

AGAIN = "asked a second time"
REORDERED = "with the items of the batch in another order"
AFTERWARDS = "asked again after another problem"


def can_be_asked_again(subject: Any) -> bool:
    """Whether a subject computes its answers; a recorded subject, with a true `recorded`, has only one."""
    return not getattr(subject, "recorded", False)


def repeats(session: Session, wanted: Expected) -> Iterator[Mismatch]:
    """Ask a subject that was right three times more, and yield the mismatches; `Mismatch.call` names the time.

    Args:
        session: it has answered the problem of `wanted` once.
        wanted: the expected answer.

    Raises:
        SubjectFailed: it gave no answer; the message says which time.
    """
    yield from asked_again(session, wanted, AGAIN)
    batch = wanted.problem.inputs.queries.shape[0]
    if batch > 1:
        yield from asked_again(session, in_other_order(wanted, np.roll(np.arange(batch), 1)), REORDERED)
    yield from asked_again(session, wanted, AFTERWARDS)


def asked_again(session: Session, wanted: Expected, call: str) -> Iterator[Mismatch]:
    """Ask a subject for `wanted` once more, and yield the mismatches; `call` describes this time in words."""
    try:
        trace = session.answer(wanted.problem)
    except SubjectFailed as error:
        raise SubjectFailed(f"{call}: {error}") from error
    try:
        compare(trace, wanted.trace, wanted.allowed_error, wanted.where, session.subject.dtype)
    except ParityError as error:
        for mismatch in error.mismatches:
            yield replace(mismatch, call=call, message=f"{call}, {mismatch.message}")


def in_other_order(wanted: Expected, order: np.ndarray) -> Expected:
    """The expected answer to the problem with its batch items in another order."""
    problem = wanted.problem
    return Expected(
        replace(problem, inputs=take_items(problem.inputs, order)),
        Trace.of_arrays(reordered(wanted.trace.arrays(), problem.inputs, order)),
        reordered(wanted.allowed_error, problem.inputs, order),
        wanted.where[order],
    )
