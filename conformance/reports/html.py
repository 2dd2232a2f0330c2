"""The report as one HTML page that needs nothing else: no network, no other file.

The page is made from the dict of `report.to_json`, or from the content of a saved JSON report, so that
old runs can be shown too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.reports.html_view import (
    HEAT_STEPS,
    STATUSES,
    Column,
    Group,
    Ratio,
    ResultView,
    exact,
    groups_of,
    quantities_of,
    ratio,
    result_view,
    rounded,
)
from conformance.reports.selfcontained import template
from conformance.reports.text import SCHEMA_VERSION
from conformance.reports.text import verdict as report_verdict
from mha_core import STAGES, SpecError
from mha_core.files.writing import write_whole


def write_html(path: Path, report: Mapping[str, Any]) -> None:
    """Write the page, atomically.

    Args:
        path: the file; an old one is replaced.
        report: the dict of `report.to_json`, or the content of a saved JSON report.

    Raises:
        SpecError: `report` is no report, or one of another schema. Nothing is written.
    """
    write_whole(path, render(report).encode())


def render(report: Mapping[str, Any]) -> str:
    """Return the page as text.

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
    results = [result_view(position, entry) for position, entry in enumerate(report["results"])]
    groups = groups_of(results)
    return template("conformance.reports", "report.html.j2", "report.js").render(
        environment=report["environment"],
        verdict=_verdict(results),
        diagnoses=report.get("diagnoses", ()),
        float64=_in_float64(results),
        looked_at=(report.get("looked_at") or {}).get("line", ""),
        counts=_counts(results),
        results=results,
        groups=groups,
        quantities=quantities_of(name for entry in report["results"] for name in entry["ratios"]),
        subjects=Counter(group.column.subject for group in groups),
        matrix=_matrix(results, groups),
        catches=_catches(),
        recordings=_recordings(results),
        failures=[result for result in results if result.status in ("different", "failed")],
        unsupported=[result for result in results if result.status == "unsupported"],
        deviating=[result for result in results if result.status == "deviates"],
        listed={entry["id"]: entry for entry in report.get("deviations", ())},
        legend=_legend(),
        stages=STAGES,
        exact=exact,
        ratio=ratio,
        rounded=rounded,
    )


def _in_float64(results: Sequence[ResultView]) -> str:
    """The subjects that gave float64 in a run of another dtype."""
    return ", ".join(dict.fromkeys(str(one.column) for one in results if one.entry.get("in_float64")))


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


def _legend() -> list[Ratio]:
    """One entry per colour."""
    texts = ["0 (exact)", *(f"≤ {end:g}" for end in HEAT_STEPS[1:]), f"> {HEAT_STEPS[-1]:g}"]
    return [Ratio(text, step) for step, text in enumerate(texts)]


def _catches() -> dict[str, str]:
    """Case id -> what it catches."""
    from conformance.cases.table import select_asked

    return {asked.id: asked.catches for asked in select_asked(())}
