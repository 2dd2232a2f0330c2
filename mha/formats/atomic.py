"""A file that is there whole or not at all, however long its writing takes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mha_core import SpecError


def check_target(path: Path, *, force: bool) -> None:
    """SpecError if `path` can't be written to, or is there and may not be replaced."""
    if path.is_dir():
        raise SpecError(f"out must name a file. Got the folder {path}.")
    if not path.parent.is_dir():
        raise SpecError(f"out needs an existing folder. There is no {path.parent}.")
    if not os.access(path.parent, os.W_OK):
        raise SpecError(f"out needs a folder that can be written to. Got {path.parent}.")
    if path.exists() and not force:
        raise SpecError(f"{path} is already there; force (--force) replaces it")


@contextmanager
def replaced_at_the_end(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place when the block ends well, and is removed otherwise.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replaced_at_the_end(Path(folder) / "notes.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     os.listdir(folder)
    ['notes.txt']
    """
    # The suffix is kept: readers go by it.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=f".{path.name}")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes a private file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
