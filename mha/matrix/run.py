"""Runs a set: uv makes its environment, `mha check` and the probes run in it, and what they say is kept."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packaging.requirements import Requirement

from mha.matrix.programs import Failed, finish
from mha.matrix.record import Row
from mha.matrix.request import ReleaseSet, Request
from mha_core.errors import SpecError
from mha_core.files.kept import Kept, kept_folder, users_cache
from mha_core.files.shadow import HOME, OURS
from mha_core.files.source import source_hash

DISTRIBUTION = "mha-parity"

MOST_SECONDS = 3600.0
"""Time for one program: an installation may load gigabytes, and a layer may be slow in every case."""

MHA = ("-c", "from mha.cli.main import run; run()")
"""Arguments of an interpreter with which it is `mha`."""

FORM = 1
"""Version of what is kept of a set; a change of `mha.matrix.inside` or of `Row.measured` raises it."""

UNUSED = ("ratios", "recorded", "rerun")
"""Fields of a result that fill files, and say nothing here."""


@dataclass(frozen=True)
class Options:
    """How sets are run.

    Attributes:
        uv: the command that starts uv, of `find_uv`.
        copy: the folder of the copy of this project that `copy_project` made.
        time_limit: the seconds that a layer may take for one case.
        again: whether finished sets are measured again.
    """

    uv: tuple[str, ...]
    copy: Path
    time_limit: float = 60.0
    again: bool = False


def find_uv() -> tuple[str, ...]:
    """The command that starts uv. SpecError if it is not installed."""
    found = shutil.which("uv")
    if found is not None:
        return (found,)
    if find_spec("uv") is None:
        raise SpecError("uv, which makes the environments, is not installed: pip install 'mha-parity[matrix]'")
    return (sys.executable, "-m", "uv")


def copy_project(folder: Path) -> None:
    """Copy this project's packages as they run now, with their metadata: other interpreters import the copy.

    A wheel, a checkout and an editable install are alike here, and none of the packages beside them comes along.
    SpecError if the project is not installed.
    """
    for package in OURS:
        shutil.copytree(HOME / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    installed = _installed()
    about = folder / f"mha_parity-{installed.version}.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text(installed.read_text("METADATA") or installed.read_text("PKG-INFO") or "")
    about.joinpath("entry_points.txt").write_text(installed.read_text("entry_points.txt") or "")


def run_set(
    one: ReleaseSet, request: Request, options: Options, progress: Callable[[str], None] = lambda text: None
) -> Generator[Row, None, None]:
    """Measure a set, or read what was measured before: yields a row for each of its backends, to be closed.

    Args:
        one: the set.
        request: the cases and dtypes.
        options: how.
        progress: called with what is being done.
    """
    folder = kept_folder()
    kept = None if folder is None else Kept(folder / "matrix")
    missing = []
    for backend in one.backends:
        data = None if kept is None or options.again else kept.get(_key(one, request, options, backend))
        if data is None:
            missing.append(backend)
        else:
            yield Row(one.name, note=one.note, **json.loads(data))
    if not missing:
        return
    cache = users_cache()  # where uv's own is: what both hold is there once
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="mha-matrix-", dir=cache, ignore_cleanup_errors=True) as place:
        progress("making the environment")
        try:
            environment = _Environment.made(Path(place), one, options)
        except Failed as error:
            for backend in missing:
                yield Row(one.name, backend, one.note, f"can't be installed: {error}")
            return
        for backend in missing:
            row = Row(one.name, backend, one.note)
            _measure(row, request, environment, progress)
            if kept is not None and not row.problem:
                kept.put(_key(one, request, options, backend), json.dumps(row.measured()).encode())
            yield row


@dataclass(frozen=True)
class _Environment:
    """An environment: its folder, its interpreter, and how sets are run."""

    folder: Path
    python: str
    options: Options

    @classmethod
    def made(cls, folder: Path, one: ReleaseSet, options: Options) -> _Environment:
        """The environment of a set, in this folder. Raises Failed."""
        inner = folder / "environment"
        python = str(inner / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))
        for arguments in (
            ["venv", "--quiet", "--python", one.python or sys.executable, str(inner)],
            ["pip", "install", "--quiet", "--python", python, *_base_requirements(), *one.requirements],
        ):
            finish([*options.uv, *arguments], folder, MOST_SECONDS)
        return cls(folder, python, options)

    def run(self, *arguments: str) -> str:
        """What the interpreter prints with these arguments; it imports the copy of this project. Raises Failed."""
        variables = {"PYTHONPATH": str(self.options.copy), "PYTHONSAFEPATH": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        return finish([self.python, *arguments], self.folder, MOST_SECONDS, **variables)

    def inside(self, *arguments: str) -> tuple[list[dict[str, Any]], str]:
        """The whole lines of `mha.matrix.inside`, and how it failed, if it did."""
        failed = ""
        try:
            printed = self.run("-m", "mha.matrix.inside", *arguments)
        except Failed as error:
            printed, failed = error.printed, str(error)
        return [json.loads(line) for line in printed.splitlines(keepends=True) if line.endswith("\n")], failed

    def check(self, request: Request, *subject: str) -> dict[str, Any]:
        """The report of `mha check` on subjects, which these options name. Raises Failed if it wrote none."""
        path = self.folder / "report.json"
        path.unlink(missing_ok=True)
        arguments = ["check", *subject, "--no-diagnosis", "--time-limit", f"{self.options.time_limit:g}"]
        arguments += [text for case in request.cases for text in ("--case", case)]
        arguments += [text for dtype in request.dtypes for text in ("--dtype", dtype)]
        try:
            self.run(*MHA, *arguments, "--json", str(path))
        except Failed:  # with status 1 if anything differs, and with 2 if a case has no answer
            if not path.is_file():
                raise
        report: dict[str, Any] = json.loads(path.read_bytes())
        return report


def _measure(row: Row, request: Request, environment: _Environment, progress: Callable[[str], None]) -> None:
    """Fill a row: what is there and the probes, then the backend and the framework's own layers."""
    progress(f"looking for layers of {row.backend}, and its probes")
    lines, failed = environment.inside(row.backend, *request.dtypes)
    found, *probes = lines or [{"problem": failed}]
    if found["problem"]:
        row.problem = f"{row.backend} can't be used: {found['problem']}"
        return
    for name, value in found["measured"].items():
        setattr(row, name, value)
    asked = [("--backend", row.backend, "--device", "cpu"), *(("--subject", layer) for layer in found["layers"])]
    if not _check(row, request, environment, progress, asked):
        for subject in asked:  # what ended their program costs only itself
            _check(row, request, environment, progress, [subject])
    if failed:
        row.problems.append(f"probes: {failed}")
    else:
        row.probes = probes


