"""The data of the HTML report: the JSON report as rows and cells, with every number as text.

This module chooses the colour step and sign of each cell; `templates/` has their appearance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mha_core import STAGES
from mha_core.config import PROJECTIONS
from mha_core.stages import GRADIENT, is_gradient

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
    """One subject in one dtype on one device: a column of the matrix, a row of the heat map."""

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
    """An error / allowed error as shown: its text, and its step on the colour scale (None if it is no number)."""

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
        """Return the description of a cell of the matrix for screen readers: case, column, status and worst ratio."""
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
    """Return the Ratio for an error / allowed error in JSON: a number, "nan", "inf" or "-inf"; None if there is none.

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
    """Return the results grouped by Column; columns of one subject are neighbours, in the order of first results."""
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
    """Return every stage, and the gradients among `names`: of the inputs first, then by projection."""
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
