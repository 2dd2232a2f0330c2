"""Times layers and a model without some heads; `mha.heads.speed` starts a process for each framework.

What is compared runs in this one process, in turn, as in `mha bench`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from mha.bench import machine
from mha.bench.contestants.contestant import Task, load
from mha.bench.measure import Call, Timing, measure, timed
from mha.bench.settings import Setting
from mha.bench.workload import BOUNDS, difference, flops, reference_answer, workload_of
from mha_core import AttentionConfig, SpecError

DTYPE = "float32"


@dataclass(frozen=True)
class Request:
    """What one process measures.

    Args:
        framework: whose layer is measured.
        config: of the whole layer.
        heads: numbers of heads of the layers to measure, all of them first.
        sizes: (batch, length) of each call.
        seconds: for each of what is compared.
        threads: of the framework.
        model: the model to measure as well, in PyTorch; "" for none.
        kept: for each number of heads removed from the model, in words, layer by layer what is left.
        model_sizes: (batch, length) of each call of the model.
    """

    framework: str
    config: AttentionConfig
    heads: Sequence[int]
    sizes: Sequence[tuple[int, int]] = ((8, 128), (2, 512))
    seconds: float = 0.4
    threads: int = 1
    model: str = ""
    kept: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    model_sizes: Sequence[tuple[int, int]] = ()


def rows_of(request: Request) -> dict[str, Any]:
    """Measure in this process, which has not imported a framework yet: `rows`, and `versions` of its packages."""
    os.environ.update(machine.environment(request.threads))
    machine.hold_to(request.threads)
    framework = load(request.framework)
    framework.set_threads(request.threads)
    rows = [_layer(request, framework, *size) for size in request.sizes]
    if request.model:
        rows += _model(request)
    return {"rows": rows, "versions": framework.versions()}


def _layer(request: Request, framework: Any, batch: int, length: int) -> dict[str, Any]:
    """A row: the layer with fewer and fewer heads."""
    config, group = request.config, request.config.num_heads // request.config.num_kv_heads
    ours = next(each for each in framework.CONTESTANTS if each.kind == "ours")
    calls: dict[str, Call] = {}
    work: dict[str, int] = {}
    for heads in request.heads:
        smaller = replace(config, num_heads=heads, num_kv_heads=heads // group)
        setting = Setting("cut", batch, length, config.embed_dim, heads, heads // group)
        task = Task(workload_of(setting, smaller, DTYPE), "forward", DTYPE, "cpu")
        prepared = ours.make(task)
        off = difference(task.workload, prepared.read(prepared.call()), reference_answer(task.workload, "forward"))
        if not off <= BOUNDS[DTYPE]:
            raise SpecError(f"{request.framework} with {heads} heads is {off:.2g} from the reference")
        calls[str(heads)], work[str(heads)] = prepared.call, flops(task.workload, "forward")
    entries = compared(calls, work, request.seconds)
    return {"of": "layer", "framework": request.framework, "size": [batch, length], "entries": entries}


def _model(request: Request) -> list[dict[str, Any]]:
    """Rows: the whole model without more and more heads."""
    import torch

    from mha.heads.live import prune_live
    from mha.port.encoder import load_encoder
    from mha.recipes import survey

    encoder = load_encoder(request.model)
    models = {"0": encoder.model}
    for removed, kept in request.kept.items():
        models[removed] = copy.deepcopy(encoder.model)
        prune_live(survey(models[removed], probe=False)[0], kept)
    rows = []
    for batch, length in request.model_sizes:
        ids = torch.randint(
            encoder.model.config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0)
        )
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        calls = {removed: torch.inference_mode()(partial(model, **given)) for removed, model in models.items()}
        work = {removed: products(model, length) for removed, model in models.items()}
        entries = compared(calls, work, request.seconds)
        rows.append({"of": "model", "framework": "torch", "size": [batch, length], "entries": entries})
    return rows


def products(model: Any, length: int) -> int:
    """Multiplications for one token of a text of `length` tokens: of all Linear modules, scores and weighted sums."""
    import torch

    from mha.recipes import survey

    found = 0
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.startswith("pooler"):
            found += module.in_features * module.out_features
    for site in survey(model, probe=False)[0]:
        config = site.config
        found += length * config.num_heads * (config.head_dim + config.value_head_dim)
    return found


def compared(calls: Mapping[str, Call], work: Mapping[str, int], seconds: float) -> list[dict[str, Any]]:
    """Time calls in turn; each entry has its time, and how many times faster than the first it is.

    The ratio is that of the medians; its limits are those of one call's quartile over the other's opposite one. What
    is predicted is the ratio of `work`, the numbers of multiplications.
    """
    samples = {}
    for name, call in calls.items():
        call()
        samples[name] = [timed(call)[0]]
    timings = measure(calls, samples, seconds)
    whole = next(iter(calls))
    first: Timing = timings[whole]
    return [
        {
            "name": name,
            "time": asdict(timing),
            "ratio": first.median / timing.median,
            "ratio_lower": first.lower / timing.upper,
            "ratio_upper": first.upper / timing.lower,
            "predicted": work[whole] / work[name],
        }
        for name, timing in timings.items()
    ]
