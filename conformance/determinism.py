"""Determinism: check that a rerun in one process, and a run in a fresh one, give equal bits.

`python -m conformance.determinism BACKEND PATH DTYPE TIMES` prints the fingerprints of every case as JSON.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from conformance.cases.case import Case
from conformance.cases.table import select
from conformance.subjects.backend import BackendSubject
from mha_core import SpecError, Trace
from mha_core.backend import load

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
    backend_name: str, dtype: str, patterns: tuple[str, ...] = (), path: str | None = None
) -> Repeatability:
    """Run the cases on one path of a backend, None for its usual one: twice in one fresh process and once in another.

    This process is not used, because a framework that is loaded already can change how many threads another has
    (importing MXNet leaves PyTorch with one), and then other bits come out.

    Raises:
        SpecError: a process failed; the message has the last line that it wrote.
    """
    select(patterns)
    path = load(backend_name).paths()[0] if path is None else path
    first, again = _in_fresh_process(backend_name, path, dtype, patterns, times=2)
    (fresh,) = _in_fresh_process(backend_name, path, dtype, patterns, times=1)
    total = sum(map(len, first.values()))
    return Repeatability(backend_name, dtype, total, _differences(first, again), _differences(first, fresh))


def _in_fresh_process(
    backend_name: str, path: str, dtype: str, patterns: tuple[str, ...], times: int
) -> list[Fingerprints]:
    command = [sys.executable, "-m", "conformance.determinism", backend_name, path, dtype, str(times), *patterns]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise SpecError(f"a fresh process with {backend_name} in {dtype} failed: {last}")
    return json.loads(result.stdout.splitlines()[-1])


def _differences(first: Fingerprints, second: Fingerprints) -> tuple[str, ...]:
    return tuple(
        f"{case}: {name}"
        for case, arrays in first.items()
        for name, bits in arrays.items()
        if second[case][name] != bits
    )


def main() -> None:
    """Print the fingerprints of TIMES runs as one line of JSON."""
    backend_name, path, dtype, times, *patterns = sys.argv[1:]
    cases = select(tuple(patterns))
    print(json.dumps([fingerprints(backend_name, path, dtype, cases) for _ in range(int(times))]))


if __name__ == "__main__":
    main()
