"""A results file: what was measured, where and how, and what follows from it for each contestant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mha.bench import machine
from mha.bench.form import check_form
from mha.bench.run import Measured
from mha_core.errors import SpecError, shown
from mha_core.files.outside import parse_json
from mha_core.files.writing import write_json

SCHEMA_VERSION = 1
"""Of the file; a change that readers would notice raises it. `schema.json` has its form."""

Results = dict[str, Any]
Row = dict[str, Any]
Entry = dict[str, Any]


class Key(NamedTuple):
    """What rows of several frameworks have in common: a line of a table."""

    device: str
    dtype: str
    setting: str
    direction: str


def to_results(measured: Iterable[Measured], *, threads: int, seconds: float, date: str) -> Results:
    """Everything that the workers gave, as a results file has it."""
    measured = list(measured)
    return {
        "schema": SCHEMA_VERSION,
        "date": date,
        "machine": machine.describe(),
        "threads": threads,
        "seconds": seconds,
        "frameworks": {
            each.framework: {
                "versions": each.ready["versions"],
                "threads": each.ready["threads"],
                "devices": list(each.ready["devices"]),
                "problem": each.problem,
            }
            for each in measured
            if each.ready is not None
        },
        "rows": [compared(row) for each in measured for row in each.rows],
    }


def compared(row: Row) -> Row:
    """The row, with what each time is against the best peer's and as a share of the peak of matrix products."""
    peer = best_peer(row)
    entries = []
    for entry in row["contestants"]:
        seconds = median(entry)
        entries.append(
            {
                **entry,
                "ratio": None if seconds is None or peer is None else seconds / peer["time"]["median"],
                "share": None if seconds is None else row["flops"] / seconds / row["peak"],
            }
        )
    return {**row, "best_peer": None if peer is None else peer["name"], "contestants": entries}


def best_peer(row: Row) -> Entry | None:
    """The peer with the shortest median; None if no peer could do it."""
    return min(_peers(row), key=lambda entry: entry["time"]["median"], default=None)


def leanest_peer(row: Row) -> Entry | None:
    """The peer with the least extra memory; None if none was measured."""
    known = [entry for entry in _peers(row) if entry["extra_memory"] is not None]
    return min(known, key=lambda entry: entry["extra_memory"], default=None)


def ours(row: Row) -> Entry:
    """Ours, as it is called by default."""
    return next(entry for entry in row["contestants"] if entry["kind"] == "ours")


def median(entry: Entry) -> float | None:
    """Seconds; None if it did not take part."""
    return None if entry["time"] is None else entry["time"]["median"]


def key_of(row: Row) -> Key:
    return Key(row["device"], row["dtype"], row["setting"]["name"], row["direction"])


def by_key(results: Results) -> dict[Key, dict[str, Row]]:
    """Line of a table -> framework -> row, in the order in which they were measured."""
    lines: dict[Key, dict[str, Row]] = {}
    for row in results["rows"]:
        lines.setdefault(key_of(row), {})[row["framework"]] = row
    return lines


def failures(results: Results) -> list[str]:
    """A line for each thing that should have run and did not: a contestant that failed or was refused, a worker."""
    lines = [
        f"{row['framework']}, {row['setting']['name']}, {row['direction']}: {entry['name']} {entry['left_out']}"
        for row in results["rows"]
        for entry in row["contestants"]
        if entry["failed"]
    ]
    return lines + [each["problem"] for each in results["frameworks"].values() if each["problem"]]


def write(path: Path, results: Results) -> None:
    """Into a file, whole or not at all."""
    write_json(path, results)


def read(path: Path) -> Results:
    """A results file. SpecError if it is none, one of another version, or not of the form that the schema says."""
    try:
        found = parse_json(path.read_bytes(), what=str(path))
    except OSError as error:
        raise SpecError(f"{path} can't be read: {error.strerror}.") from error
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise SpecError(f"{path} holds no results of `mha bench`.")
    if found.get("schema") != SCHEMA_VERSION:
        raise SpecError(f"{path} has schema {shown(repr(found.get('schema')))}; this version reads {SCHEMA_VERSION}.")
    check_form(found, str(path))
    return found


def _peers(row: Row) -> Sequence[Entry]:
    return [entry for entry in row["contestants"] if entry["kind"] == "peer" and entry["time"] is not None]
