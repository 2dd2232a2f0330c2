"""Known deviations: where somebody else's layer does not follow the definition, with reason, link and versions.

Whoever brings a layer keeps its table, `deviations.toml` in a package that an entry point of the group "mha.deviations"
names; a user can write one of the same form. `check` judges a result with the entries of its subject: a difference
that they list is known, one that they do not is an error, and so is a listed one that no longer happens.
"""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conformance.deviations.entry import Deviation
from conformance.deviations.table import check_ids, read
from conformance.judging.compare import Mismatch
from conformance.judging.result import Result
from mha_core import SpecError

ENTRY_POINT_GROUP = "mha.deviations"
"""Entry points of this group name packages with a `deviations.toml` in their folder."""


@dataclass(frozen=True)
class Deviations:
    """A table of known deviations.

    Attributes:
        entries: the deviations, in the order of the files.
        option: the option of `mha check` that reads the same table; "" for this project's own table.
    """

    entries: tuple[Deviation, ...] = ()
    option: str = ""

    def listed_for(self, subject: Any, case: str, dtype: str) -> list[Deviation]:
        """Return the deviations that are listed for this subject, case and dtype, and for the installed packages.

        An entry may name a subject by the MODULE:NAME given to `--subject`, or by the MODULE:NAME of its definition.
        """
        names = {getattr(subject, "spec", ""), getattr(subject, "origin", "")}
        return [
            entry
            for entry in self.entries
            if entry.subject in names and case in entry.cases and dtype in entry.dtypes and not entry.why_not_here()
        ]


def load(path: Path | None = None) -> Deviations:
    """Return this project's table of known deviations, extended by the TOML file `path` if given.

    Raises:
        SpecError: a file can't be read, or an entry is wrong; the message names file, entry and field.
    """
    entries = _own()
    if path is None:
        return Deviations(entries)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"{path} can't be read as a table of deviations: {why}") from error
    more = read(text, source=str(path))
    check_ids((*entries, *more), source=str(path))
    return Deviations((*entries, *more), option=f"--deviations {shlex.quote(str(path))}")


def tables() -> list[Path]:
    """Return the path of every installed `deviations.toml`, in the order of the entry points. No package is imported.

    Raises:
        SpecError: an entry point names a package that is not installed, or one without a table.
    """
    found = []
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP)):
        names = point.module.split(".")
        # Of inner packages `find_spec` imports the outer ones, and so a framework, but not in the first two.
        paths = (
            place
            for depth in (1, 2)
            if (spec := find_spec(".".join(names[:depth]))) is not None
            for folder in spec.submodule_search_locations or []
            if (place := Path(folder, *names[depth:], "deviations.toml")).is_file()
        )
        path = None
        with suppress(ModuleNotFoundError):  # the package around it is somebody else's, of the same name
            path = next(paths, None)
        if path is None:
            raise SpecError(
                f"the package {point.module!r}, an entry point of {ENTRY_POINT_GROUP!r}, has no deviations.toml"
            )
        found.append(path)
    return found


@cache
def _own() -> tuple[Deviation, ...]:
    entries: list[Deviation] = []
    for path in tables():
        entries += read(path.read_text(encoding="utf-8"), source=str(path))
        check_ids(entries, source=str(path))
    return tuple(entries)


def with_known(result: Result, listed: Sequence[Deviation]) -> Result:
    """Return a case's result, changed by the known deviations that are listed for the case.

    The status "different" becomes "deviates" if listed deviations cover every array that differs. A listed deviation
    that did not occur is one more mismatch, and makes the status "different". A status "failed" is kept.
    """
    if not listed or result.status == "failed":
        return result
    wrong = [mismatch.stage for mismatch in result.mismatches]
    happening = tuple(entry.id for entry in listed if any(entry.covers(name) for name in wrong))
    gone = [entry for entry in listed if entry.id not in happening and not entry.only_where]
    unknown = [name for name in wrong if not any(entry.covers(name) for entry in listed)]
    if gone:
        mismatches = (*result.mismatches, *(_gone(entry, result) for entry in gone))
        ids = tuple(entry.id for entry in gone)
        return replace(result, status="different", mismatches=mismatches, deviations=happening, gone=ids)
    if unknown:
        return replace(result, deviations=happening)
    if not happening:
        return result
    message = f"deviates as known: {', '.join(happening)}"
    return replace(result, status="deviates", deviations=happening, message=message)


def accounting(listed: Sequence[Deviation], wrong: Sequence[str]) -> tuple[str, ...]:
    """Return the ids of the deviations in `listed` that cover arrays in `wrong`; () if any array is not covered."""
    if not all(any(entry.covers(name) for entry in listed) for name in wrong):
        return ()
    return tuple(entry.id for entry in listed if any(entry.covers(name) for name in wrong))


def _gone(entry: Deviation, result: Result) -> Mismatch:
    names = [name for name in result.judged if entry.covers(name)]
    seen = result.message if result.status == "unsupported" else f"{', '.join(names) or 'none of its arrays'} equal"
    stage = next(iter(names or [name for name in entry.arrays if not name.endswith("*")]), "output")
    return Mismatch(stage, f"listed deviation {entry.id!r} no longer happens: {seen}. Correct the table.")
