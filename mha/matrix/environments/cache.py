"""The folder that environments, copies of this project and finished results are kept in, and how it is emptied."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from mha_core.errors import SpecError
from mha_core.files.kept import users_cache

VARIABLE = "MHA_MATRIX_CACHE"
"""Environment variable that names the folder."""

MARKER = "made-by-mha-matrix"
"""A file in the folder: nothing is removed from one that lacks it."""

UNFINISHED = ".making-"
"""Part of the name of a folder that is being made; the number of the process that makes it follows."""


class Cache:
    """The folder, with `environments`, `sources` and `results` in it.

    Args:
        root: the folder. Default: `default_root()`.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = default_root() if root is None else root
        self.environments, self.sources, self.results = (
            self.root / name for name in ("environments", "sources", "results")
        )

    def prepare(self) -> None:
        """Make the folders, and remove what a process left half made that is gone. SpecError if that can't be done."""
        try:
            for folder in (self.environments, self.sources, self.results):
                folder.mkdir(parents=True, exist_ok=True)
            (self.root / MARKER).touch()
        except OSError as error:
            message = f"the cache {self.root} can't be written to: {error.strerror}; {VARIABLE} names another"
            raise SpecError(message) from error
        for folder in (self.environments, self.sources):
            for path in folder.iterdir():
                _, making, process = path.name.rpartition(UNFINISHED)
                if making and not _runs(process):
                    remove(path)

    def clear(self) -> int:
        """Remove everything; the bytes that were freed. SpecError if the folder is not one that `prepare` made."""
        if not self.root.exists():
            return 0
        if not (self.root / MARKER).is_file():
            raise SpecError(f"{self.root} was not made by `mha matrix`: it has no file {MARKER!r}; nothing is removed")
        freed = size(self.root)
        for folder in (self.environments, self.sources, self.results):
            if folder.exists():
                remove(folder)
        (self.root / MARKER).unlink()
        with suppress(OSError):  # somebody else's files are in it
            self.root.rmdir()
        return freed


def default_root() -> Path:
    """The folder that $MHA_MATRIX_CACHE names, or one in the user's cache. SpecError if the user has none."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(os.path.abspath(os.path.expanduser(named)))
    found = users_cache()
    if found is None:
        raise SpecError(f"there is no folder for a cache, because the user has no home folder; {VARIABLE} names one")
    return found / "mha-parity-matrix"


def key_of(*parts: Any) -> str:
    """A short name for what JSON can hold: equal for what is equal.

    >>> key_of("torch", ["numpy<2"]) == key_of("torch", ["numpy<2"]), len(key_of("torch"))
    (True, 16)
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it. SpecError if something can't be removed."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SpecError(f"{folder} can't be removed: {error.strerror}") from error


def size(folder: Path) -> int:
    """Bytes of the files in a folder; a link counts as itself."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def _runs(process: str) -> bool:
    """Whether a process of this number runs."""
    if not process.isdigit():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
