"""What the isolating problems showed, in words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.localise import Located
from conformance.measure.search import Measured, Outcome
from mha_core.errors import listed

REFUSALS_SHOWN = 12

LEGEND = {"B": "items", "Lq": "queries", "Lk": "keys", "H": "heads", "G": "key/value heads", "d": "channels of a head"}


def located_text(located: Located) -> str:
    """Return which step is the first wrong one, and what was read there."""
    return "\n".join([f"First wrong step: {located.stage}, seen with {sizes(located.problem)}.", *located.seen])


def sizes(problem: Problem) -> str:
    """Return the sizes of a call, with what they are."""
    config, size = problem.config, problem.sizes
    numbers = (size.batch, size.query_len, size.key_len, config.num_heads, config.num_kv_heads, config.head_dim)
    return ", ".join(f"{name}={n} {words}" for (name, words), n in zip(LEGEND.items(), numbers, strict=True))


def details(measured: Measured) -> str:
    """Return a line about each row of problems, and why others had no answer."""
    width = max((len(outcome.probe.id) for outcome in measured.outcomes), default=0)
    lines = [f"  {outcome.probe.id:{width}}  {_said(outcome)}" for outcome in measured.outcomes]
    refused = [f"  {times} times: {reason}" for reason, times in measured.asker.why_refused().items()]
    return "\n".join(["Problems:", *lines, *(["Refused:", *refused[:REFUSALS_SHOWN]] if refused else [])])


def _said(outcome: Outcome) -> str:
    if not outcome.asked:
        return "no answer"
    wrong = len(outcome.differing)
    return f"differs in {wrong} of {len(outcome.asked)}" if wrong else f"right in all {len(outcome.asked)}"


def probe_text(measured: Measured, outcome: Outcome) -> str:
    """Return one row: what it isolates, and of each problem what was expected and given at the worst place."""
    lines = [f"{outcome.probe.id}: {outcome.probe.says}", *_lines(measured, outcome)]
    if not outcome.asked:
        lines.append(f"  It gave no answer: {listed(list(measured.asker.why_refused()), 2) or 'it has no such call'}")
    return "\n".join(lines)


def _lines(measured: Measured, outcome: Outcome) -> Iterator[str]:
    for problem in outcome.asked:
        got, wanted = measured.asker.output(problem), measured.asker.wanted(problem).trace.output
        assert got is not None  # it was answered
        assert wanted is not None
        if not got.size:
            continue
        with any_numbers:
            distance = np.where((got == wanted) | (np.isnan(got) & np.isnan(wanted)), 0.0, np.abs(got - wanted))
        place = np.unravel_index(int(np.argmax(np.where(np.isnan(distance), np.inf, distance))), distance.shape)
        said = "differs" if problem in outcome.differing else "right"
        where = ", ".join(str(int(i)) for i in place)
        yield f"  {sizes(problem)}: {said}; output[{where}] is {got[place]:.6g}, expected {wanted[place]:.6g}"
