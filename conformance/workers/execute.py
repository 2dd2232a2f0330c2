"""Execute: have a unit done by worker processes, whatever happens to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.workers.interpreters import Settings
from conformance.workers.keep import give_back, take
from conformance.workers.process import CannotStart, WorkerDied
from conformance.workers.unit import Unit
from mha_core.errors import one_line


def execute(unit: Unit, settings: Settings, say: Callable[[int, Any], None] | None = None) -> list[Any]:
    """The answers of a unit, one for each item. This is what an executor calls, on whatever machine.

    A process that dies costs the item at hand, whose answer is then `unit.lost(...)`; a new one does the rest.

    Args:
        unit: the work.
        settings: what processes are started with.
        say: called with the number of each item and its answer, as soon as it is there.
    """
    answers: list[Any] = []

    def add(answer: Any) -> None:
        if say is not None:
            say(len(answers), answer)
        answers.append(answer)

    while len(answers) < len(unit):
        try:
            process = take(unit.home, settings)
        except CannotStart as error:
            while len(answers) < len(unit):
                add(unit.lost(len(answers), str(error)))
            break
        before = len(answers)
        try:
            for answer in process.run(unit, before):
                add(answer)
        except WorkerDied as death:
            if len(answers) < len(unit):
                add(unit.lost(len(answers), str(death)))
        except Exception as error:  # a mistake of ours, or a framework's, outside of what is judged
            process.end()
            add(unit.lost(len(answers), one_line(error)))
        except BaseException:
            process.end()
            raise
        else:
            # It ends early where a thread of the last item is still at work in there.
            if len(answers) < len(unit) or len(answers) == before:
                process.end()
            else:
                give_back(process)
    return answers
