"""A uv, sets and rows for tests, made without any network."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

from mha.matrix.record import Row
from mha.matrix.request import ReleaseSet

UV = """\
#!/bin/sh
# Stands for uv: `venv ... FOLDER` makes an interpreter there, and `pip install` installs nothing.
if [ "$1" = venv ]; then
    for folder; do :; done
    {venv}
    mkdir -p "$folder/bin" && cp {interpreter} "$folder/bin/python"
else
    case "$*" in
        *nowhere*)
            printf 'error: No solution found\\n  cause: there is no nowhere\\n\\nhint: read this\\n' >&2; exit 1 ;;
    esac
fi
"""

INTERPRETER = """\
#!/bin/sh
# Stands for the interpreter of an environment. `mha.matrix.inside` and `mha check` are shell commands here, if they
# are made up; what else it is asked for, the interpreter of the tests does.
report=""
for argument; do
    [ "$before" = --json ] && report="$argument"
    before="$argument"
done
case "$*" in
    *mha.matrix.inside*) {inside} ;;
    *" check "*) {check} ;;
    *) exec {python} "$@" ;;
esac
"""

REAL = f'exec {sys.executable} "$@"'


def uv(folder: Path, *, venv: str = ":", inside: str = REAL, check: str = REAL) -> Path:
    """The folder of a made-up uv; the others are shell commands that stand for what is run in an environment."""
    folder.mkdir(parents=True, exist_ok=True)
    interpreter = INTERPRETER.format(python=sys.executable, inside=inside, check=check)
    for name, text in (("interpreter", interpreter), ("uv", UV.format(venv=venv, interpreter=folder / "interpreter"))):
        path = folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def release_set(*requirements: str, name: str = "one", backends: tuple[str, ...] = ("torch",)) -> ReleaseSet:
    return ReleaseSet(name, requirements or ("torch>=2.5",), backends)


def result(case: str, *wrong: str, status: str = "", dtype: str = "float64", message: str = "") -> dict:
    """A result of `mha check --json` about SUBJECT; `wrong` are the arrays that differ."""
    mismatches = [
        {"stage": array, "message": f"{array} differs", "index": None, "actual": None, "expected": None}
        | {"error": None, "allowed": None, "wrong": 1, "total": 2, "call": ""}
        for array in wrong
    ]
    fields = {"case": case, "subject": "a layer", "dtype": dtype, "device": "cpu", "message": message}
    fields |= {"status": status or ("different" if wrong else "equal"), "mismatches": mismatches}
    fields |= {"seconds": 0.1, "judged": ["output"], "gradients_asked": False}
    return {**fields, "selector": "--subject mine.layers:Layer", "deviations": [], "gone": []}


def record(version: str, *results: dict, probes: tuple[tuple[str, str], ...] = (), note: str = "") -> Row:
    """A row of the framework `mine` in one version."""
    return Row(
        f"mine {version}",
        "mine",
        note,
        python="3.11.7",
        versions={"mine": version},
        packages={"mine": version},
        results=list(results),
        probes=[{"id": identifier, "outcome": outcome, "seen": ""} for identifier, outcome in probes],
    )
