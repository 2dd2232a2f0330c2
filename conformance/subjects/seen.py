"""Subjects seen another way: the second of two equal calls, and outputs of which two axes are exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.subjects.ask import within
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import Run
from mha_core.weights import Weights


@dataclass(frozen=True)
class Seen:
    """A subject; all that is not changed is as it has it."""

    subject: Any

    def __getattr__(self, name: str) -> Any:
        if name == "subject":  # it is looked for before it is there where this is copied
            raise AttributeError(name)
        return getattr(self.subject, name)

    def within(self, seconds: float) -> Seen:
        """The same of the subject with a shorter time limit."""
        return type(self)(within(self.subject, seconds))


class SecondCall(Seen):
    """A subject of which the second of two equal calls of one prepared layer is seen."""

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """As the subject, whose run is called twice."""
        run: Run = self.subject.prepare(config, weights)

        def second(inputs: AttentionInputs) -> Any:
            run(inputs)
            return run(inputs)

        return second


class Exchanged(Seen):
    """A subject whose outputs are (Lq, B, Do), seen as (B, Lq, Do); of what it shows only these are."""

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """As the subject, with axes 0 and 1 of its outputs exchanged."""
        run: Run = self.subject.prepare(config, weights)

        def exchanged(inputs: AttentionInputs) -> Trace:
            answer: Any = run(inputs)
            output = answer["output"] if isinstance(answer, dict) else getattr(answer, "output", answer)
            return Trace(output=np.swapaxes(output, 0, 1))

        return exchanged
