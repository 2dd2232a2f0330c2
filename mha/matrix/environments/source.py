"""A copy of this project's packages as they run now, for the interpreters of other environments to import.

A wheel, a checkout and an editable install are alike here: the files are copied from where Python found them, and the
metadata, with the entry points, from the installed distribution. Nothing is built, and no network is needed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from mha.matrix.environments.cache import UNFINISHED, Cache, key_of, remove
from mha_core.errors import SpecError
from mha_core.files.shadow import HOME, OURS

DISTRIBUTION = "mha-parity"

TABLE = "deviations.toml"
"""No measurement depends on a table: it is applied to finished ones."""


def fingerprint(copy: Path, backend: str) -> str:
    """A text that is equal as long as the code is that a measurement of one backend depends on; no table counts.

    Args:
        copy: the folder of a copy.
        backend: the backend's name. The code of one that another package declares is part of the environment.
    """
    tools = copy / "mha" / "matrix"
    needed = [copy / "mha_core", copy / "conformance", copy / "backends" / backend]
    found = [tools / "natives.py", tools / "worker.py", *(file for folder in needed for file in _files(folder))]
    return _state(copy, (path for path in found if path.name != TABLE))


def base_requirements() -> list[str]:
    """What this project needs without any framework, as its installed metadata says.

    Raises:
        SpecError: it is not installed.
    """
    requirements = map(Requirement, _distribution().requires or [])
    return sorted(str(one) for one in requirements if one.marker is None or "extra" not in str(one.marker))


def copied(cache: Cache) -> Path:
    """The folder of a copy of the running state; made if it is not there yet."""
    distribution = _distribution()
    texts = {
        "METADATA": distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or "",
        "entry_points.txt": distribution.read_text("entry_points.txt") or "",
    }
    state = _state(HOME, (file for package in OURS for file in _files(HOME / package)))
    target = cache.sources / key_of(state, texts)
    if target.is_dir():
        return target
    making = target.with_name(f"{target.name}{UNFINISHED}{os.getpid()}")
    try:
        for path in (file for package in OURS for file in _files(HOME / package)):
            copy = making / path.relative_to(HOME)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        folder = making / f"mha_parity-{distribution.version}.dist-info"
        folder.mkdir()
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        making.rename(target)
    except OSError as error:
        if not target.is_dir():  # another process was as quick
            raise SpecError(f"the copy of this project can't be written to {making}: {error.strerror}") from error
    finally:
        remove(making)
    return target


def _files(path: Path) -> Iterator[Path]:
    """The file, or the files in the folder, but for what Python compiled."""
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file


def _state(root: Path, paths: Iterable[Path]) -> str:
    """A text that is equal if the files have the same contents and the same paths below `root`."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise SpecError(f"{DISTRIBUTION} is not installed: pip install it, or its checkout, first") from error
