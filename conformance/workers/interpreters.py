"""Interpreters: which Python runs which backend or subject, and where that is said."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mha_core.errors import SpecError, shown

NUMPY = "numpy"
"""The home of what needs no framework: NumPy formulations, recorded answers, planted bugs."""

FILES = {"mha.toml": ("python",), "pyproject.toml": ("tool", "mha", "python")}
"""File in the current folder -> its table that says which interpreter runs what. The first file with one counts."""


@dataclass(frozen=True)
class Home:
    """A kind of worker process: everything of one home may share a process, and nothing else is imported there.

    Args:
        name: a backend, `NUMPY`, or a subject, package.module:factory.
        time_limit: seconds that one answer may take; a process that gives no sign of life for so long is ended.
    """

    name: str
    time_limit: float = 60.0


@dataclass(frozen=True)
class Settings:
    """What a worker process is started with.

    Args:
        interpreters: backend, subject, or module of a subject -> the interpreter that runs it. Any other runs on
            the one that starts the process.
    """

    interpreters: Mapping[str, str] = field(default_factory=dict)

    def interpreter(self, home: Home) -> str | None:
        """The interpreter that was asked for; None for this one."""
        return self.interpreters.get(home.name, self.interpreters.get(home.name.partition(":")[0]))


def interpreters(options: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Backend or subject -> interpreter, of options NAME=PATH and the file of the current folder; options come first.

    Args:
        options: as `--python` takes them.
        known: the names that an option may have: backends, and the subjects that were asked for.

    Raises:
        SpecError: an option or the file does not read so, a name is not known, or there is no such program. It
            is not started here.

    >>> interpreters(["torch"], ["torch"])
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: --python 'torch' must read NAME=PATH, such as torch=.venv/bin/python
    """
    known = list(known)
    names = {*known, *(spec.partition(":")[0] for spec in known)}
    found: dict[str, str] = {}
    for option in options:
        name, equals, path = option.rpartition("=")
        if not equals or not name or not path:
            raise SpecError(f"--python {option!r} must read NAME=PATH, such as {option or 'mxnet'}=.venv/bin/python")
        if name not in names:
            raise SpecError(f"--python {option}: {name!r} is not known here (known: {', '.join(known)})")
        if name in found:
            raise SpecError(f"--python {option}: {name!r} has an interpreter already: {found[name]}")
        found[name] = _program(path, f"--python {option}")
    for name, path in _of_file(Path.cwd()).items():
        found.setdefault(name, path)
    return found


def _of_file(folder: Path) -> dict[str, str]:
    """What the file of a folder says; empty if there is none, or none with such a table."""
    for file, keys in FILES.items():
        path = folder / file
        if not path.is_file():
            continue
        try:
            table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            if file == "pyproject.toml":  # whatever is wrong with it, it is not about us
                continue
            raise SpecError(f"{path} can't be read as TOML: {error}") from error
        for key in keys:
            table = table.get(key) if isinstance(table, dict) else None
        if table is None:
            continue
        where = f"{path} [{'.'.join(keys)}]"
        if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
            raise SpecError(f'{where} must hold lines NAME = "PATH". Got {shown(table)}.')
        return {name: _program(str(folder / value), f"{where} {name}") for name, value in table.items()}
    return {}


def _program(path: str, where: str) -> str:
    """The absolute path of an interpreter; a link stays one, because a virtual environment is known by its links."""
    expanded = os.path.expanduser(path)
    found = shutil.which(expanded)
    if found is None:
        raise SpecError(f"{where}: there is no program {shown(path)} that can be run")
    return os.path.abspath(found)


def same_program(path: str | None) -> bool:
    """Whether an interpreter is the one that runs this."""
    return path is None or os.path.abspath(path) == os.path.abspath(sys.executable)
