"""Data that can be made again, kept in a folder from run to run: each piece by its key, with a digest.

A piece that is damaged, absent or can't be read is made again; one that can't be written is not kept. Nothing here
raises an error, and processes may share a folder.

What is kept runs, or decides what is right, so who can write it can do as they like: folders and pieces of another
owner, or that others may write, are passed over.
"""

import hashlib
import os
import platform
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from mha_core.files.writing import write_whole

SETTING = "MHA_COMPILE_CACHE"
"""Environment variable: "off", or the folder to use in place of the user's cache folder."""

OFF = "off"

MOST_BYTES = 2**29
"""Most bytes that are kept; see `trim`."""

_NAME = re.compile(r"(\.[0-9a-f]{16}\.)?[0-9a-f]{64}\.kept")
"""Of a piece; with a dot before it, of one that was being written when its process was ended."""


class Kept:
    """A cache folder: it maps a text key to bytes, each in a file of its own (a piece), with a digest.

    Args:
        folder: the path of the folder, which is made when the first piece is written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = Kept(Path(folder) / "new")
    ...     kept.put("key", b"data")
    ...     kept.get("key"), kept.get("another key")
    (b'data', None)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> bytes | None:
        """Return the bytes under this key; None if there are none, or the file is damaged."""
        path = self._path(key)
        try:
            if not is_ours(self.folder.stat()):
                return None
            with open(path, "rb") as file:
                if not is_ours(os.fstat(file.fileno())):
                    return None
                found = file.read()
        except OSError:
            return None
        digest, data = found[:32], found[32:]
        if digest != _digest(key, data):
            return None
        with suppress(OSError):
            os.utime(path)  # `trim` removes first what was not used for longest
        return data

    def put(self, key: str, data: bytes) -> None:
        """Write `data` under this key, in place of earlier data."""
        with suppress(OSError):
            for folder in (*reversed(self.folder.parents), self.folder):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
            if is_ours(self.folder.stat()):
                write_whole(self._path(key), _digest(key, data) + data)
                self._path(key).chmod(0o600)

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.kept"


def kept_folder() -> Path | None:
    """Return the cache folder: the one that `MHA_COMPILE_CACHE` names, or one in the user's cache folder.

    Return None if the variable is "off", or if the user has no home folder.
    """
    setting = os.environ.get(SETTING, "")
    if setting:
        return None if setting.lower() == OFF else Path(os.path.abspath(os.path.expanduser(setting)))
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    try:
        home = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    except RuntimeError:  # there is none
        home = None
    found = Path(base) if os.path.isabs(base) else home
    return None if found is None else found / "mha-parity"


def is_ours(status: os.stat_result) -> bool:
    """Return whether a file or folder belongs to the current user, and nobody else may write it."""
    if not hasattr(os, "geteuid"):  # Windows has other means
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def passed_over(folder: Path) -> str:
    """Return a line about cache files that are ignored because other users own or can write them; "" if none are."""
    found = [path for path, status in pieces(folder) if not is_ours(status) or not is_ours(path.parent.stat())]
    if not found:
        return ""
    what = "1 piece" if len(found) == 1 else f"{len(found)} pieces"
    return f"passed over: {what} in {folder}, which others own or may write (`mha cache clear` removes what it may)"


def folder_for(versions: Mapping[str, str], others: Iterable[str]) -> str:
    """Return a folder name made of `versions` and a digest of them and of `others`, such as flags or `machine()`.

    >>> folder_for({"jax": "0.7.1"}, ["--flag"]) == folder_for({"jax": "0.7.1"}, ["--another"])
    False
    """
    named = "-".join(f"{name}-{version}" for name, version in versions.items())
    digest = hashlib.sha256("\0".join((named, *others)).encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9._+-]', '_', named)[:120]}-{digest[:16]}"


def machine() -> str:
    """Return a text about the processor, on which compiled code may depend: model, instructions, number of cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        found = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU p"))})
    except OSError:
        found = [platform.node(), platform.processor()]
    return "\n".join((sys.platform, platform.machine(), str(cores), *found))


def pieces(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield (path, os.stat_result) of each cache file (piece) in a folder and its subfolders, and of no other file."""
    for place, _, names in os.walk(folder):
        for name in names:
            if _NAME.fullmatch(name):
                with suppress(OSError):  # another process may have removed it
                    yield (path := Path(place) / name), path.stat()


def trim(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """If cache files together exceed `most_bytes`, remove the least recently used ones, down to `most_bytes` / 2."""
    found = sorted(pieces(folder), key=lambda piece: piece[1].st_mtime)
    size = sum(status.st_size for _, status in found)
    if size <= most_bytes:
        return
    for path, status in found:
        if size <= most_bytes // 2:
            return
        with suppress(OSError):
            path.unlink()
        size -= status.st_size


def remove(folder: Path) -> int:
    """Remove all cache files in a folder, and folders that become empty; return how many cache files are left."""
    for path, _ in pieces(folder):
        with suppress(OSError):
            path.unlink()
    for place, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):  # it is not empty: something else is in it
            os.rmdir(place)
    return sum(1 for _ in pieces(folder))


def _digest(key: str, data: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + data).digest()
