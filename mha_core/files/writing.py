"""Write files that a user asks for: the path is checked before any work, and the file is written atomically.

Links in a path are followed, and a replaced file keeps its mode. A device or pipe is written into, never replaced. A
file with several hard links is replaced under the given name alone.
"""

import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from mha_core.errors import SpecError


def check_output(path: str | os.PathLike[str], *, what: str, force: str = "") -> Path:
    """Return the absolute path of a file, after checking that it can be written.

    Args:
        what: the beginning of messages, such as the option "--json".
        force: the option to name in the error that the file exists, such as "--force"; "" if that is no error.

    Raises:
        SpecError: `path` is a folder, its folder is missing or not writable, or the file exists and `force` is not "".

    >>> check_output("/nowhere/report.json", what="--json")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: --json needs an existing folder. There is no /nowhere.
    """
    try:
        target = _resolved(path)
        special = _is_special(target)
    except (OSError, ValueError) as error:  # a name with a null byte, links in a circle
        raise SpecError(f"{what} must name a file. Got {os.fspath(path)!r}: {error}.") from error
    if target.is_dir():
        raise SpecError(f"{what} must name a file. Got the folder {path}.")
    if not target.parent.is_dir():
        raise SpecError(f"{what} needs an existing folder. There is no {target.parent}.")
    there = special or target.exists()
    if there and not _is_writable(target):
        raise SpecError(f"{what} needs a file that can be written to. Got {path}.")
    if not special and not os.access(target.parent, os.W_OK | os.X_OK):
        raise SpecError(f"{what} needs a folder that can be written to. Got {target.parent}.")
    if not special and there and force:
        raise SpecError(f"{path} is already there; {force} replaces it")
    if not special and there and not _is_replaceable(target):
        raise SpecError(f"{what} can't replace somebody else's file in a folder such as /tmp. Got {path}.")
    return Path(os.path.abspath(path))


def check_different(**named: Path | None) -> None:
    """Raise SpecError if two of these paths are one file. A device such as /dev/null may be given twice.

    >>> check_different(json=Path("report"), html=Path("./report"))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: --json and --html must name different files. Both are report.
    """
    seen: dict[str, str] = {}
    for name, path in named.items():
        if path is None or _is_special(path):
            continue
        option = f"--{name.replace('_', '-')}"
        other = seen.setdefault(str(_resolved(path)), option)
        if other != option:
            raise SpecError(f"{other} and {option} must name different files. Both are {path}.")


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Return a context manager that gives a temporary path. After the block, the file written there replaces `path`.

    If the block raises, the temporary file is removed. It has the suffix of `path`. OSError: disk full, or no folder.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with written_whole(Path(folder) / "notes.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     os.listdir(folder)
    ['notes.txt']
    """
    target = _resolved(path)
    try:
        if _is_special(target):
            with tempfile.TemporaryDirectory() as folder:
                yield (temporary := Path(folder) / Path(path).name)
                with temporary.open("rb") as source, _opened(target) as sink:
                    shutil.copyfileobj(source, sink)
            return
        temporary = _created_beside(target, Path(path).name)
        try:
            _take_over(target, temporary)  # before anything is in it that others might not read
            yield temporary
            _take_over(target, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:  # which may not say of what file
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part."""
    with written_whole(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as JSON, atomically. NaN and infinity become strings, because JSON has neither."""
    text = json.dumps(jsonable(value), indent=1, allow_nan=False, ensure_ascii=False)
    write_whole(path, f"{text}\n".encode())


def jsonable(value: Any) -> Any:
    """Return the value with strings in place of NaN and infinity, and lists in place of tuples.

    >>> jsonable({"worst": float("inf"), "sizes": (2, 3)})
    {'worst': 'inf', 'sizes': [2, 3]}
    """
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value


def _resolved(path: str | os.PathLike[str]) -> Path:
    """The absolute path with links resolved; for a device or pipe without, because /dev/stdout may lead to no path."""
    return Path(os.path.abspath(path) if _is_special(Path(path)) else os.path.realpath(path, strict=False))


def _is_special(path: Path) -> bool:
    """Whether something is there that is neither a regular file nor a folder: a device, a pipe, a socket.

    What this process has open, such as /dev/stdout, is so whatever it leads to; so are the system's own files.
    """
    if _descriptor(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        return False
    return not stat.S_ISREG(mode) or os.path.abspath(path).startswith(("/proc/", "/sys/"))


def _descriptor(path: Path) -> int | None:
    """The number of the open file of this process that a path such as /dev/stdout or /dev/fd/63 names, by links too."""
    place = os.path.abspath(path)
    for _ in range(40):  # as many links as Linux follows
        if match := re.fullmatch(rf"/(?:dev|proc/(?:self|thread-self|{os.getpid()}))/fd/(\d{{1,9}})", place):
            return int(match[1])
        try:
            place = os.path.normpath(os.path.join(os.path.dirname(place), os.readlink(place)))
        except OSError:
            return None
    return None


def _opened(target: Path) -> IO[bytes]:
    """Open a device or pipe for writing; one that this process has open is continued after its printed text."""
    number = _descriptor(target)
    if number is None:
        return target.open("wb")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return open(os.dup(number), "wb")


def _is_writable(target: Path) -> bool:
    number = _descriptor(target)
    if number is None:
        return os.access(target, os.W_OK)
    try:
        return not os.write(number, b"")  # writes nothing, and fails where something could not be written
    except OSError:
        return False


def _is_replaceable(target: Path) -> bool:
    """Whether the rules of a sticky folder, such as /tmp, let this user replace a file in it."""
    folder, user = target.parent.stat(), os.geteuid() if hasattr(os, "geteuid") else 0
    return not folder.st_mode & stat.S_ISVTX or user in (0, folder.st_uid, target.stat().st_uid)


def _take_over(target: Path, temporary: Path) -> None:
    """Give a file the owner, where the system allows it, and the mode of the one that it will replace."""
    if not target.exists():
        return
    there, own = target.stat(), temporary.stat()
    if (there.st_uid, there.st_gid) != (own.st_uid, own.st_gid):
        with suppress(PermissionError):
            os.chown(temporary, there.st_uid, there.st_gid)
    temporary.chmod(stat.S_IMODE(there.st_mode))


def _created_beside(target: Path, name: str) -> Path:
    """A new empty file beside `target`, with the end of `name`, and the mode that the process gives to new files."""
    while True:
        # Long names leave no room for more; the end, which holds the suffix, stays.
        temporary = target.with_name(f".{secrets.token_hex(8)}.{name.encode()[-200:].decode(errors='ignore')}")
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            continue
        return temporary