def _check(
    row: Row, request: Request, environment: _Environment, progress: Callable[[str], None], asked: list[tuple[str, ...]]
) -> bool:
    """Add what `mha check` says of subjects to a row; False, and nothing is added, if it says nothing of several."""
    names = [subject[1] for subject in asked]
    progress(f"{names[0]} and its {len(names) - 1} layers" if len(names) > 1 else names[0])
    try:
        report = environment.check(request, *chain(*asked))
    except Failed as error:
        if len(asked) > 1:
            return False
        row.problems.append(f"{names[0]}: {error}")
        return True
    row.problems += report["could_not_run"]
    for result in report["results"]:
        row.results.append({name: value for name, value in result.items() if name not in UNUSED})
    return True


def _key(one: ReleaseSet, request: Request, options: Options, backend: str) -> str:
    """The name of what is kept: it changes with the environment, with what is asked, and with our own code."""
    code = source_hash("mha_core", "conformance", f"backends/{backend}")
    environment = [one.requirements, _base_requirements(), one.python or sys.executable, sys.version, sys.platform]
    return json.dumps([FORM, environment, backend, request.cases, request.dtypes, options.time_limit, code])


def _base_requirements() -> list[str]:
    """What this project needs without any framework, as its installed metadata says."""
    requirements = map(Requirement, _installed().requires or [])
    return sorted(str(one) for one in requirements if one.marker is None or "extra" not in str(one.marker))


def _installed() -> metadata.Distribution:
    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise SpecError(f"{DISTRIBUTION} is not installed: pip install it, or its checkout, first") from error
