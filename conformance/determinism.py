"""Determinism: check that a rerun in one process, and a run in a fresh one, give equal bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np

from conformance.cases.case import Case
from conformance.cases.table import select
from conformance.subjects.backend import BackendSubject
from conformance.subjects.quiet import quiet_stderr
from conformance.workers.described import Elsewhere, request_of
from conformance.workers.interpreters import Home, Settings
from conformance.workers.process import WorkerProcess
from conformance.workers.protocol import WorkerDied
from mha_core import BackendError, SpecError, Trace
from mha_core.backend import load

SILENCE_SECONDS = 600.0
"""A framework that compiles may keep Python's lock for long; nobody waits for one that hangs for ever."""

Fingerprints = dict[str, dict[str, str]]
"""Case id -> stage, or "gradients.NAME" -> a hash of its bits."""


@dataclass(frozen=True)
class Repeatability:
    """Of one path: the number of arrays that were compared, and those whose bits differed.

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


@dataclass(frozen=True)
class Runs:
    """What a fresh process runs on the CPU.

    This process is not used, because a framework that is loaded already can change how many threads another has
    (importing MXNet leaves PyTorch with one), and then other bits come out.

    Args:
        paths: of the backend, one after the other in the same process; None for its usual one.
        patterns: which cases; none: all.
        settings: which interpreter is started.
    """

    backend: str
    dtype: str
    paths: tuple[str | None, ...] = (None,)
    patterns: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)

    def fresh(self, times: int) -> list[list[Fingerprints]]:
        """So many runs in one process: path -> run.

        Raises:
            SpecError: the process can't be started, failed or died; the message says how in one line.
        """
        home = Home(self.backend, SILENCE_SECONDS)
        try:
            # With as many threads as the framework takes by itself: bits may differ because there are several.
            process = WorkerProcess(home, self.settings.interpreter(home), threads=None)
            try:
                request = request_of(_runs, self.backend, self.dtype, self.paths, self.patterns, times)
                found = Elsewhere(home, self.settings).read(process.ask(request, None), list)
            finally:
                process.end()
        except (WorkerDied, BackendError, SpecError) as error:
            raise SpecError(f"a fresh process with {self.backend} in {self.dtype} failed: {error}") from error
        return found


def repeatability(asked: Iterable[Runs], executor: Executor) -> Iterator[Repeatability]:
    """Run the cases twice in one fresh process and once in another: what each path gave, in the order of `asked`.

    Raises:
        SpecError: as `Runs.fresh`, or no case has such a name.
    """
    asked = list(asked)
    for runs in asked:
        select(runs.patterns)
    submitted = [(runs, executor.submit(runs.fresh, 2), executor.submit(runs.fresh, 1)) for runs in asked]
    for runs, in_one, in_another in submitted:
        for (first, again), (fresh,) in zip(in_one.result(), in_another.result(), strict=True):
            total = sum(map(len, first.values()))
            yield Repeatability(runs.backend, runs.dtype, total, _differences(first, again), _differences(first, fresh))


def _runs(
    backend: str, dtype: str, paths: tuple[str | None, ...], patterns: tuple[str, ...], times: int
) -> list[list[Fingerprints]]:
    """In the worker."""
    with quiet_stderr():
        usual = load(backend).paths()[0]
    cases = select(patterns)
    return [[fingerprints(backend, path or usual, dtype, cases) for _ in range(times)] for path in paths]


def _differences(first: Fingerprints, second: Fingerprints) -> tuple[str, ...]:
    return tuple(
        f"{case}: {name}"
        for case, arrays in first.items()
        for name, bits in arrays.items()
        if second[case][name] != bits
    )
