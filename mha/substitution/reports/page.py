"""A WhereReport as one HTML page that needs nothing else: the findings, and the tree with ratios on a log axis."""

from math import ceil, floor, log10
from pathlib import Path

from conformance.reports.selfcontained import template
from mha.substitution.allowance import FACTOR
from mha.substitution.reports.report import ModuleResult, WhereReport
from mha.substitution.reports.text import around_of, finding, findings, last_line, shown_ratio, unjudged, unseen
from mha_core.files.writing import write_whole

WIDTH, EDGE = 240, 18
"""Of the axis and of its ends, in units of the drawing."""

LEAST = 1e-2
"""Smaller ratios are drawn there."""


def write_page(path: Path, report: WhereReport, title: str) -> None:
    """Write the report as an HTML page, atomically. `title`: the page's title, such as the name of the port's file."""
    write_whole(path, render(report, title).encode())


def render(report: WhereReport, title: str) -> str:
    """Return the page as text."""
    wrong = [one for one in report.results if one.name in report.wrong]
    axis = _Axis([one.ratio for one in report.results if one.ratio is not None])
    verdict = "different" if wrong else "equal" if report.equal else "open"
    return template("mha.substitution.reports", "where.html.j2").render(
        title=title,
        report=report,
        verdict=verdict,
        sentence=last_line(report),
        parts=next(iter(report.wrong), None),
        findings=[
            (one.name, finding(one, around_of(report, one)), report.diagnosed.get(one.name, "")) for one in wrong
        ],
        rest=list(unjudged(report)) if report.original == "model" else list(findings(report))[len(wrong) :],
        unseen=[line.strip() for line in unseen(report) if not line.endswith(":")],
        axis=axis,
        ratio=_ratio,
        allowed=FACTOR,
    )


def _ratio(one: ModuleResult) -> str:
    if one.ratio is None:
        return ""
    return shown_ratio(one.ratio)


class _Axis:
    """Places of ratios on a log axis that has them all, and the allowance."""

    width = WIDTH

    def __init__(self, ratios: list[float]) -> None:
        finite = [min(max(one, LEAST), 1e12) for one in ratios]
        self._low = floor(log10(min([0.1, *finite])))
        self._high = ceil(log10(max([100.0, *finite])))

    def at(self, ratio: float) -> float:
        """Return where a ratio stands; one beyond the axis at its end."""
        power = log10(min(max(ratio, 10.0**self._low), 10.0**self._high))
        return round(EDGE + (WIDTH - 2 * EDGE) * (power - self._low) / (self._high - self._low), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and powers of ten, at most six."""
        step = ceil((self._high - self._low) / 5)
        return [(self.at(10.0**power), f"{10.0**power:g}") for power in range(self._low, self._high + 1, step)]
