"""Interpreters: which Python runs which backend or subject, and where that is said."""

import hashlib
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mha_core.errors import SpecError, shown
from mha_core.files.kept import Kept, kept_folder

NUMPY = "numpy"
"""The home of our own work: the reference, its bounds, every comparison, NumPy formulations, planted bugs."""

OUR_SECONDS = 600.0
"""Far more than one item of our own work takes, besides the answers of others: nobody waits for ever."""

IMPORT_SECONDS = 60.0
"""Seconds for an interpreter to start, and then for a module to be imported and its factories to return."""

FILES = {"mha.toml": ("python",), "pyproject.toml": ("tool", "mha", "python")}
"""File in the current folder -> its table that says which interpreter runs what. The first file with one counts."""


LEARNERS = "learn-"
"""The beginning of the names of homes in which learners' files run."""


@dataclass(frozen=True)
class Home:
    """A purpose of a worker process, such as one framework. A process does work for one Home only.

    Args:
        name: a backend's name, a subject's MODULE:NAME, or `NUMPY` for this project's own code.
        time_limit: seconds that one answer may take; a process that gives no sign of life for so long is ended.
    """

    name: str
    time_limit: float = 60.0

    @property
    def is_ours(self) -> bool:
        """Return whether the process is trusted: it runs only this project's code, no framework or user's module."""
        return self.name == NUMPY

    @property
    def keeps_processes(self) -> bool:
        """Return whether code in the process may leave child processes running: False for exercises of `mha learn`."""
        return not self.name.startswith(LEARNERS)


OURS = Home(NUMPY, OUR_SECONDS)


@dataclass(frozen=True)
class Settings:
    """The settings with which a worker process is started.

    Args:
        interpreters: backend, subject, or module of a subject -> path of the Python that runs it. Default for each: the
            Python that starts the process.
        here: whether frameworks and subjects that are not in `interpreters` run in the starting process.
        import_limit: seconds for an interpreter to start, and then for a backend or a subject to be imported and made.
    """

    interpreters: Mapping[str, str] = field(default_factory=dict)
    here: bool = False
    import_limit: float = IMPORT_SECONDS

    def interpreter(self, home: Home) -> str | None:
        """Return the path of the Python that is set for a Home. None means the Python that runs this process."""
        return self.interpreters.get(home.name, self.interpreters.get(home.name.partition(":")[0]))


def interpreters(
    options: Iterable[str],
    known: Iterable[str],
    ask: Callable[[str], bool] = lambda question: False,
    say: Callable[[str], object] = lambda line: sys.stderr.write(f"{line}\n"),
    switch: str = "--python",
) -> dict[str, str]:
    """Return backend or subject -> path of its Python. Paths that `options` do not give are read from a file.

    The file is mha.toml or pyproject.toml in the current folder. It may be somebody else's. So the user is shown its
    content, and asked once for each path and content.

    Args:
        options: values of `--python`, each NAME=PATH.
        known: the allowed names: backends, and the subjects of this run.
        ask: asks the user a yes-or-no question. Default: the answer is no.
        say: prints a line. Default: to stderr.
        switch: the option's name, for messages.

    Raises:
        SpecError: an option or the file is malformed, a name is not known, a program does not exist, the file belongs
            to another user, or this user has not agreed to it. No program is started here.

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
            raise SpecError(f"{switch} {option!r} must read NAME=PATH, such as {option or 'mxnet'}=.venv/bin/python")
        if name not in names:
            raise SpecError(f"{switch} {option}: {name!r} is not known here (known: {', '.join(known)})")
        if name in found:
            raise SpecError(f"{switch} {option}: {name!r} has an interpreter already: {found[name]}")
        found[name] = program(path, f"{switch} {option}")
    wanted = [name for name in names if name not in found]
    file, programs, content = _of_file(Path.cwd(), wanted, switch)
    if programs:
        said = ", ".join(f"{name} with {program}" for name, program in programs.items())
        if not _is_agreed(file, programs, content, ask):
            raise SpecError(
                f"{file} says which programs to run ({said}), and nobody has agreed to that here. A terminal is asked "
                f"once; or say it by options: {' '.join(f'{switch} {name}={it}' for name, it in programs.items())}"
            )
        say(f"{file}: runs {said}")
    return {**found, **programs}


def _is_agreed(path: Path, programs: Mapping[str, str], content: bytes, ask: Callable[[str], bool]) -> bool:
    """Whether the user agrees to what a file says, now or once before."""
    folder = kept_folder()
    kept = None if folder is None else Kept(folder / "agreed")
    key = f"{path.absolute()}\n{hashlib.sha256(content).hexdigest()}"
    if kept is not None and kept.get(key) is not None:
        return True
    lines = "\n".join(f"  {name}: {program}" for name, program in programs.items())
    agreed = ask(f"{path} says which programs run what:\n{lines}\nRun them?")
    if agreed and kept is not None:
        kept.put(key, b"agreed")
    return agreed


def _of_file(folder: Path, names: Collection[str], switch: str) -> tuple[Path, dict[str, str], bytes]:
    """The file of a folder that has such a table, what it says of these names, and its content."""
    for file, keys in FILES.items():
        path = folder / file
        if not path.is_file():
            continue
        content = b""
        try:
            content = path.read_bytes()
            table: Any = tomllib.loads(content.decode())
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
        programs = {
            name: program(str(folder / value), f"{where} {name}") for name, value in table.items() if name in names
        }
        if programs and hasattr(os, "geteuid") and path.stat().st_uid != os.geteuid():
            raise SpecError(f"{where} is another user's, so the programs that it names are not run; use {switch}")
        return path, programs, content
    return folder, {}, b""


def program(path: str, where: str) -> str:
    """Return the absolute path of an interpreter. Links are not resolved: a virtual environment is known by its link.

    Raises:
        SpecError: no program has this path; the message begins with `where`.
    """
    expanded = os.path.expanduser(path)
    found = shutil.which(expanded)
    if found is None:
        raise SpecError(f"{where}: there is no program {shown(path)} that can be run")
    return os.path.abspath(found)


def same_program(path: str | None) -> bool:
    """Return whether an interpreter is the one that runs this."""
    return path is None or os.path.abspath(path) == os.path.abspath(sys.executable)
