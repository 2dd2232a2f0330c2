"""Determinism: check that a rerun in one process, and a run in a fresh one, give equal bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from conformance.cases.case import Case
from conformance.cases.table import select
from conformance.subjects.backend import BackendSubject
from conformance.subjects.quiet import quiet_stderr
from conformance.workers.interpreters import Home, Settings
from conformance.workers.process import WorkerDied, WorkerProcess
from mha_core import BackendError, SpecError, Trace
from mha_core.backend import load

SILENCE_SECONDS = 600.0
"""A framework that compiles may keep Python's lock for long; nobody waits for one that hangs for ever."""

Fingerprints = dict[str, dict[str, str]]
"""Case id -> stage, or "gradients.NAME" -> a hash of its bits."""


@dataclass(frozen=True)
class Repeatability:
    """The number of arrays that were compared, and those whose bits differed.

    Attributes:
        total: number of stages and gradients of all cases.
        in_process, fresh: "case: array" of each that differed in a rerun, and in another process.
    """

    backend: str
    dtype: str
    total: int
    in_process: tuple[str, ...]
    fresh: tuple[str, ...]

    @property
    def bitwise(self) -> bool:
        return not self.in_process and not self.fresh


def fingerprint(trace: Trace) -> dict[str, str]:
    """A hash of the bits of every stage and gradient.

    >>> fingerprint(Trace(output=np.zeros(2))) == fingerprint(Trace(output=-np.zeros(2)))
    False
    """
    return {
        name: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
        for name, array in trace.arrays().items()
    }


def fingerprints(backend_name: str, path: str, dtype: str, cases: Iterable[Case]) -> Fingerprints:
    """Run every case once on the CPU."""
    subject = BackendSubject(load(backend_name), dtype, "cpu", path)
    found = {}
    for case in cases:
        problem = case.build().rounded(dtype)
        found[case.id] = fingerprint(subject.prepare(problem.config, problem.weights)(problem.inputs))
    return found


def repeatability(
    backend_name: str,
    dtype: str,
    patterns: tuple[str, ...] = (),
    path: str | None = None,
    settings: Settings | None = None,
) -> Repeatability:
    """Run the cases on one path of a backend, None for its usual one: twice in one fresh process and once in another.

    This process is not used, because a framework that is loaded already can change how many threads another has
    (importing MXNet leaves PyTorch with one), and then other bits come out. `settings` says which interpreter is.

    Raises:
        SpecError: a process can't be started, failed or died; the message says how in one line.
    """
    select(patterns)
    settings = settings or Settings()
    first, again = _in_fresh_process(backend_name, path, dtype, patterns, 2, settings)
    (fresh,) = _in_fresh_process(backend_name, path, dtype, patterns, 1, settings)
    total = sum(map(len, first.values()))
    return Repeatability(backend_name, dtype, total, _differences(first, again), _differences(first, fresh))


def _in_fresh_process(
    backend_name: str, path: str | None, dtype: str, patterns: tuple[str, ...], times: int, settings: Settings
) -> list[Fingerprints]:
    home = Home(backend_name, SILENCE_SECONDS)
    try:
        # With as many threads as the framework takes by itself: bits may differ because there are several.
        process = WorkerProcess(home, settings.interpreter(home), threads=None)
        try:
            found: list[Fingerprints] = process.call(_runs, backend_name, path, dtype, patterns, times)
        finally:
            process.end()
    except (WorkerDied, BackendError, SpecError) as error:
        raise SpecError(f"a fresh process with {backend_name} in {dtype} failed: {error}") from error
    return found


def _runs(backend_name: str, path: str | None, dtype: str, patterns: tuple[str, ...], times: int) -> list[Fingerprints]:
    """In the worker: the fingerprints of so many runs, one after the other."""
    with quiet_stderr():
        path = load(backend_name).paths()[0] if path is None else path
    cases = select(patterns)
    return [fingerprints(backend_name, path, dtype, cases) for _ in range(times)]


def _differences(first: Fingerprints, second: Fingerprints) -> tuple[str, ...]:
    return tuple(
        f"{case}: {name}"
        for case, arrays in first.items()
        for name, bits in arrays.items()
        if second[case][name] != bits
    )
