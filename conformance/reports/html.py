"""The report as one HTML page that needs nothing else: no network, no other file.

The page is made from the dict of `report.to_json`, or from the content of a saved JSON report, so that
old runs can be shown too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.reports.selfcontained import template
from conformance.reports.text import SCHEMA_VERSION
from conformance.reports.text import verdict as report_verdict
from mha_core import STAGES, SpecError
from mha_core.config import PROJECTIONS
from mha_core.files.writing import write_whole
from mha_core.stages import GRADIENT, is_gradient


def write_html(path: Path, report: Mapping[str, Any]) -> None:
    """Write a report as an HTML page, atomically.

    Args:
        path: the file; an old one is replaced.
        report: the dict of `report.to_json`, or the content of a saved JSON report.

    Raises:
        SpecError: `report` is no report, or has another schema. Nothing is written.
    """
    write_whole(path, render(report).encode())


def render(report: Mapping[str, Any]) -> str:
    """Return the HTML page of a report as text.

    >>> from conformance.reports.text import to_json
    >>> page = render(to_json([], {}))
    >>> page.startswith("<!doctype html>"), "Nothing could be judged." in page
    (True, True)
    >>> render({"schema": 7})
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: a report of schema 7 can't be shown; it must be 1
    """
    if report.get("schema") != SCHEMA_VERSION:
        raise SpecError(f"a report of schema {report.get('schema')!r} can't be shown; it must be {SCHEMA_VERSION}")
    from conformance.cases.table import select_asked

    results = [result_view(position, entry) for position, entry in enumerate(report["results"])]
    groups = groups_of(results)
    steps = ["0 (exact)", *(f"≤ {end:g}" for end in HEAT_STEPS[1:]), f"> {HEAT_STEPS[-1]:g}"]
    return template("conformance.reports", "report.html.j2", "report.js").render(
        environment=report["environment"],
        verdict=_verdict(results),
        diagnoses=report.get("diagnoses", ()),
        float64=", ".join(dict.fromkeys(str(one.column) for one in results if one.entry.get("in_float64"))),
        looked_at=(report.get("looked_at") or {}).get("line", ""),
        counts=_counts(results),
        results=results,
        groups=groups,
        quantities=quantities_of(name for entry in report["results"] for name in entry["ratios"]),
        subjects=Counter(group.column.subject for group in groups),
        matrix=_matrix(results, groups),
        catches={asked.id: asked.catches for asked in select_asked(())},
        recordings=_recordings(results),
        failures=[result for result in results if result.status in ("different", "failed")],
        unsupported=[result for result in results if result.status == "unsupported"],
        deviating=[result for result in results if result.status == "deviates"],
        listed={entry["id"]: entry for entry in report.get("deviations", ())},
        legend=[Ratio(text, step) for step, text in enumerate(steps)],
        stages=STAGES,
        exact=exact,
        ratio=ratio,
        rounded=rounded,
    )


def _verdict(results: Sequence[ResultView]) -> tuple[str, str]:
    """The worst status, and the sentence of the verdict, as on the terminal."""
    as_results: Sequence[Any] = results  # `report.verdict` looks at nothing but `status`
    statuses = [result.status for result in results]
    worst = next((status for status in ("different", "failed", "deviates", "equal") if status in statuses), "failed")
    return worst, report_verdict(as_results)


def _matrix(results: Sequence[ResultView], groups: Sequence[Group]) -> dict[str, list[list[ResultView]]]:
    """Case -> for each group the list of its results: empty if it was not run, several if it ran more than once."""
    columns = [group.column for group in groups]
    found: dict[str, dict[Column, list[ResultView]]] = {}
    for result in results:
        found.setdefault(result.case, {column: [] for column in columns})[result.column].append(result)
    return {case: list(row.values()) for case, row in found.items()}


def _recordings(results: Sequence[ResultView]) -> list[tuple[str, list[str]]]:
    """Each case with recordings, and the stages that were recorded."""
    stages: dict[str, set[str]] = {}
    for result in results:
        if result.entry["recorded"]:
            stages.setdefault(result.case, set()).update(result.entry["recorded"])
    return [(case, [stage for stage in STAGES if stage in found]) for case, found in stages.items()]


def _counts(results: Sequence[ResultView]) -> list[tuple[str, str, str, int]]:
    """(status, sign, words, number) of each status."""
    found = Counter(result.status for result in results)
    return [(status, sign, words, found[status]) for status, (sign, words) in STATUSES.items()]


# The data of the HTML report: the JSON report as rows and cells, with every number as text.
#
# This module chooses the colour step and sign of each cell; `templates/` has their appearance.


STATUSES = {
    "equal": ("✓", "equal"),
    "deviates": ("(≠)", "deviates as known"),
    "different": ("≠", "different"),
    "failed": ("✗", "did not run"),
    "unsupported": ("-", "cannot be expressed"),
}
"""Status -> its sign and its words."""

HEAT_STEPS = (0.0, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0, 1000.0)
"""Upper ends of the colour steps of error / allowed error. The first is exactly 0; ratios above 1 are wrong."""

GRADIENT_GROUPS = ("inputs", *PROJECTIONS, "score")
GRADIENT_LABELS = ("queries", "keys", "values", "weight", "bias", "query.weight", "key.weight", "vector")
"""The order of gradients in a heat map: by group, then by label. Others come after them, by name."""


@dataclass(frozen=True)
class Column:
    """One subject in one dtype on one device: a column in the table of results, a row in the heat map."""

    subject: str
    dtype: str
    device: str

    @property
    def place(self) -> str:
        """Return the dtype, and the device unless it is the CPU."""
        return self.dtype if self.device == "cpu" else f"{self.dtype} {self.device}"

    def __str__(self) -> str:
        return f"{self.subject} {self.place}"


@dataclass(frozen=True)
class Ratio:
    """A ratio (error / allowed error) to show: its text, and its index on the colour scale (None: no value)."""

    text: str
    step: int | None = None

    @property
    def wrong(self) -> bool:
        return self.step is not None and self.step > HEAT_STEPS.index(1.0)


@dataclass(frozen=True)
class Quantity:
    """One stage or gradient: a column of the heat maps."""

    name: str
    group: str
    label: str


@dataclass(frozen=True)
class ResultView:
    """One result of the JSON report, ready to show.

    Attributes:
        id: its position in the report, as text.
        entry: the result's object in the JSON report.
    """

    id: str
    entry: Mapping[str, Any]
    case: str
    column: Column
    status: str
    worst: Ratio
    ratios: Mapping[str, Ratio]

    @property
    def sign(self) -> str:
        return STATUSES[self.status][0]

    @property
    def words(self) -> str:
        return STATUSES[self.status][1]

    @property
    def target(self) -> str:
        """Return the id of the element with its details."""
        places = {"different": "failure", "failed": "failure", "unsupported": "unsupported", "deviates": "deviation"}
        return f"{places.get(self.status, 'result')}-{self.id}"

    @property
    def label(self) -> str:
        """Return a result's text for screen readers, in the table of results: case, column, status and worst ratio."""
        worst = "" if self.worst.step is None else f", worst error / allowed error {self.worst.text}"
        return f"{self.case}, {self.column}: {self.words}{worst}"

    @property
    def as_text(self) -> str:
        """Return the messages of the result, as on the terminal."""
        messages = [mismatch["message"] for mismatch in self.entry["mismatches"]]
        return "\n".join(messages or [self.entry["message"]])


