"""Interpreters, sets and records for tests, made without any network."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

from mha.matrix.record import Record
from mha.matrix.request import ReleaseSet

INTERPRETER = """\
#!/bin/sh
# Stands for a base interpreter and for that of an environment: `-m venv FOLDER` puts a copy of it there, and
# `-m pip install` installs nothing; what else it is asked for, the interpreter of the tests does.
if [ "$2" = venv ]; then
    {venv}
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
elif [ "$2" = pip ]; then
    case "$*" in
        *nowhere*) echo "some lines" >&2; echo "ERROR: No matching distribution found for nowhere" >&2; exit 1 ;;
    esac
elif [ "$2" = mha.matrix.worker ] && {is_made_up}; then
    {worker}
else
    exec {python} "$@"
fi
"""


def interpreter(folder: Path, *, venv: str = ":", worker: str = "") -> str:
    """The path of a made-up interpreter; `venv` and `worker` are shell commands that it runs for these."""
    path = folder / "python"
    path.write_text(
        INTERPRETER.format(
            python=sys.executable, venv=venv, worker=worker or ":", is_made_up="true" if worker else "false"
        )
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def release_set(
    python: str, *requirements: str, name: str = "one", backends: tuple[str, ...] = ("torch",)
) -> ReleaseSet:
    return ReleaseSet(name, requirements or ("torch>=2.5",), backends, python)


def result(case: str, *wrong: str, status: str = "", dtype: str = "float64", message: str = "") -> dict:
    """The line of a record about SUBJECT; `wrong` are the arrays that differ."""
    mismatches = [
        {"stage": array, "message": f"{array} differs", "index": None, "actual": None, "expected": None}
        | {"error": None, "allowed": None, "wrong": 1, "total": 2, "call": ""}
        for array in wrong
    ]
    fields = {"case": case, "subject": "a layer", "dtype": dtype, "device": "cpu", "message": message}
    fields |= {"status": status or ("different" if wrong else "equal"), "mismatches": mismatches}
    fields |= {"seconds": 0.1, "judged": ["output"], "gradients_asked": False, "selector": ""}
    return {"spec": "mine.layers:Layer", "result": {**fields, "deviations": [], "gone": []}}


def record(version: str, *results: dict, probes: tuple[tuple[str, str], ...] = ()) -> Record:
    """A record of the framework `mine` in one version."""
    return Record(
        f"mine {version}",
        "mine",
        python="3.11.7",
        versions={"mine": version},
        packages={"mine": version},
        results=list(results),
        probes=[{"id": identifier, "outcome": outcome, "seen": ""} for identifier, outcome in probes],
    )
