"""This project's own subjects: each backend on each of its paths, and the reference itself."""

from dataclasses import dataclass, replace
from typing import Any

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import Backend, Run
from mha_core.reference import pipeline as reference
from mha_core.weights import Weights


@dataclass(frozen=True)
class BackendSubject:
    """One backend in one dtype on one device, as a subject.

    `path` is the way in which the framework runs the layer, such as "compiled"; path=None means its default way.
    """

    backend: Backend
    dtype: str
    device: str
    path: str | None = None

    @property
    def name(self) -> str:
        return self.backend.name if self.path is None else f"{self.backend.name} {self.path}"

    @property
    def slow_to_prepare(self) -> bool:
        return self.backend.slow_to_prepare

    @property
    def relative_cost(self) -> float:
        return self.backend.relative_cost

    @property
    def selector(self) -> str:
        path = "" if self.path is None else f" --path {self.path}"
        device = "" if self.device == "cpu" else f" --device {self.device}"
        return f"--backend {self.backend.name}{path}{device}"

    @property
    def precision(self) -> Precision:
        path = self.backend.paths()[0] if self.path is None else self.path
        return Precision.of(self.dtype).with_kernel(self.backend.softmax_kernel(self.device, path))

    def elsewhere(self, problem: Problem) -> Any:
        """Return a session for the problem's layer if the backend is in another process; None if it is in this one."""
        opened = getattr(self.backend, "session", None)
        return None if opened is None else opened(problem, self.dtype, self.device, self.path)

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        path = {} if self.path is None else {"path": self.path}
        return self.backend.prepare(config, weights, dtype=self.dtype, device=self.device, **path)


def as_users_run(subject: Any) -> Any:
    """Return the subject. If it is a float32 BackendSubject, it gets its framework's default compiler settings."""
    if not isinstance(subject, BackendSubject) or subject.dtype != "float32":
        return subject
    path = subject.backend.paths()[0] if subject.path is None else subject.path
    other = subject.backend.as_users_run(path)
    return subject if other == path else replace(subject, path=other)


def paths_to_check(backend: Backend, path: str | None, *, compiled: bool = False) -> tuple[str | None, ...]:
    """Return the paths (ways to run a layer) to check: the compiled ones if `compiled`, else `path` alone.

    `path=None` means the default paths. The result then has None in place of the first of these.
    """
    if compiled:
        return backend.compiled_paths()
    return (None, *backend.default_paths()[1:]) if path is None else (path,)


class ReferenceSubject:
    """A subject that runs the reference itself, so that the suite can judge it like a backend."""

    name = "reference"
    dtype = "float64"
    device = "cpu"
    precision = Precision.of("float64")

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        def run(inputs: AttentionInputs) -> Trace:
            return reference.run(config, weights, inputs)

        return run
