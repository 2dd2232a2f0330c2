"""Keep a framework's start-up messages off the terminal."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hold back what C++ code writes to stderr; show it after all if the block raises.

    TensorFlow logs to the file descriptor while it is imported, before any setting of its own counts.
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
