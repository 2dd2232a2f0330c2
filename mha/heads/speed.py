"""How much faster a live model is without some heads: it and smaller copies take turns, as in `mha bench`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from numpy.typing import NDArray

from mha.bench import machine
from mha.bench.measure import Call, measure, timed
from mha.heads.curve import counts
from mha.heads.importance import order_of
from mha.heads.live import prune_live
from mha.heads.prune import kept_in, removed_first
from mha.heads.subject import Subject
from mha.recipes import survey
from mha_core import SpecError

SIZES = ((8, 128), (2, 512), (1, 32))
"""(batch, length) of the calls, as far as the model has positions."""

THREADS = 1

SECONDS = 0.4
"""Of measuring, for each model and size."""


def check_live(subject: Subject) -> None:
    """SpecError if there is no model to time."""
    if subject.live is None:
        raise SpecError(f"{subject.name} is a recording, and --speed times a whole model; `mha bench` times layers")


def measure_speed(subject: Subject, scores: NDArray, *, seconds: float = SECONDS) -> dict[str, Any]:
    """Time a live model with fewer and fewer heads, those of the least `scores` (layers, heads) removed first.

    Returns:
        A dict of JSON values: `threads`, `machine` and `rows`. A row has the size and entries with time, ratio and what
        arithmetic predicts.
    """
    import torch

    check_live(subject)
    assert subject.live is not None
    encoder, order = subject.live.encoder, order_of(scores)
    models = {0: encoder.model}
    for count in counts(subject):
        models[count] = copy.deepcopy(encoder.model)
        prune_live(survey(models[count], probe=False)[0], kept_in(subject, removed_first(subject, order, count)))
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        rows = [_row(models, *size, seconds) for size in SIZES if size[1] <= encoder.limit]
    finally:
        torch.set_num_threads(before)
    return {"threads": THREADS, "machine": machine.describe(), "rows": rows}


def _row(models: Mapping[int, Any], batch: int, length: int, seconds: float) -> dict[str, Any]:
    import torch

    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(models[0].config.vocab_size, (batch, length), generator=drawn)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    calls = {removed: torch.inference_mode()(partial(model, **given)) for removed, model in models.items()}
    work = {removed: products(model, length) for removed, model in models.items()}
    return {"size": [batch, length], "entries": compared(calls, work, seconds)}


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
    first = timings[str(whole)]
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
