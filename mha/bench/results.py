"""Results files: the measurements, the machine, and the comparisons that follow for each contestant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mha.bench import machine
from mha.bench.run import Measured, is_too_large
from mha.schemas import schema
from mha_core.errors import SpecError, shown
from mha_core.files.outside import parse_json
from mha_core.files.writing import write_json

SCHEMA_VERSION = 3
"""Version of the file's form; a change that readers would notice raises it; see mha/schemas/bench.json."""

Results = dict[str, Any]
Row = dict[str, Any]
MeasurementDict = dict[str, Any]


class Key(NamedTuple):
    """The key of a table's line, which is equal for the rows of several frameworks."""

    device: str
    dtype: str
    setting: str
    direction: str


def to_results(measured: Iterable[Measured], *, threads: int, seconds: float, date: str) -> Results:
    """The reports of all workers in the form of a results file."""
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
    """The row with two numbers for each contestant: time / the best peer's time, and share of the peak operations."""
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


def best_peer(row: Row) -> MeasurementDict | None:
    """The peer with the shortest median; None if no peer could do it."""
    return min(_peers(row), key=lambda entry: entry["time"]["median"], default=None)


def leanest_peer(row: Row) -> MeasurementDict | None:
    """The peer with the least extra memory; None if none was measured."""
    known = [entry for entry in _peers(row) if entry["extra_memory"] is not None]
    return min(known, key=lambda entry: entry["extra_memory"], default=None)


def ours(row: Row) -> MeasurementDict:
    """The measurement of our layer with its defaults."""
    return next(entry for entry in row["contestants"] if entry["kind"] == "ours")


def median(entry: MeasurementDict) -> float | None:
    """The median time in seconds; None if the contestant could not run."""
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
    """A line for each contestant or worker that should have run and did not, with the reason."""
    return _reasons(results, lambda entry: entry["failed"]) + [
        each["problem"] for each in results["frameworks"].values() if each["problem"]
    ]


def without_room(results: Results) -> list[str]:
    """A line for each contestant that memory had no room for, with what it needs."""
    return _reasons(results, is_too_large)


def _reasons(results: Results, concerns: Callable[[MeasurementDict], bool]) -> list[str]:
    return [
        f"{row['framework']}, {row['setting']['name']}, {row['direction']}: {entry['name']} {entry['left_out']}"
        for row in results["rows"]
        for entry in row["contestants"]
        if concerns(entry)
    ]


def write(path: Path, results: Results) -> None:
    """Write the results to a file, atomically."""
    write_json(path, results)


def read(path: Path) -> Results:
    """Read a results file. SpecError if it is none, of another version, or does not have the schema's form."""
    try:
        found = parse_json(path.read_bytes(), what=str(path))
    except OSError as error:
        raise SpecError(f"{path} can't be read: {error.strerror}.") from error
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise SpecError(f"{path} holds no results of `mha bench`.")
    if found.get("schema") != SCHEMA_VERSION:
        raise SpecError(f"{path} has schema {shown(repr(found.get('schema')))}; this version reads {SCHEMA_VERSION}.")
    wrong = next(_validator().iter_errors(found), None)
    if wrong is not None:
        place = shown(wrong.json_path.removeprefix("$").removeprefix("."))
        raise SpecError(f"{path}: {place + ': ' if place else ''}{shown(wrong.message)}")
    return found


def _validator() -> Any:
    """What checks a results file against its schema; a string has no characters that can't be printed."""
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import extend
    except ModuleNotFoundError as error:
        needed = "a results file is read with jsonschema. Install it with: pip install 'mha-parity[bench]'"
        raise SpecError(needed) from error

    def is_printable(checker: Any, value: Any) -> bool:
        return isinstance(value, str) and all(line.isprintable() for line in value.splitlines())

    checker = Draft202012Validator.TYPE_CHECKER.redefine("string", is_printable)
    return extend(Draft202012Validator, type_checker=checker)(schema("bench"))


def _peers(row: Row) -> Sequence[MeasurementDict]:
    return [entry for entry in row["contestants"] if entry["kind"] == "peer" and entry["time"] is not None]
