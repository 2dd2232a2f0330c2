"""A process for each framework, which measures one task after the other as it is asked."""

import gc
import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any

from benchmarks import measure
from benchmarks.peers import ENGINES, Contestant, Contestants, Prepared
from benchmarks.settings import BOUNDS, Answer, Task, distance, reference_answer
from mha_core.backend import load
from mha_core.errors import BackendError, one_line

Entry = dict[str, Any]
"""A contestant's measurements in one task: name, left_out (why), failed, difference, seconds (of each round) and
extra_memory."""

NOBODY = -1


class Worker:
    """A process that measures one framework, and is started anew when a contestant ends it.

    It has so many threads and gives each contestant so many seconds; with 0 it measures memory alone.
    """

    def __init__(self, framework: str, threads: int, seconds: float, **environment: str) -> None:
        self._given = framework, threads, seconds, environment
        self.facts: dict[str, Any] = self._start()  # versions, dtypes, and what each peer lacks

    def _start(self) -> dict[str, Any]:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._calling = context.Value("i", NOBODY, lock=False)  # whose call is under way
        with undisturbed():  # an interrupt is no concern of the process's, which is ended
            self._process = context.Process(target=serve, args=(theirs, self._calling, *self._given), daemon=True)
            self._process.start()
        theirs.close()
        facts = self._received()
        if not isinstance(facts, dict):
            raise BackendError(facts or self._how_it_ended())
        return facts

    def measured(self, task: Task) -> list[Entry]:
        """Return the measurements of all contestants. BackendError if the process ends outside of their calls."""
        lost: dict[int, str] = {}
        while True:
            self._pipe.send((task, lost))
            entries: list[Entry] | None = self._received()
            if entries is not None:
                return entries
            how, calling = self._how_it_ended(), self._calling.value
            if calling == NOBODY or calling in lost:
                raise BackendError(how)
            lost[calling] = how
            self._start()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()

    def _received(self) -> Any:
        """What the process sends; None if it ends before."""
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            return None

    def _how_it_ended(self) -> str:
        self._process.join()
        status = self._process.exitcode or 0
        how = f"was killed ({signal.Signals(-status).name})" if status < 0 else f"ended with status {status}"
        return f"the process of {self._given[0]} {how}"


@contextmanager
def undisturbed() -> Iterator[None]:
    """A context in which requests to end wait until it is left."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(pipe: Any, calling: Any, framework: str, threads: int, seconds: float, environment: Any) -> None:
    """Answer tasks until the pipe is closed; this is the process of a Worker."""
    os.dup2(2, 1)  # what frameworks print is no row
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ.update(environment)
    try:
        module = importlib.import_module(f"benchmarks.peers.{framework}")
        if framework in ENGINES:
            versions, dtypes = {name: metadata.version(name) for name in ENGINES[framework]}, module.DTYPES
        else:
            backend = load(framework)
            versions, dtypes = backend.versions(), backend.dtypes("cpu")
        if hasattr(module, "set_threads"):  # JAX and MXNet have gone by the environment
            module.set_threads(threads)
    except Exception as error:  # whatever a framework raises while it is imported
        pipe.send(f"{framework} can't be used: {one_line(error)}")
        return
    gc.freeze()  # garbage is looked for before each measurement, and not among the framework's objects
    measure.limit_memory()
    pipe.send({"versions": versions, "dtypes": dtypes, "lacks": [each.lacks for each in module.CONTESTANTS[1:]]})
    with suppress(EOFError, BrokenPipeError):  # who asks has ended
        while True:
            task, lost = pipe.recv()
            pipe.send(measured(module.CONTESTANTS, task, seconds, calling, lost))


def measured(
    contestants: Contestants, task: Task, seconds: float, calling: Any, lost: Mapping[int, str]
) -> list[Entry]:
    """Return the measurements of all contestants, ours first: their answers, then memory, then time.

    `calling.value` is always the number of the contestant that is called; those in `lost` are not, with the reason.
    """
    wanted = reference_answer(task)
    entries: list[Entry] = []
    calls, estimates = {}, {}

    def enter(number: int) -> None:
        calling.value = number

    for number, contestant in enumerate(contestants):
        why = lost.get(number)
        entry = {"name": contestant.name, "left_out": why, "failed": bool(why), "difference": None}
        entries.append({**entry, "seconds": [], "extra_memory": None})
        enter(number)
        prepared = None if why else _tried_out(contestant, task, wanted, entries[-1])
        if prepared is not None:
            estimates[number], calls[number] = measure.timed(prepared.call), prepared.call
    if seconds > 0:
        for number, samples in measure.in_turn(calls, estimates, seconds, enter).items():
            entries[number]["seconds"] = samples
    enter(NOBODY)
    return entries


def _tried_out(contestant: Contestant, task: Task, wanted: Answer, entry: Entry) -> Prepared | None:
    """The contestant, ready to be timed; None, with the reason in `entry`, if it is left out."""
    entry["left_out"] = contestant.unable(task) or None
    if entry["left_out"]:
        return None
    try:
        prepared = contestant.make(task)
        entry["difference"] = distance(task, prepared.read(prepared.call()), wanted)
        if entry["difference"] <= BOUNDS[task.dtype]:
            entry["extra_memory"] = measure.extra_peak(prepared.call)
            return prepared
        far = f"{entry['difference']:.2g} from the reference, more than {BOUNDS[task.dtype]:g}"
        entry |= {"left_out": f"refused: it is {far}", "failed": True}
    except Exception as error:  # a framework may raise anything; the others still run
        traceback.print_exception(error, file=sys.stderr)
        entry |= {"left_out": f"failed: {one_line(error)}", "failed": True}
    return None