@dataclass
class Group:
    """Every result of one Column."""

    column: Column
    results: list[ResultView] = field(default_factory=list)
    quantities: list[Quantity] = field(default_factory=list)
    worst: dict[str, Ratio] = field(default_factory=dict)

    @property
    def judged(self) -> int:
        return sum(result.status != "unsupported" for result in self.results)

    @property
    def equal(self) -> int:
        return sum(result.status == "equal" for result in self.results)

    @property
    def known(self) -> int:
        return sum(result.status == "deviates" for result in self.results)

    @property
    def passed(self) -> bool:
        """Return whether each result is equal or deviates as known."""
        return self.equal + self.known == self.judged


def ratio(value: float | str | None) -> Ratio:
    """Return the Ratio for an error / allowed error in JSON: a number, "nan", "inf", "-inf" or None (shown as "-").

    >>> ratio(0.0341), ratio("nan").wrong, ratio(0.9999).text, ratio(1.0001).text
    (Ratio(text='0.034', step=4), True, '0.9999', '1.0001')
    """
    if value is None:
        return Ratio("-")
    number = float(value)
    step = next((step for step, end in enumerate(HEAT_STEPS) if number <= end), len(HEAT_STEPS))
    # A number next to 1 must not be rounded to 1: the reader could not tell on which side it is.
    digits = next(digits for digits in range(2, 18) if number == 1.0 or float(_short(number, digits)) != 1.0)
    return Ratio(_short(number, digits), step)


