"""What a layer keeps from call to call, in words: found by asking layers prepared anew for fewer of the calls.

A call that is right alone and wrong after others shows that something is kept. What that is shows in the difference of
two calls that suffice for it: if the mask of the earlier one is another, and nothing else, it is the mask.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.any_numbers import any_numbers
from conformance.cases.case import Case
from conformance.cases.mixed import PAST, SIZES, differences, mixed
from conformance.cases.sequence import Step
from conformance.judging.sequences import play, verdict
from conformance.subjects.subject import Subject
from mha_core import SpecError, Trace, reference

MOST_PAIRS = 12
"""With how many of the earlier calls the last one is asked."""

NEAR = 1e-4
"""How near an answer must be to that of another call, relative to its largest number."""


def what_is_kept(steps: Sequence[Step], subject: Subject) -> str:
    """Return a sentence that says what a layer wrongly carries over from call to call, such as an old mask.

    Args:
        steps: the steps of a sequence that were run; the last is wrong after the earlier ones, but right alone.
        subject: the subject, which runs some of the steps again, in newly prepared layers.
    """
    *before, last = steps
    wrong = partial(_is_wrong, subject)
    if last.beside is not None:
        alone = [replace(last, beside=None), replace(last, case=last.beside, beside=None)]
        if not (wrong([*before, *alone]) or wrong([*before, *reversed(alone)])):
            return "Two threads that ask at the same time share something: it keeps a workspace that is not their own."
        last = replace(last, beside=None)
    if last.thread and not wrong([*before, replace(last, thread=0)]):
        return "It is wrong from a second thread: it keeps something that only the first thread has."
    if last.same_arrays and not wrong([replace(step, same_arrays=False) for step in steps]):
        return (
            "It keeps what it computed of an array from call to call, and knows the array by its identity: the same "
            "array with other numbers in it has the answer of the old ones."
        )
    own = [step for step in before if step.layer == last.layer]
    if len(own) < len(before) and not wrong([*own, last]):
        return "Layers share something: it keeps what belongs to another layer, which was prepared or asked before."
    if last.reweighted == "prepared anew":
        return (
            "It keeps what it computed of the weights' arrays, and knows them by their identity: a layer that is "
            "prepared from the same arrays with other numbers in them has the old ones."
        )
    if last.reweighted or any(_weights_of(step) is not _weights_of(last) for step in own):
        return "It keeps weights from call to call: what it computed of them before they changed is still used."
    for earlier in _by_likeness(own, last):
        if wrong([earlier, last]):
            return _of_two(earlier, last, subject)
    return _of_many(own, last, subject)


def _is_wrong(subject: Subject, steps: Sequence[Step]) -> bool:
    """Whether the last of some steps is wrong, on layers prepared anew."""
    outcomes = list(play(subject, steps))
    return bool(outcomes) and bool(verdict(*outcomes[-1], subject))


def _weights_of(step: Step) -> Any:
    return step.case.build().weights


def _by_likeness(steps: Sequence[Step], last: Step) -> list[Step]:
    """The calls other than the last, each once: first those that differ from it in little, of these the latest."""
    others = {step.case: replace(step, times=1, beside=None) for step in reversed(steps) if step.case is not last.case}
    return sorted(others.values(), key=lambda step: len(differences(step.case, last.case)))[:MOST_PAIRS]


# Two calls ------------------------------------------------------------------------------------------------------


def _of_two(earlier: Step, last: Step, subject: Subject) -> str:
    """What is kept of one call that makes another wrong."""
    named = _decisive(earlier, last, subject)
    if len(named) > 1 and not set(named) & SIZES.keys() and _answers_as(earlier, last, subject):
        what = "the whole answer of an earlier call"
    elif last.case.past_len and PAST in named:
        what = "keys and values of an earlier call, in place of the past that it is given"
    else:
        what = f"the {_listed(named)} of an earlier call, or what depends on {'it' if len(named) == 1 else 'them'}"
    return (
        f"It keeps {what}: after {earlier.words!r} it is wrong in {last.words!r}, and right in a layer prepared anew."
    )


def _listed(words: Sequence[str]) -> str:
    return " and the ".join([", the ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _decisive(earlier: Step, last: Step, subject: Subject) -> list[str]:
    """The differences of an earlier call that make the last one wrong.

    Each that is enough by itself; if none is, those without which the last call is right.
    """
    found = differences(earlier.case, last.case)
    if len(found) > 1:
        alone = [part for part in found if _with(last, last.case, earlier.case, part, subject) is not None]
        if alone:
            return alone
    for part in found:
        nearer = _with(last, earlier.case, last.case, part, subject)
        earlier = earlier if nearer is None else replace(earlier, case=nearer)
    return differences(earlier.case, last.case) or found


def _with(last: Step, case: Case, other: Case, part: str, subject: Subject) -> Case | None:
    """`case` with a part of another; None if that does not make the last call wrong."""
    try:
        problem = mixed(case, other, part)
    except SpecError:
        return None
    if problem is None:
        return None
    made = Case.of_problem(f"{case.id}, but for the {part}", "", problem, "a mixture of two calls")
    return made if _is_wrong(subject, [replace(last, case=made), last]) else None


def _answers_as(earlier: Step, last: Step, subject: Subject) -> bool:
    """Whether the last answer, after an earlier call, is nearly that of the earlier one."""
    *_, (_, outcome) = play(subject, [earlier, last])
    problem = earlier.case.build()
    made = np.asarray(reference.run(problem.config, problem.weights, problem.inputs).output)
    output = outcome[0].output if isinstance(outcome, list) else None
    with any_numbers:
        return (
            output is not None
            and output.shape == made.shape
            and np.allclose(made, output, 0.0, NEAR * np.abs(made).max(initial=0.0))
        )


# Many calls -----------------------------------------------------------------------------------------------------


def _of_many(own: Sequence[Step], last: Step, subject: Subject) -> str:
    """What is kept if no single call before is enough: a count of calls, or something of several."""
    single = replace(last, times=1)
    most = sum(step.calls for step in own) + last.calls
    for _, outcome in play(subject, [replace(single, times=most)]):
        traces: list[Trace] = outcome if isinstance(outcome, list) else []
        for number, trace in enumerate(traces):
            if verdict(single, [trace], subject):
                return (
                    "It counts its calls, or adds something up in each: the same call is right at first, and wrong "
                    f"from call {number + 1} on."
                )
    needed = list(own)
    for step in own:
        fewer = [other for other in needed if other is not step]
        if _is_wrong(subject, [*fewer, single]):
            needed = fewer
    words = ", ".join(repr(step.words) for step in needed)
    differing = dict.fromkeys(part for step in needed for part in differences(step.case, last.case))
    return (
        f"It keeps something of several calls, of which one has another {_listed(list(differing)) or 'place'}: after "
        f"{words} it is wrong in {last.words!r}, and right in a layer prepared anew."
    )
