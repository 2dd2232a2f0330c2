"""The second call: what a layer that keeps something from call to call does then, asked as a subject of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mha_core import AttentionConfig, AttentionInputs
from mha_core.backend import Run
from mha_core.weights import Weights


@dataclass(frozen=True)
class SecondCall:
    """A subject of which the second of two equal calls of one prepared layer is seen; all else is as it has it."""

    subject: Any

    def __getattr__(self, name: str) -> Any:
        if name == "subject":  # it is looked for before it is there where this is copied
            raise AttributeError(name)
        return getattr(self.subject, name)

    def within(self, seconds: float) -> SecondCall:
        """The same of the subject with a shorter time limit, if it has any."""
        return SecondCall(self.subject.within(seconds)) if hasattr(type(self.subject), "within") else self

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """As the subject, whose run is called twice."""
        run: Run = self.subject.prepare(config, weights)

        def second(inputs: AttentionInputs) -> Any:
            run(inputs)
            return run(inputs)

        return second
