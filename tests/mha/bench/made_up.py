"""A framework in NumPy, and results that were never measured."""

from __future__ import annotations

from dataclasses import replace

from mha.bench.contestants.contestant import CannotRun, Contestant, Prepared, Task
from mha.bench.run import Measured
from mha.bench.settings import Setting
from mha.bench.workload import Answer
from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import AttentionMask
from mha_core.reference.pipeline import run

TINY = Setting("tiny", 3, 11, 12, 2, num_kv_heads=1, past=5, causal=True, ragged=True)
"""More queries than are checked, and every feature."""


def numpy_contestant(name, kind="peer", *, scale=None, wrong_gradient=False, calls=None):
    """The reference, perhaps with another scale; `calls` gets its name at every call."""

    def make(task: Task) -> Prepared:
        def call():
            if calls is not None:
                calls.append(name)
            return solve(task, scale)

        def read(answer: Answer) -> Answer:
            return replace(answer, gradient=2 * answer.gradient) if wrong_gradient else answer

        return Prepared(call, read)

    return Contestant(name, kind, make)


def solve(task: Task, scale=None) -> Answer:
    """What the reference says of the whole workload: all queries, and its own causal mask."""
    workload = task.workload
    setting = workload.setting
    inputs = AttentionInputs(
        *(workload.x, workload.x, workload.x),
        AttentionMask(
            workload.valid_lens,
            causal=setting.causal,
            query_offset=setting.past,
            window=None if setting.window is None else (setting.window - 1, 0),
        ),
        cotangent=workload.cotangent if task.differentiates else None,
        past_keys=workload.past_keys,
        past_values=workload.past_values,
    )
    trace = run(replace(workload.config, scale=scale), workload.weights, inputs)
    gradients = trace.gradients
    if gradients is None:
        return Answer(trace.output)
    return Answer(trace.output, gradients["queries"] + gradients["keys"] + gradients["values"])


def unable_contestant(name):
    def make(task: Task) -> Prepared:
        raise CannotRun("it has no such thing")

    return Contestant(name, "peer", make)


def broken_contestant(name, error):
    def make(task: Task) -> Prepared:
        def call():
            raise error

        return Prepared(call, lambda answer: answer)

    return Contestant(name, "peer", make)


# Results --------------------------------------------------------------------------------------------------


def entry(name, kind="peer", seconds=None, memory=None, *, left_out=None, failed=False):
    time = (
        None if seconds is None else {"median": seconds, "lower": seconds * 0.9, "upper": seconds * 1.2, "samples": 7}
    )
    return {
        "name": name,
        "kind": kind,
        "left_out": left_out,
        "failed": failed,
        "need": None,
        "free": None,
        "alone": False,
        "difference": None if seconds is None else 1e-7,
        "time": time,
        "extra_memory": memory,
    }


def row(framework, length, direction, *contestants):
    setting = {**vars(Setting(f"length-{length}", 1, length, 512, 8)), "dtypes": ["float32"]}
    return {
        "framework": framework,
        "device": "cpu",
        "setting": setting,
        "dtype": "float32",
        "direction": direction,
        "flops": 4_000_000,
        "peak": 1e9,
        "contestants": list(contestants),
    }


def measured():
    """Two frameworks at two lengths; one peer is unable, and in one row there is none."""
    ready = {"threads": "as told", "devices": ["cpu"]}
    ours = [entry("ours", "ours", 0.010, 3_000_000), entry("ours", "ours", 0.030, 5_000_000)]
    swift = Measured("swift", {**ready, "versions": {"swift": "1.5"}})
    swift.rows = [
        row(
            "swift",
            64,
            "forward",
            ours[0],
            entry("Slow", seconds=0.040, memory=2_000_000),
            entry("Fast", seconds=0.020),
        ),
        row("swift", 128, "forward", ours[1], entry("Fast", seconds=0.020, memory=7_000_000)),
    ]
    alone = Measured("alone", {**ready, "versions": {"alone": "0.1"}})
    unable = entry("Unable", left_out="it has no such thing")
    alone.rows = [row("alone", 64, "forward", ours[0], unable), row("alone", 128, "forward", ours[1], unable)]
    return [swift, alone]
