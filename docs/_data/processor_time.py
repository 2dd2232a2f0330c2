"""Processor time and memory, for costs.md, on a machine that other programs share.

In docs/, for each framework:

    python -m _data.processor_time parts torch         a layer with rotary positions and query-key norm, and one without
    python -m _data.processor_time memory torch        their extra memory, in MB
    python -m _data.processor_time peers torch cache   ours and its peers in settings of `mha bench`

Times are processor time of one thread, in ms: the least of some calls in turn.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from mha.bench import machine
from mha.bench.contestants.contestant import CannotRun, Framework, Task, contestants_of, load
from mha.bench.measure import extra_peak, round_robin, timed
from mha.bench.settings import DIRECTIONS, Direction, Setting, setting
from mha.bench.workload import make_workload
from mha_core import AttentionConfig, SpecError, init_weights

ROUNDS, LENGTHS = 7, (2048, 8192)

MOST = 8 * 10**9
"""A contestant that needs more bytes is left out."""

PARTS = {"plain": {}, "with parts": {"rotary": True, "query_key_norm": "rms"}}


def least(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of each call, rounded: the least of ROUNDS in turn."""
    for call in calls.values():
        call()
    found = dict.fromkeys(calls, float("inf"))
    for order in round_robin(list(calls), ROUNDS):
        for name in order:
            found[name] = min(found[name], 1e3 * timed(calls[name], time.process_time)[0])
    return {name: round(number, 1) for name, number in found.items()}


def memory_of(call: Callable[[], object]) -> float:
    """Extra memory of a call at its peak, in MB."""
    call()
    return round((extra_peak(call) or 0) / 1e6, 1)


def of_parts(framework: Framework, length: int, direction: Direction) -> dict[str, Callable[[], object]]:
    """Our layer of (1, length, 512, 8), without parts and with them."""
    calls = {}
    for name, parts in PARTS.items():
        config = AttentionConfig(512, 8, bias=True, **parts)  # type: ignore[arg-type]  # a union of keywords
        weights = {key: array.astype("f4") for key, array in init_weights(config, seed=0).items()}
        workload = replace(make_workload(Setting("", 1, length, 512, 8), "float32"), config=config, weights=weights)
        calls[name] = framework.CONTESTANTS[0].make(Task(workload, direction, "float32", "cpu")).call
    return calls


def of_setting(framework: Framework, name: str, direction: Direction) -> dict[str, Callable[[], object]]:
    """Ours and its peers; who is left out is printed with the reason."""
    task = Task(make_workload(setting(name), "float32"), direction, "float32", "cpu")
    calls = {}
    for contestant in framework.CONTESTANTS:
        try:
            if contestant.kind != "variant" and contestant.need(task) <= MOST:
                calls[contestant.name] = contestant.make(task).call
        except (CannotRun, SpecError) as error:
            print(f"    {contestant.name}: {error}")
    return calls


def main() -> None:
    """Measure what the arguments say."""
    what, name, *names = sys.argv[1:]
    os.environ.update(machine.environment(1))
    if what == "memory":
        os.environ.update(contestants_of(name).memory_environment)
    machine.hold_to(1)
    framework = load(name)
    framework.set_threads(1)
    for direction in DIRECTIONS:
        for each in names:
            print(each, direction, least(of_setting(framework, each, direction)), flush=True)
        if what == "parts":
            found = least(of_parts(framework, 2048, direction))
            print(direction, found, f"{found['with parts'] / found['plain']:.3f}", flush=True)
        for length in LENGTHS if what == "memory" else ():
            found = {key: memory_of(call) for key, call in of_parts(framework, length, direction).items()}
            print(length, direction, found, flush=True)


if __name__ == "__main__":
    main()
