"""Cluster: the executor on the machines of a Dask cluster, and what its workers run."""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from conformance.workers.execute import Stopped, Unit, end_idle, execute
from conformance.workers.interpreters import Settings
from conformance.workers.local import Local
from conformance.workers.process import running
from conformance.workers.protocol import Hello, code_hash
from mha_core.errors import BackendError, SpecError, install_command, one_line, shown

ANSWER_SECONDS = 10.0
"""Time for a scheduler, and for its workers, to answer before there is any work."""

WITHOUT_WORKERS_SECONDS = 30.0
"""A cluster that has no worker for so long is given up: who brings workers back has done so by then."""

LOOK_SECONDS = 2.0
"""How often it is asked how many workers it has."""

IDLE_SECONDS = 60.0
"""A Dask worker keeps its processes for so long: nobody tells it that a client has died."""

HELLO = "__import__('conformance.workers.protocol', fromlist=['']).Hello.of_this_process().to_bytes()"
"""What a worker is asked first: an expression, because one that lacks this project can't be sent a function of it."""


class Cluster(Executor):
    """An executor on a Dask cluster. It runs only units of work, each submitted as `submit(execute, unit, settings)`.

    If the cluster fails at a unit, `run_units` runs that unit on this machine, on the executor that `instead` returns.

    Args:
        address: the scheduler's address, such as tcp://10.0.0.1:8786.
        workers: how many processes work at a time, if this machine takes over. None: one for each core.
        say: called with one line when this machine takes over.

    Raises:
        SpecError: `distributed` is not installed, the address is malformed, nobody answers there, or the workers can't
            do the work: there are none, or one lacks mha-parity or has another version.
    """

    def __init__(
        self, address: str, workers: int | None = None, say: Callable[[str], None] = lambda line: None
    ) -> None:
        try:
            import distributed
        except ImportError as error:
            raise SpecError(f"--scheduler needs Dask's distributed: {install_command('dask')}") from error
        self.address = address
        self._workers, self._say = workers, say
        self._run = uuid.uuid4().hex
        self._local: Local | None = None
        self._is_shut = self._is_given_up = False
        self._futures: list[Future[Any]] = []
        self._looked = 0.0
        self._without_workers: float | None = None
        _check_answers(address)
        for name in ("client", "core", "comm", "utils_comm"):  # what there is to say is said in our lines
            logging.getLogger(f"distributed.{name}").setLevel(logging.CRITICAL)
        self._client = distributed.Client(address, timeout=ANSWER_SECONDS, set_as_default=False)
        self._connection = self._client.scheduler_comm
        try:
            self._check_workers()
        except BaseException:
            self.close()
            raise
        self._executor = self._client.get_executor(pure=False)

    def _check_workers(self) -> None:
        where = f"--scheduler {self.address}"
        try:
            answers = self._on_all_workers(eval, HELLO)
        except OSError as error:
            raise SpecError(f"{where}: its workers do not answer: {one_line(error)}") from error
        if not answers:
            raise SpecError(f"{where}: it has no workers")
        for worker, answer in sorted(answers.items()):
            try:
                hello = Hello.from_bytes(answer)
            except (ValueError, TypeError) as error:
                reason = f": {one_line(answer)}" if isinstance(answer, BaseException) else ""
                raise SpecError(f"{where}: its worker {worker} does not run this mha-parity{reason}") from error
            if difference := hello.difference():
                raise SpecError(f"{where}: its worker {worker} {difference}")

    def _on_all_workers(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """What each worker answers, or the exception that it raises. OSError if that takes too long."""
        import asyncio

        async def answers() -> dict[str, Any]:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._client.run(function, *arguments, on_error="return")

        try:
            return self._client.sync(answers)
        except TimeoutError:
            raise TimeoutError(f"no answer within {ANSWER_SECONDS:g} s") from None
        except (Exception, asyncio.CancelledError) as error:
            raise OSError(one_line(error)) from error

    @property
    def is_gone(self) -> bool:
        """Return whether the connection was lost. The scheduler then has forgotten this client's work."""
        return self._client.scheduler_comm is not self._connection or self._client.status != "running"

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Submit `execute`, a unit and its settings; return a Future, as `concurrent.futures.Executor` does."""
        if function is not execute or len(arguments) != 2 or named:
            raise TypeError("a cluster takes execute, a unit and its settings")
        future: Future[Any] = Future()
        self._futures.append(future)
        try:
            there = self._executor.submit(_execute_there, self._run, code_hash(), *arguments)
        except Exception as error:  # it is gone since the unit before
            future.set_exception(error)
        else:
            there.add_done_callback(partial(_copy, future))
        return future

    def look(self) -> None:
        """Stop using a cluster that is gone or has had no workers for a while, because work on it would never end."""
        now = time.monotonic()
        if self.is_gone:
            self._give_up()
        if self._is_given_up or now < self._looked + LOOK_SECONDS:
            return
        self._looked = now
        try:
            there = len(self._client.scheduler_info(n_workers=1)["workers"])
        except Exception:  # it is gone since then: the next look sees it
            return
        if there:
            self._without_workers = None
        elif self._without_workers is None:
            self._without_workers = now
        elif now > self._without_workers + WITHOUT_WORKERS_SECONDS:
            self._give_up()

    def _give_up(self) -> None:
        # Its own futures may wait for ever: a scheduler that is closed says nothing of the work that it had.
        self._is_given_up = True
        for future in self._futures:
            future.cancel()

    def instead(self, error: BaseException) -> Executor:
        """Return an executor on this machine, for a unit at which the cluster failed. Report `error` the first time."""
        if self._local is None:
            if self.is_gone:
                why = "is gone"
            elif self._is_given_up:
                why = "has no workers any more"
            else:
                why = f"has given up some work ({one_line(error)})"
            self._say(f"the Dask cluster at {self.address} {why}: this machine does what it leaves undone")
            self._local = Local(self._workers)
        return self._local

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down as `concurrent.futures.Executor` does, and end the cluster's processes on all machines."""
        if self._is_shut:
            return
        if self._local is not None:
            self._local.shutdown(wait, cancel_futures=cancel_futures)
        if not self.is_gone:
            # What was given up is not waited for: without workers it never ends.
            self._executor.shutdown(wait=wait and not cancel_futures and not self._is_given_up)
            with contextlib.suppress(OSError):
                self._on_all_workers(_stop, self._run)
        self.close()

    def close(self) -> None:
        """End it without waiting for anything."""
        if not self._is_shut:
            self._is_shut = True
            with contextlib.suppress(Exception):  # a scheduler that is gone can't be told
                self._client.close(timeout=2)


def _check_answers(address: str) -> None:
    """SpecError unless a scheduler answers at an address."""
    import asyncio  # here, as every command and each of its processes reads this module

    where = f"--scheduler {shown(address)}"

    async def identity() -> dict[str, Any]:
        from distributed.comm import get_address_host_port
        from distributed.core import rpc
        from distributed.security import Security

        if not 0 < (get_address_host_port(address)[1] or 1) < 2**16:
            raise ValueError("a port is a number from 1 to 65535")
        async with asyncio.timeout(ANSWER_SECONDS):
            arguments = Security().get_connection_args("client")
            async with rpc(address, timeout=ANSWER_SECONDS, connection_args=arguments) as server:
                return await server.identity()

    try:
        found = asyncio.run(identity())
    except ValueError as error:
        raise SpecError(f"{where} is no address, such as tcp://127.0.0.1:8786: {one_line(error)}") from error
    except TimeoutError as error:
        raise SpecError(f"{where}: no answer within {ANSWER_SECONDS:g} s") from error
    except Exception as error:
        raise SpecError(f"{where}: {one_line(error)}") from error
    if found.get("type") != "Scheduler":
        raise SpecError(f"{where}: this is no scheduler, but a {shown(found.get('type'))}")


def _copy(future: Future[Any], there: Future[Any]) -> None:
    """Give `future` the outcome of the one that the client has."""
    if there.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    error = there.exception()
    if error is None:
        future.set_result(there.result())
    else:
        future.set_exception(error)


# What follows runs in the workers of the cluster.

_stopped: set[str] = set()
"""Runs whose answers nobody waits for."""

_units: dict[str, list[Unit]] = {}
"""Run -> its units that are being done here."""

_lock = threading.Lock()
_later: list[threading.Timer] = []


def _execute_there(run: str, code: str, unit: Unit, settings: Settings) -> list[Any]:
    """`execute`, in a worker of the cluster, of which there may be more than were asked whether they can."""
    if code != code_hash():
        raise BackendError("a worker that came later has mha-parity with other code")

    def say(item: int, answer: Any) -> None:
        if run in _stopped:
            raise Stopped

    with _lock:
        _units.setdefault(run, []).append(unit)
    try:
        return execute(unit, settings, say)
    finally:
        with _lock:
            _units[run].remove(unit)
            while _later:
                _later.pop().cancel()
            timer = threading.Timer(IDLE_SECONDS, end_idle)
            timer.daemon = True
            timer.start()
            _later.append(timer)


def _stop(run: str) -> None:
    """End the processes of one run, and those that wait for work."""
    _stopped.add(run)
    with _lock:
        ours = {id(unit) for unit in _units.get(run, [])}
    for process in running():
        if id(process.unit) in ours:
            process.end()
    end_idle()
