"""How much faster a layer, and the whole model, is without some heads; each framework in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.workers.interpreters import NUMPY, Home
from conformance.workers.process import WorkerProcess
from conformance.workers.protocol import WorkerDied
from mha.bench import machine
from mha.bench.run import installed
from mha.heads.curve import SHARES, counts
from mha.heads.importance import order_of
from mha.heads.prune import kept_in, removed_first
from mha.heads.subject import Subject
from mha.heads.timing import Request, rows_of
from mha_core import SpecError
from mha_core.errors import one_line

MODEL_SIZES = ((8, 128), (2, 512), (1, 32))
"""(batch, length) of calls of the whole model, as far as it has positions."""

THREADS = 1

LIMIT = 600.0
"""Seconds after which a process without a sign of life is ended."""


def measure_speed(
    subject: Subject,
    scores: NDArray[np.float64],
    backends: Sequence[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Time the first layer in each framework, and a live model, with fewer and fewer heads.

    Args:
        subject: whose layers.
        scores: (layers, heads), the importance by which the model's heads are removed.
        backends: whose layer to measure; none for all installed ones.
        progress: is told, in words, what is being done.

    Returns:
        A dict of JSON values: `threads`, `machine`, `rows`, and `problems`, a line for each framework that did not run.
        A row has the layer or model, the framework, the size, and entries with time, ratio and what arithmetic
        predicts.

    Raises:
        BackendError: a backend that was asked for is not known or not installed.
        SpecError: no layer could be measured.
    """
    names, problems = installed(tuple(backends))
    live = subject.live
    if live is not None and "torch" not in names:
        names.append("torch")
    rows: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    for name in names:
        progress(f"speed: {name}")
        try:
            found = _ask(_request(name, subject, scores))
        except SpecError as error:
            problems.append(str(error))
            continue
        rows += found["rows"]
        versions |= found["versions"]
    if not rows:
        raise SpecError(f"nothing could be timed: {'; '.join(problems)}")
    about = {"threads": THREADS, "machine": machine.describe(), "versions": versions}
    return {**about, "layer": subject.layers[0].name, "rows": rows, "problems": problems}


def _request(name: str, subject: Subject, scores: NDArray[np.float64]) -> Request:
    config, group, live = subject.layers[0].config, subject.layers[0].group, subject.live
    left = {max(group, round(config.num_heads * (1 - share) / group) * group) for share in SHARES}
    heads = [config.num_heads, *sorted(left - {config.num_heads}, reverse=True)]
    request = Request(name, config, heads, threads=THREADS)
    if live is None or name != "torch":
        return request
    order = order_of(scores)
    kept = {str(count): kept_in(subject, removed_first(subject, order, count)) for count in counts(subject)}
    sizes = [size for size in MODEL_SIZES if size[1] <= live.encoder.limit]
    return replace(request, model=live.encoder.name, kept=kept, model_sizes=sizes)


def _ask(request: Request) -> dict[str, Any]:
    process = WorkerProcess(Home(NUMPY, LIMIT), threads=request.threads)
    try:
        found: dict[str, Any] = process.call(rows_of, request)
    except Exception as error:  # of a framework, or the end of its process
        reason = error if isinstance(error, (SpecError, WorkerDied)) else one_line(error)
        raise SpecError(f"{request.framework} was not timed: {reason}") from error
    finally:
        process.end()
    return found
