"""A framework in NumPy, whose contestants may be wrong, unable, or the end of their process."""

import os
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace

from benchmarks.measure import MEMORY_CALLS
from benchmarks.peers import Contestant, Prepared
from benchmarks.settings import Setting, Task
from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import AttentionMask
from mha_core.call.rotary import RotaryInputs
from mha_core.reference.pipeline import run

TINY = Setting("tiny", 3, 11, 16, 2, num_kv_heads=1, causal=True, rotary=True, window=4)
"""More queries than are checked."""


def solve(task: Task, scale=None):
    """The reference's answer to the whole task."""
    setting = task.setting
    window = None if setting.window is None else (setting.window - 1, None)
    inputs = AttentionInputs(
        *(task.x, task.x, task.x),
        AttentionMask(task.valid_lens, causal=setting.causal, query_offset=setting.past, window=window),
        cotangent=task.cotangent if task.gradients else None,
        rotary=RotaryInputs(query_offset(setting), None) if setting.rotary else None,
        **task.past,
    )
    trace = run(replace(task.config, scale=scale), task.weights, inputs)
    if trace.gradients is None:
        return (trace.output,)
    return trace.output, sum(trace.gradients[name] for name in ("queries", "keys", "values"))


def query_offset(setting):
    import numpy as np

    return setting.past + np.arange(setting.length)


def contestant(name, *, scale=None, twice_the_gradient=False, calls=None, before=lambda number: None, lacks=()):
    """The reference; `calls` gets its name at each call, and `before` is called with the call's number."""

    def make(task):
        numbers = iter(range(1000))

        def call():
            before(next(numbers))
            if calls is not None:
                calls.append(name)
            output, *gradient = solve(task, scale)
            return (output, *(2 * each if twice_the_gradient else each for each in gradient))

        return Prepared(call, lambda found: found)

    return Contestant(name, make, lacks=lacks)


def _end_at(call, end):
    return lambda number: end() if number == call else None


CONTESTANTS = (
    contestant("ours"),
    contestant("killed at once", before=_end_at(0, lambda: os.kill(os.getpid(), signal.SIGKILL))),
    contestant("killed in the rounds", before=_end_at(3 + MEMORY_CALLS, lambda: os.kill(os.getpid(), signal.SIGKILL))),
    contestant("ends", before=_end_at(1, lambda: os._exit(3))),
    contestant("peer"),
)


def serve(pipe, calling, framework, threads, seconds, environment):
    """What the process of a Worker does, with this framework in place of one that is installed."""
    from benchmarks import worker

    if framework == "ends":
        os._exit(5)
    module = SimpleNamespace(CONTESTANTS=CONTESTANTS, DTYPES=("float32",))
    worker.ENGINES = {"engine": ("numpy",)}
    if framework == "fragile":  # its second setting ends the process before anyone is called
        worker.reference_answer = lambda task: os._exit(5) if task.setting.name != "tiny" else solve_checked(task)
        module = SimpleNamespace(CONTESTANTS=CONTESTANTS[:1])
    sys.modules[f"benchmarks.peers.{framework}"] = module
    if framework == "broken":
        sys.modules[f"benchmarks.peers.{framework}"] = None

    def versions():
        print("what a framework prints", flush=True)
        return {framework: "1.5"}

    worker.load = lambda name: SimpleNamespace(versions=versions, dtypes=lambda device: ("float32",))
    worker.serve(pipe, calling, framework, threads, seconds, environment)


def solve_checked(task):
    output, *gradient = solve(task)
    return (output[:, task.checked], *gradient)
