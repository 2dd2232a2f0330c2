"""How much faster a layer, and the whole model, is without some heads.

Each framework is measured in a worker process of its own. What is compared runs in this one process, in turn, as in
`mha bench`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.workers.interpreters import NUMPY, Home
from conformance.workers.process import WorkerProcess
from conformance.workers.protocol import WorkerDied
from mha.bench import machine
from mha.bench.contestants.contestant import Task, load
from mha.bench.measure import Call, Timing, measure, timed
from mha.bench.run import installed
from mha.bench.settings import Setting
from mha.bench.workload import BOUNDS, difference, flops, reference_answer, workload_of
from mha.heads.curve import SHARES, counts
from mha.heads.importance import order_of
from mha.heads.live import prune_live
from mha.heads.prune import kept_in, removed_first
from mha.heads.subject import Subject
from mha.port.encoder import load_encoder
from mha.recipes import survey
from mha_core import AttentionConfig, SpecError
from mha_core.errors import one_line

MODEL_SIZES = ((8, 128), (2, 512), (1, 32))
"""(batch, length) of calls of the whole model, as far as it has positions."""

THREADS = 1

LIMIT = 600.0
"""Seconds after which a process without a sign of life is ended."""

DTYPE = "float32"


@dataclass(frozen=True)
class Request:
    """What one process measures.

    Args:
        framework: whose layer is measured.
        config: of the whole layer.
        heads: numbers of heads of the layers to measure, all of them first.
        sizes: (batch, length) of each call of a layer.
        seconds: for each of what is compared.
        model: the model to measure as well, in PyTorch; "" for none.
        kept: for each number of heads removed from the model, layer by layer what is left.
        model_sizes: (batch, length) of each call of the model.
    """

    framework: str
    config: AttentionConfig
    heads: Sequence[int]
    sizes: Sequence[tuple[int, int]] = ((8, 128), (2, 512))
    seconds: float = 0.4
    model: str = ""
    kept: Mapping[int, Sequence[Sequence[int]]] = field(default_factory=dict)
    model_sizes: Sequence[tuple[int, int]] = ()


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
    if subject.live is not None and "torch" not in names:
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
    request = Request(name, config, [config.num_heads, *sorted(left - {config.num_heads}, reverse=True)])
    if live is None or name != "torch":
        return request
    order = order_of(scores)
    kept = {count: kept_in(subject, removed_first(subject, order, count)) for count in counts(subject)}
    sizes = [size for size in MODEL_SIZES if size[1] <= live.encoder.limit]
    return replace(request, model=live.encoder.name, kept=kept, model_sizes=sizes)


def _ask(request: Request) -> dict[str, Any]:
    process = WorkerProcess(Home(NUMPY, LIMIT), threads=THREADS)
    try:
        found: dict[str, Any] = process.call(rows_of, request)
    except Exception as error:  # of a framework, or the end of its process
        reason = error if isinstance(error, (SpecError, WorkerDied)) else one_line(error)
        raise SpecError(f"{request.framework} was not timed: {reason}") from error
    finally:
        process.end()
    return found


# In the worker process --------------------------------------------------------------------------------


def rows_of(request: Request) -> dict[str, Any]:
    """Measure in this process, which has not imported a framework yet: `rows`, and `versions` of its packages."""
    os.environ.update(machine.environment(THREADS))
    machine.hold_to(THREADS)
    framework = load(request.framework)
    framework.set_threads(THREADS)
    rows = [_layer(request, framework, *size) for size in request.sizes]
    if request.model:
        rows += _model(request)
    return {"rows": rows, "versions": framework.versions()}


def _layer(request: Request, framework: Any, batch: int, length: int) -> dict[str, Any]:
    """A row: the layer with fewer and fewer heads."""
    config, group = request.config, request.config.num_heads // request.config.num_kv_heads
    ours = next(each for each in framework.CONTESTANTS if each.kind == "ours")
    calls: dict[int, Call] = {}
    work: dict[int, int] = {}
    for heads in request.heads:
        smaller = replace(config, num_heads=heads, num_kv_heads=heads // group)
        setting = Setting("cut", batch, length, config.embed_dim, heads, heads // group)
        task = Task(workload_of(setting, smaller, DTYPE), "forward", DTYPE, "cpu")
        prepared = ours.make(task)
        off = difference(task.workload, prepared.read(prepared.call()), reference_answer(task.workload, "forward"))
        if not off <= BOUNDS[DTYPE]:
            raise SpecError(f"{request.framework} with {heads} heads is {off:.2g} from the reference")
        calls[heads], work[heads] = prepared.call, flops(task.workload, "forward")
    entries = compared(calls, work, request.seconds)
    return {"of": "layer", "framework": request.framework, "size": [batch, length], "entries": entries}


def _model(request: Request) -> list[dict[str, Any]]:
    """Rows: the whole model without more and more heads."""
    import torch

    encoder = load_encoder(request.model)
    models = {0: encoder.model}
    for removed, kept in request.kept.items():
        models[removed] = copy.deepcopy(encoder.model)
        prune_live(survey(models[removed], probe=False)[0], kept)
    rows = []
    for batch, length in request.model_sizes:
        drawn = torch.Generator().manual_seed(0)
        ids = torch.randint(encoder.model.config.vocab_size, (batch, length), generator=drawn)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        calls = {removed: torch.inference_mode()(partial(model, **given)) for removed, model in models.items()}
        work = {removed: products(model, length) for removed, model in models.items()}
        entries = compared(calls, work, request.seconds)
        rows.append({"of": "model", "framework": "torch", "size": [batch, length], "entries": entries})
    return rows


def products(model: Any, length: int) -> int:
    """Multiplications for one token of a text of `length` tokens: of all Linear modules, scores and weighted sums."""
    import torch

    found = 0
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.startswith("pooler"):
            found += module.in_features * module.out_features
    for site in survey(model, probe=False)[0]:
        config = site.config
        found += length * config.num_heads * (config.head_dim + config.value_head_dim)
    return found


def compared(calls: Mapping[int, Call], work: Mapping[int, int], seconds: float) -> list[dict[str, Any]]:
    """Time calls in turn; each entry has its time, and how many times faster than the first it is.

    The ratio is that of the medians; its limits are those of one call's quartile over the other's opposite one. What
    is predicted is the ratio of `work`, the numbers of multiplications.
    """
    samples, named = {}, {str(number): call for number, call in calls.items()}
    for name, call in named.items():
        call()
        samples[name] = [timed(call)[0]]
    timings = measure(named, samples, seconds)
    whole, *_ = calls
    first: Timing = timings[str(whole)]
    return [
        {
            "name": name,
            "time": asdict(timing),
            "ratio": first.median / timing.median,
            "ratio_lower": first.lower / timing.upper,
            "ratio_upper": first.upper / timing.lower,
            "predicted": work[whole] / work[int(name)],
        }
        for name, timing in timings.items()
    ]
