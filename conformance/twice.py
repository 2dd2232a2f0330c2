"""The same bits again: cases that are run twice in one fresh process, and once in another."""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

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

Bits = dict[str, str]
"""Name of an array -> a hash of its bits: "output" or "gradients.keys" of a trace, "prime: output" of a case."""


@dataclass(frozen=True)
class Repeated:
    """The result of running one subject twice: how many arrays were compared, and which differed in their bits.

    Attributes:
        total: how many arrays (stages and gradients of all cases) were compared.
        in_process: "CASE: ARRAY" for each array that differed in a second run in the same process.
        fresh: "CASE: ARRAY" for each array that differed in a run in another process.
    """

    subject: str
    dtype: str
    total: int
    in_process: tuple[str, ...]
    fresh: tuple[str, ...]


def bits_of(trace: Trace) -> Bits:
    """Return name -> hash of the bits, for every stage and gradient.

    >>> bits_of(Trace(output=np.zeros(2))) == bits_of(Trace(output=-np.zeros(2)))
    False
    """
    return {
        name: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        for name, array in trace.arrays().items()
    }


def twice(
    subjects: Sequence[BackendSubject], patterns: tuple[str, ...], executor: Executor, settings: Settings
) -> Iterator[Repeated]:
    """Run the cases on each subject, forward and backward, on the CPU; yield a Repeated for each, in order.

    The cases run twice in one new process, and once in another. Both are new, because importing one framework can
    change the results of another: importing MXNet leaves PyTorch with one thread.

    Args:
        subjects: the subjects. Consecutive ones with the same backend and dtype share these two processes.
        patterns: patterns of the cases' ids; () for all.
        executor, settings: what runs the work, and what worker processes are started with.

    Raises:
        SpecError: no case matches `patterns`; or a process can't be started, failed or died.
    """
    select(patterns)
    submitted: list[tuple[list[BackendSubject], Any, Any]] = []
    for (backend, dtype), group in groupby(subjects, key=lambda one: (one.backend.name, one.dtype)):
        some = list(group)
        request = (backend, dtype, tuple(one.path for one in some), patterns)
        in_one, in_another = (executor.submit(_in_a_process, settings, times, *request) for times in (2, 1))
        submitted.append((some, in_one, in_another))
    for some, in_one, in_another in submitted:
        for subject, (first, again), (fresh,) in zip(some, in_one.result(), in_another.result(), strict=True):
            differing = (tuple(name for name in first if first[name] != other[name]) for other in (again, fresh))
            yield Repeated(subject.name, subject.dtype, len(first), *differing)


def _in_a_process(settings: Settings, times: int, backend: str, dtype: str, *asked: tuple) -> list[list[Bits]]:
    """What `_runs` gives in a fresh process, which has as many threads as the framework takes by itself."""
    home = Home(backend, SILENCE_SECONDS)
    try:
        process = WorkerProcess(home, settings.interpreter(home), threads=None, start_limit=settings.import_limit)
        try:
            answer = process.ask(request_of(_runs, backend, dtype, *asked, times), None)
            return Elsewhere(home, settings).read(answer, list)
        finally:
            process.end()
    except (WorkerDied, BackendError, SpecError) as error:
        raise SpecError(f"a fresh process with {backend} in {dtype} failed: {error}") from error


def _runs(
    backend: str, dtype: str, paths: tuple[str | None, ...], patterns: tuple[str, ...], times: int
) -> list[list[Bits]]:
    """So many runs of all cases on each path, one path after the other."""
    with quiet_stderr():
        loaded = load(backend)
    return [
        [_run(BackendSubject(loaded, dtype, "cpu", path or loaded.paths()[0]), patterns) for _ in range(times)]
        for path in paths
    ]


def _run(subject: BackendSubject, patterns: tuple[str, ...]) -> Bits:
    found: Bits = {}
    for case in select(patterns):
        problem = case.build().rounded(subject.dtype)
        trace = subject.prepare(problem.config, problem.weights)(problem.inputs)
        found |= {f"{case.id}: {name}": bits for name, bits in bits_of(trace).items()}
    return found
