"""Runs a program in a process group of its own, in time; whatever ends this process' work ends that group."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mha_core.errors import shown

LAST_LINES = 3
"""Last lines of stderr that are shown of a program that failed."""


class ProgramFailed(Exception):
    """A program ended with another status than 0, or took too long; the message is one line."""


def finish(command: Sequence[str], environment: Mapping[str, str], limit: float, folder: Path) -> str:
    """Run a program to its end, and return what it printed. Raises ProgramFailed.

    Args:
        command: the program and its arguments.
        environment: its environment variables, all of them.
        limit: the seconds that it may take.
        folder: its current folder.
    """
    with _started(command, environment, folder) as (process, errors):
        try:
            printed, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"it took more than {limit:g} s") from None
        if process.returncode != 0:
            raise ProgramFailed(end_of(process.returncode, errors))
    return printed


def lines(
    command: Sequence[str], environment: Mapping[str, str], silence: float, folder: Path, told: str
) -> Generator[str, None, None]:
    """The lines that a program prints, as they come; to be closed, so that it ends. Raises ProgramFailed.

    Args:
        command, environment, folder: as for `finish`.
        silence: the seconds that it may take for one line.
        told: what it reads from stdin.
    """
    with _started(command, environment, folder) as (process, errors):
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it ended before it read: its status says why
            process.stdin.write(told)
            process.stdin.close()
        arrived: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(process.stdout, arrived), daemon=True)
        reader.start()
        while True:
            try:
                line = arrived.get(timeout=silence)
            except queue.Empty:
                raise ProgramFailed(f"it said nothing for {silence:g} s") from None
            if line is None:
                break
            yield line
        try:
            status = process.wait(timeout=silence)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"it did not end within {silence:g} s") from None
        if status != 0:
            raise ProgramFailed(end_of(status, errors))


def end_of(status: int, errors: IO[str]) -> str:
    """How a program ended, with the last lines that it wrote to stderr, in one line."""
    errors.seek(0)
    said = [line.strip() for line in errors.read().splitlines() if line.strip()]
    # pip and uv say in lines of this kind what the matter is, and then much more.
    important = [line for line in said if line.lower().startswith(("error", "\u00d7"))]
    how = f"it ended with status {status}"
    if status < 0:
        with suppress(ValueError):
            how = f"it was ended by {signal.Signals(-status).name}"
    return shown(": ".join([how, *(important or said)[-LAST_LINES:]]), 500)


def _read(stream: IO[str], arrived: queue.Queue[str | None]) -> None:
    with suppress(ValueError):  # closed, because nobody listens any more
        for line in stream:
            arrived.put(line)
    arrived.put(None)


@contextmanager
def _started(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """The process and the file that its stderr goes to; at the end of the block nothing of its group is left."""
    with tempfile.TemporaryFile("w+", errors="backslashreplace") as errors:
        process = None
        try:
            with _interrupts_held():
                process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    errors="backslashreplace",
                    env=dict(environment),
                    cwd=folder,
                    start_new_session=True,
                )
            yield process, errors
        except OSError as error:
            if process is not None:
                raise
            raise ProgramFailed(f"{command[0]} can't be started: {error.strerror}") from error
        finally:
            if process is not None:
                _end(process)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let signals that end this process wait for the block: one in the middle of a start would lose the child."""
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    held: list[int] = []
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    # Only what Python handles: what the system does, such as ignoring, holds for the child as well.
    ours = {number: handler for number, handler in before.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for number in held:
            signal.raise_signal(number)


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and all that it started in its group: politely if that is quick, in any case at last."""
    for request, patience in ((signal.SIGTERM, 2.0), (getattr(signal, "SIGKILL", signal.SIGTERM), 10.0)):
        if not _signal_group(process, request):
            break
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience)
        deadline = time.monotonic() + 0.2
        while _signal_group(process, 0) and time.monotonic() < deadline:
            time.sleep(0.02)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    process.wait()


def _signal_group(process: subprocess.Popen[str], number: int) -> bool:
    """Send a signal to the group; whether anything of it is left."""
    if not hasattr(os, "killpg"):
        if process.poll() is None:
            process.kill()
        return False
    process.poll()  # a child that has ended is a member of its group until it is asked for
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
