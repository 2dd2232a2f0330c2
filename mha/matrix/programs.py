"""Runs a program in a process group of its own, in time; whatever ends this process' work ends that group."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from mha_core.errors import shown

LINES = 2
"""Lines of stderr that are shown of a program that failed."""

OTHERS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP", "PYTHONDONTWRITEBYTECODE")
"""Environment variables that lead an interpreter to another's packages; and the one with which every process would
compile anew what it imports, because uv compiles nothing."""


class Failed(Exception):
    """A program ended with another status than 0, or took too long; the message is one line.

    Attributes:
        printed: what it printed until then.
    """

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed


def finish(command: Sequence[str], folder: Path, limit: float, **variables: str) -> str:
    """Run a program to its end, and return what it printed. Raises Failed.

    Args:
        command: the program and its arguments.
        folder: its current folder.
        limit: the seconds that it may take.
        variables: environment variables, besides ours.
    """
    given = {name: value for name, value in os.environ.items() if name not in OTHERS} | variables
    started: list[subprocess.Popen[str]] = []

    def start() -> None:
        started.append(
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="backslashreplace",
                env=given,
                cwd=folder,
                start_new_session=True,
            )
        )

    with tempfile.TemporaryFile("w+", errors="backslashreplace") as errors, ThreadPoolExecutor(1) as thread:
        try:
            # In a thread, which no signal reaches: an interrupt in the middle of a start would lose the process.
            thread.submit(start).result()
            printed: str = started[0].communicate(timeout=limit)[0]
        except OSError as error:
            raise Failed(f"{command[0]} can't be started: {error.strerror}") from error
        except subprocess.TimeoutExpired as expired:
            before = (expired.output or b"").decode(errors="backslashreplace")
            raise Failed(f"it took more than {limit:g} s", before) from None
        finally:
            thread.shutdown()  # a start that an interrupt has left under way is waited for
            for process in started:
                _end(process)
        if started[0].returncode != 0:
            errors.seek(0)
            raise Failed(_how_it_ended(started[0].returncode, errors.read()), printed)
    return printed


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of the process and of its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _how_it_ended(status: int, stderr: str) -> str:
    """How a program ended, with the last lines that it wrote to stderr, in one line."""
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    # uv says in a line of this kind what the matter is, then its cause, and then what might help.
    errors = [number for number, line in enumerate(said) if line.startswith("error")]
    told = said[errors[0] : errors[0] + LINES] if errors else said[-LINES:]
    how = f"it ended with status {status}"
    if status < 0:
        with suppress(ValueError):
            how = f"it was ended by {signal.Signals(-status).name}"
    return shown(": ".join([how, *told]), 500)
