"""Who takes part in `mha bench`: the layer of this package (`mha.bench.contestants.contestant.Framework`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mha.bench.contestants.contestant import Contestant, Prepared, Task
from mha.bench.workload import Answer
from mha_core import AttentionInputs, AttentionMask, Trace
from mha_einsum.attention import attend


def set_threads(count: int) -> str:
    """NumPy's einsum has one thread, however many it may use."""
    return "one thread"


def versions() -> dict[str, str]:
    return {"numpy": np.__version__}


def devices() -> tuple[str, ...]:
    return ("cpu",)


def dtypes(device: str) -> tuple[str, ...]:
    return ("float64", "float32")


def product(size: int, dtype: str, device: str) -> Callable[[], Any]:
    a, b = np.ones((size, size), dtype), np.ones((size, size), dtype)
    return lambda: a @ b


def _einsum(task: Task) -> Prepared:
    workload, dtype = task.workload, task.dtype
    weights = {name: array.astype(dtype) for name, array in workload.weights.items()}
    x, cotangent, past_keys, past_values = (
        None if array is None else array.astype(dtype)
        for array in (workload.x, workload.cotangent, workload.past_keys, workload.past_values)
    )
    mask = AttentionMask(workload.valid_lens, causal=workload.setting.causal, query_offset=workload.setting.past)
    inputs = AttentionInputs(
        *(x, x, x, mask),
        cotangent=cotangent if task.differentiates else None,
        past_keys=past_keys,
        past_values=past_values,
    )

    def read(trace: Trace) -> Answer:
        found = trace.gradients
        return Answer(trace.output, found and found["queries"] + found["keys"] + found["values"])

    return Prepared(lambda: attend(workload.config, weights, inputs), read)


CONTESTANTS = (Contestant("mha_einsum", "ours", _einsum),)
