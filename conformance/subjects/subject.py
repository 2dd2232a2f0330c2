"""The protocol of a subject: the interface of everything that can be judged."""

from typing import Protocol

from conformance.bounds.precision import Precision
from mha_core import AttentionConfig
from mha_core.backend import Run
from mha_core.weights import Weights


class Subject(Protocol):
    """Anything that can be judged: `prepare(config, weights) -> run(inputs) -> Trace`.

    Optional attributes: `supports(config, inputs)`, which returns what the subject can't compute, or None;
    `time_limit`, seconds for one answer; `recorded`, true if it only returns recorded arrays; `selector`, the options
    of `mha check` that choose it; `slow_to_prepare`, as in `mha_core.backend.Backend`; and `own`, true for a user's own
    code, which may return float64 arrays in a run of any dtype.
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
