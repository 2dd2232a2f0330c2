"""Hashes of code as it stands on disk: what was made by it is found again as long as it is the same."""

import hashlib
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def source_hash(*packages: ModuleType) -> str:
    """Return a hash of the contents of all Python files in these packages, which are folders.

    Raises OSError if one can't be read.

    >>> import mha_core
    >>> source_hash(mha_core) == source_hash(mha_core)
    True
    """
    digest = hashlib.sha256()
    for package in packages:
        (folder,) = map(Path, package.__path__)
        for path in sorted(folder.rglob("*.py")):
            name = f"{package.__name__}/{path.relative_to(folder).as_posix()}"
            digest.update(f"{name}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def installed_stamp(*packages: str) -> str:
    """Return a hash of the names, sizes and times of the code files of installed packages; it does not read them.

    Raises OSError if a package isn't in a folder of files.
    """
    found = []
    for package in packages:
        spec = find_spec(package)
        places = () if spec is None else spec.submodule_search_locations or ()
        if not places:
            raise FileNotFoundError(f"package {package!r} is not a folder")
        found += [f"{package} {stamp}" for place in places for stamp in sorted(_stamps(place))]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def _stamps(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from (f"{entry.name}/{stamp}" for stamp in _stamps(entry.path))
            elif entry.name.endswith((".py", ".so", ".pyd", ".dylib")):
                status = entry.stat()
                yield f"{entry.name} {status.st_size} {status.st_mtime_ns}"