def _short(number: float, digits: int) -> str:
    """A number with that many digits in the fewest characters: 0.10, 1.0e-5 (not 1.0e-05), 1234 (not 1.2e3)."""
    if number == 0.0:
        return "0"
    if 10 ** (digits - 1) <= number < 10_000 and number >= 10.0:
        return f"{number:.0f}"
    style = f".{digits - 1}e" if abs(number) < 0.001 else f"#.{digits}g"
    mantissa, e, exponent = f"{number:{style}}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def exact(value: float | str | None) -> str:
    """Return the number with every digit of a float64."""
    return "-" if value is None else repr(float(value))


def rounded(value: float | str | None) -> str:
    """Return the number with three digits."""
    return "-" if value is None else _short(float(value), 3)


def _worst(values: Iterable[float | str]) -> Ratio:
    """The largest ratio; NaN is larger than any number."""
    return ratio(max(values, key=lambda value: (math.isnan(float(value)), float(value)), default=None))


def result_view(position: int, entry: Mapping[str, Any]) -> ResultView:
    """Return one result of the JSON report, ready to show; `position` is its index there."""
    return ResultView(
        id=str(position),
        entry=entry,
        case=entry["case"],
        column=Column(entry["subject"], entry["dtype"], entry["device"]),
        status=entry["status"],
        worst=_worst(entry["ratios"].values()),
        ratios={name: ratio(value) for name, value in entry["ratios"].items()},
    )


def groups_of(results: Sequence[ResultView]) -> list[Group]:
    """Return a Group of results per Column (subject, dtype and device), in order of each subject's first result."""
    order = list(dict.fromkeys(result.column.subject for result in results))
    columns = dict.fromkeys(result.column for result in results)
    groups = {column: Group(column) for column in sorted(columns, key=lambda column: order.index(column.subject))}
    values: dict[Column, dict[str, list[float | str]]] = {column: {} for column in columns}
    for result in results:
        groups[result.column].results.append(result)
        mismatches = result.entry["mismatches"] if result.status == "deviates" else ()
        known = {mismatch["stage"] for mismatch in mismatches}
        for name, value in result.entry["ratios"].items():
            if name not in known:  # what deviates as known is not among the worst
                values[result.column].setdefault(name, []).append(value)
    for column, group in groups.items():
        group.quantities = quantities_of(values[column])
        group.worst = {name: _worst(found) for name, found in values[column].items()}
    return list(groups.values())


def quantities_of(names: Iterable[str]) -> list[Quantity]:
    """Return the columns of a heat map: every stage, then the gradients among `names`, those of the inputs first."""
    gradients = {name.removeprefix(GRADIENT) for name in names if is_gradient(name)}
    found = []
    for name in gradients:
        group, dot, label = name.partition(".")
        found.append(Quantity(f"{GRADIENT}{name}", group if dot else "inputs", label if dot else name))
    return [Quantity(stage, "stages", stage) for stage in STAGES] + sorted(found, key=_gradient_order)


def _gradient_order(quantity: Quantity) -> tuple[int, str, int, str]:
    def rank(name: str, order: tuple[str, ...]) -> int:
        return order.index(name) if name in order else len(order)

    group, label = quantity.group, quantity.label
    return rank(group, GRADIENT_GROUPS), group, rank(label, GRADIENT_LABELS), label
