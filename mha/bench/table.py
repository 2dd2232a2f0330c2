"""Tables of a results file, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from mha.bench.results import Key, Results, Row, best_peer, by_key, leanest_peer, median, ours
from mha.bench.run import is_too_large
from mha.bench.settings import Setting

GOAL = 1.0
"""The ratio of our time to the best peer's that must not be exceeded."""

WORDS = {"forward": "forward", "both": "forward + backward"}

NOTHING = "-"


@dataclass(frozen=True)
class Cells:
    """A table as text: its title, column heads and lines."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table in GitHub's Markdown, without the title."""
        marks = [":---", *["---:"] * (len(self.columns) - 1)]
        lines = [self.columns, tuple(marks), *self.lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def rich(self) -> Table:
        """The table for the terminal, with ratios above the goal in red."""
        table = Table(title=self.title, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for line in self.lines:
            table.add_row(*(Text(cell, style=_style(cell)) for cell in line))
        return table


def summary(results: Results) -> list[Cells]:
    """Two tables, time compared with the best peer and extra memory, with a column for each framework."""
    return [
        _by_framework(results, "Time of ours against the best peer's, and in ms", _time),
        _by_framework(results, "Extra memory at the peak in MB: ours, the leanest peer", _memory),
    ]


def details(results: Results) -> list[Cells]:
    """A table for each framework, with every contestant of every row."""
    columns = ("contestant", "ms", "quartiles", "ratio", "of peak", "extra MB")
    tables = []
    for name in results["frameworks"]:
        lines: list[tuple[str, ...]] = []
        for key, rows in by_key(results).items():
            if name in rows:
                lines.append((_label(key, rows[name]), *[""] * (len(columns) - 1)))
                lines += _contestants(rows[name])
        tables.append(Cells(name, columns, tuple(lines)))
    return tables


def head(results: Results) -> str:
    """Machine, versions and date of the measurements, in one line."""
    versions = ", ".join(
        f"{package} {version}"
        for framework in results["frameworks"].values()
        for package, version in framework["versions"].items()
    )
    processor = results["machine"]["cpu"]
    return f"{processor}, {results['threads']} threads, {results['date'][:10]}: {versions}"


def _by_framework(results: Results, title: str, cell: Callable[[Row], str]) -> Cells:
    frameworks = list(results["frameworks"])
    lines = []
    for key, rows in by_key(results).items():
        label = _label(key, next(iter(rows.values())))
        lines.append((label, *(cell(rows[name]) if name in rows else NOTHING for name in frameworks)))
    return Cells(title, ("(B, L, E, H)", *frameworks), tuple(lines))


def _label(key: Key, row: Row) -> str:
    """The first cell of a line: setting and direction, and dtype and device if they are not float32 and cpu."""
    setting = Setting.from_dict(row["setting"])
    unusual = [word for word, usual in ((key.dtype, "float32"), (key.device, "cpu")) if word != usual]
    return ", ".join([setting.describe(), WORDS[key.direction], *unusual])


def _time(row: Row) -> str:
    entry, peer = ours(row), best_peer(row)
    seconds = median(entry)
    if seconds is None:
        return "failed" if entry["failed"] else "too large" if is_too_large(entry) else NOTHING
    ratio = "no peer" if peer is None else f"{entry['ratio']:.2f}"
    return f"{ratio} ({_number(seconds * 1e3)})" + (", not in turn" if peer is not None and peer["alone"] else "")


def _memory(row: Row) -> str:
    peer = leanest_peer(row)
    return f"{_megabytes(ours(row)['extra_memory'])}, {_megabytes(None if peer is None else peer['extra_memory'])}"


def _contestants(row: Row) -> list[tuple[str, ...]]:
    lines = []
    for entry in row["contestants"]:
        name = f"  {entry['name']}" + (" (alone)" if entry["alone"] else "")
        time = entry["time"]
        if entry["left_out"] is not None:
            name = f"{name}: {entry['left_out']}"
        if time is None:
            lines.append((name, *[""] * 5))
            continue
        quartiles = f"{_number(time['lower'] * 1e3)} to {_number(time['upper'] * 1e3)}, n={time['samples']}"
        ratio = NOTHING if entry["ratio"] is None else f"{entry['ratio']:.2f}"
        share, memory = f"{entry['share']:.0%}", _megabytes(entry["extra_memory"])
        lines.append((name, _number(time["median"] * 1e3), quartiles, ratio, share, memory))
    return lines


def _megabytes(size: int | None) -> str:
    return NOTHING if size is None else f"{size / 1e6:.0f}"


def _number(value: float) -> str:
    """A number with three significant digits.

    >>> _number(1234.6), _number(12.34), _number(0.1234)
    ('1235', '12.3', '0.123')
    """
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def _style(cell: str) -> str:
    """Red for a ratio beyond the goal, green for one within it: "0.82 (12.3)"."""
    ratio, _, rest = cell.partition(" ")
    if cell == "failed":
        return "bold red"
    if not rest.startswith("(") or not ratio.replace(".", "", 1).isdigit():
        return ""
    return "green" if float(ratio) <= GOAL else "red"
