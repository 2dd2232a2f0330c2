"""Determinism: the same bits from a rerun in one process, and in a fresh one.

`python -m conformance.determinism BACKEND DTYPE` is the fresh process: it prints the fingerprints of
what the backend computes for every case, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.case import Case
from mha_core import BackendError, Trace
from mha_core.backend import Backend

Fingerprints = Mapping[str, str]
"""Stage name, or "gradients.NAME" -> hexadecimal SHA-256 of the array's dtype, shape and bytes."""


@dataclass(frozen=True)
class Repeat:
    """One case on one backend in one dtype, run three times.

    Attributes:
        same_process: stages and "gradients.NAME" that a rerun gave in other bits.
        fresh_process: those that another process gave in other bits.
        arrays: how many arrays were compared.
    """

    case: str
    same_process: tuple[str, ...]
    fresh_process: tuple[str, ...]
    arrays: int


def fingerprint(trace: Trace) -> dict[str, str]:
    """One fingerprint for each stage and gradient; equal ones mean equal bits.

    >>> import numpy as np
    >>> first, second = (fingerprint(Trace(output=np.array([zero])))["output"] for zero in (0.0, -0.0))
    >>> len(first), first == second
    (64, False)
    """
    arrays = dict(trace.stages())
    arrays.update({f"gradients.{name}": array for name, array in (trace.gradients or {}).items()})
    return {
        name: hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode() + array.tobytes()).hexdigest()
        for name, array in arrays.items()
    }


def run_fingerprints(backend: Backend, dtype: str, case: Case, path: str | None = None) -> dict[str, str]:
    """The fingerprints of one run, from a layer made anew."""
    problem = case.build().rounded(dtype)
    run = backend.prepare(problem.config, problem.weights, dtype=dtype, path=path)
    return fingerprint(run(problem.inputs))


def fresh_fingerprints(
    backend: str, dtype: str, case_ids: Sequence[str], *, timeout: float = 600.0
) -> dict[str, Fingerprints]:
    """Case id -> the fingerprints of one run of it, all in one process made for it.

    Raises:
        BackendError: the process ended with an error, or not in time.
    """
    command = [sys.executable, "-m", "conformance.determinism", backend, dtype]
    # Hashes of strings differ from process to process unless asked not to; nothing may depend on them.
    environment = {**os.environ, "PYTHONHASHSEED": "random"}
    what = f"backend {backend!r} in a fresh process"
    try:
        ended = subprocess.run(
            command, input=json.dumps(list(case_ids)), env=environment, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"{what} did not end within {timeout:.0f} s") from error
    if ended.returncode != 0:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise BackendError(f"{what} ended with status {ended.returncode}: {last}")
    return json.loads(ended.stdout.splitlines()[-1])


def check_determinism(
    backend: Backend, dtype: str, cases: Sequence[Case], progress: Callable[[str], None] = lambda case_id: None
) -> Iterator[Repeat]:
    """Run each case twice here and once in a fresh process, and compare bits.

    Raises:
        BackendError: the fresh process failed.
    """
    elsewhere = fresh_fingerprints(backend.name, dtype, [case.id for case in cases])
    for case in cases:
        first = run_fingerprints(backend, dtype, case)
        again = run_fingerprints(backend, dtype, case)
        yield Repeat(case.id, differing(first, again), differing(first, elsewhere[case.id]), len(first))
        progress(case.id)


def differing(first: Fingerprints, second: Fingerprints) -> tuple[str, ...]:
    """The arrays that are not in both with the same bits, in the order of `first`.

    >>> differing({"heads": "a1", "output": "b2"}, {"heads": "a1", "output": "b3"})
    ('output',)
    """
    names = dict.fromkeys((*first, *second))
    return tuple(name for name in names if first.get(name) != second.get(name))


def main() -> None:
    """The fresh process: BACKEND DTYPE as arguments, case ids as a JSON list on stdin."""
    from conformance.cases import select
    from conformance.quiet import quiet_stderr
    from conformance.random_cases import case_from_text, is_case_text
    from mha_core.backend import load

    name, dtype = sys.argv[1:]
    case_ids = json.load(sys.stdin)
    with quiet_stderr():
        backend = load(name)
    found = {}
    for case_id in case_ids:
        case = case_from_text(case_id) if is_case_text(case_id) else select((case_id,))[0]
        found[case_id] = run_fingerprints(backend, dtype, case)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
