"""Makes an environment for a set of requirements: with uv where it is installed, else with venv and pip."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mha.matrix.environments.cache import UNFINISHED, Cache, key_of, remove
from mha.matrix.environments.processes import ProgramFailed, finish
from mha.matrix.request import PYTHON, ReleaseSet
from mha_core.errors import SpecError

INSTALLERS = ("uv", "pip")

INSTALL_LIMIT = 3600.0
"""Seconds that an installation may take: a build of PyTorch for CUDA is several gigabytes."""

OTHERS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP")
"""Environment variables that would lead an interpreter to another's packages."""

UNKEPT = "PYTHONDONTWRITEBYTECODE"
"""The environment variable with which Python compiles what it imports anew in every process."""


class NoEnvironment(Exception):
    """An environment could not be made; the message is one line."""


def installer(wanted: str = "") -> str:
    """The installer: uv where it is installed, else pip. SpecError if the wanted one is not there."""
    if wanted == "uv" and shutil.which("uv") is None:
        raise SpecError("uv is not installed: pip install uv, or --installer pip")
    return wanted or ("uv" if shutil.which("uv") else "pip")


def environment_key(one: ReleaseSet, base: Sequence[str], tool: str) -> str:
    """The name of the environment of a set: that of the same request is the same."""
    return key_of(one.requirements, list(base), one.python or sys.executable, sys.version.split()[0], tool)


def variables(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables of a program that runs in an environment: ours, without those that lead elsewhere.

    What Python compiles is kept there, whatever ours say: uv compiles nothing, and every process would do it anew.
    """
    kept = {name: value for name, value in os.environ.items() if name not in (*OTHERS, UNKEPT)}
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", **(more or {})}


def interpreter(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def environment(one: ReleaseSet, base: Sequence[str], tool: str, cache: Cache) -> Path:
    """The folder of the environment of a set; made if it is not there.

    It is made in another folder and then moved, so that a folder of this name is always whole. What an installer keeps
    for a while is in that other folder too, and goes with it, however the installer ends.

    Raises:
        NoEnvironment: there is no such interpreter, or the requirements can't be installed.
    """
    target = cache.environments / environment_key(one, base, tool)
    if interpreter(target).exists():
        return target
    making = target.with_name(f"{target.name}{UNFINISHED}{os.getpid()}")
    try:
        (making / "temporary").mkdir(parents=True)
        _make(making, one, [*base, *one.requirements], tool)
        (making / "environment").rename(target)
    except ProgramFailed as error:
        raise NoEnvironment(f"can't be installed: {error}") from error
    except OSError as error:
        if not interpreter(target).exists():
            raise NoEnvironment(f"can't be installed: {error.strerror}") from error
    finally:
        remove(making)
    return target


def _make(making: Path, one: ReleaseSet, requirements: Sequence[str], tool: str) -> None:
    folder = making / "environment"
    python = str(interpreter(folder))
    ours = variables({"TMPDIR": str(making / "temporary")})
    if tool == "uv":
        commands = [
            ["uv", "venv", "--quiet", "--python", one.python or sys.executable, str(folder)],
            ["uv", "pip", "install", "--quiet", "--python", python, *requirements],
        ]
    else:
        commands = [
            [_base_interpreter(one.python), "-m", "venv", str(folder)],
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements],
        ]
    for command in commands:
        finish(command, ours, INSTALL_LIMIT, making)
    version = finish([python, "-c", "import sys; print(*sys.version_info[:2])"], ours, 60.0, making)
    if tuple(map(int, version.split())) < (3, 11):
        raise ProgramFailed(f"this project needs Python 3.11 or newer. Got {'.'.join(version.split())}.")


def _base_interpreter(python: str) -> str:
    """The interpreter that a set asks for. NoEnvironment if it is not there."""
    if not python:
        return sys.executable
    if not PYTHON.fullmatch(python):
        if not os.access(python, os.X_OK):
            raise NoEnvironment(f"there is no interpreter {python}")
        return python
    if f"{'.'.join(map(str, sys.version_info[:3]))}.".startswith(f"{python}."):
        return sys.executable
    found = shutil.which(f"python{python}")
    if found is None:
        raise NoEnvironment(f"there is no interpreter python{python} on the path; uv would fetch one, or give its path")
    return found
