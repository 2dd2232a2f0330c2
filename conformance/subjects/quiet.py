"""Keep the start-up messages of frameworks off the terminal, and all but the beginning of what subjects print."""

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Return a context that hides what C++ code writes to stderr, and shows it afterwards if the context raises.

    TensorFlow writes logs to the file descriptor while it is imported, before any setting could stop it.
    """
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(terminal, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)


MOST_PRINTED = 2000
"""Most characters that are shown of what the processes of one name print in one run."""

CHATTER = re.compile(rb"^(?:WARNING: All log messages before absl::|[IW]\d{4} \d\d:\d\d:\d+\.\d+ ).*\n?", re.MULTILINE)
"""Lines that TensorFlow logs while it is imported, below an error."""

WARNED = re.compile(rb"^\S+:\d+: \w*Warning: .*\n(?:  .*\n)?", re.MULTILINE)
"""A warning of Python's, with the line of code below it."""

INSTALLED = b"/site-packages/"
"""A part of the path of code that the user did not write."""

_warned: set[tuple[str, bytes]] = set()
"""Name, and a warning that was shown, without its numbers."""

_printed: dict[str, int] = {}
"""Name -> how many characters were shown."""


def pass_on(pipe: int, name: str) -> threading.Thread:
    """Return a thread that copies the beginning of a pipe's output to stderr, and reports if it leaves out the rest.

    The thread also drops, without a report: logs of imports, warnings from the code of installed packages, and
    warnings that differ from earlier ones only in numbers.

    Args:
        pipe: a file descriptor, which is closed at the end.
        name: the name of the writer; all pipes of one name together may print `MOST_PRINTED` characters.
    """

    def first(warning: re.Match[bytes]) -> bytes:
        if INSTALLED in warning[0].partition(b": ")[0]:
            return b""
        key, known = (name, re.sub(rb"\d+", b"", warning[0])), len(_warned)
        _warned.add(key)
        return warning[0] if len(_warned) > known else b""

    def work() -> None:
        with open(pipe, "rb", buffering=0) as source:
            while data := source.read(2**16):
                if not (data := WARNED.sub(first, CHATTER.sub(b"", data))):
                    continue
                there = _printed.get(name, 0)
                _printed[name] = there + len(data)
                part = data[: max(MOST_PRINTED - there, 0)]
                if there < MOST_PRINTED < there + len(data):
                    part += f"\n(what else {name} prints is left out)\n".encode()
                with suppress(OSError):  # nobody reads it
                    os.write(2, part)

    thread = threading.Thread(target=work, name="mha-printed", daemon=True)
    thread.start()
    return thread
