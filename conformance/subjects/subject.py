"""The protocol of a subject: the interface of everything that can be judged."""

from __future__ import annotations

from typing import Protocol

from conformance.bounds.precision import Precision
from mha_core import AttentionConfig
from mha_core.backend import Run
from mha_core.weights import Weights


class Subject(Protocol):
    """Anything that can be judged: `prepare(config, weights) -> run(inputs) -> Trace`.

    It may also have `supports(config, inputs)`, which gives None or what it can't express of a case;
    `time_limit`, the seconds that it may take for one answer; `recorded`, true if it gives what was recorded and can't
    compute anything else; `selector`, the options of `mha check` that choose it; `slow_to_prepare`, as
    `mha_core.backend.Backend` has it; and `own`, true of a user's own code, whose arrays in float64 are judged by their
    numbers in every dtype.
    """

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> Precision: ...
    def prepare(self, config: AttentionConfig, weights: Weights) -> Run: ...
