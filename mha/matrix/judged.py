"""Applies the tables of deviations to a row: what is equal, what deviates as listed, and what no entry lists."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from typing import Any

from conformance.deviations.entry import Deviation
from conformance.deviations.known import Deviations, with_known
from conformance.judging.compare import Mismatch
from conformance.judging.result import Result
from mha.matrix.record import Judged, Place, Row
from mha_core.errors import shown
from mha_core.stages import is_gradient

PROBE: Place = ("", "")

LONGEST_REASON = 200
"""Most characters that are shown of why there was no answer."""

DEVIATION, UNLISTED, FAILED = "deviation", "unlisted", "failed"
"""The kinds of facts: an entry of a table was seen; an array differs that no entry covers; there was no answer."""


def judge(row: Row, known: Deviations) -> dict[str, Judged]:
    """Subject -> what a row says of it, with the tables; in the order of the row.

    A listed difference counts as listed only if the entry's versions are those of the row. One that an entry
    describes, but for other versions, is a finding.
    """
    found: dict[str, Judged] = {}
    for fields in row.results:
        result = as_measured(fields)
        judged = found.setdefault(result.subject, Judged(result.subject))
        _judge_case(judged, result, _entries(known, result), row)
    by_id = {entry.id: entry for entry in known.entries}
    for probe in row.probes:
        entry = by_id.get(probe["id"])
        if entry is not None:  # else the entry was taken out of its table since
            _judge_probe(found.setdefault("probes", Judged("probes")), probe, entry, row)
    return found


def as_measured(fields: dict[str, Any]) -> Result:
    """The result of a line of `mha check --json`, without what the tables of that time made of it.

    They made "deviates" of "different", and "different", with a mismatch for each listed deviation that did not
    happen, of any answer.
    """
    mismatches = [Mismatch(**mismatch) for mismatch in fields["mismatches"]]
    mismatches = mismatches[: len(mismatches) - len(fields["gone"])]
    status = fields["status"]
    if status in ("deviates", "different"):
        status = "different" if mismatches else "unsupported" if fields["message"] else "equal"
    more = {"status": status, "mismatches": tuple(mismatches), "judged": tuple(fields["judged"])}
    return Result(**{**fields, **more, "deviations": (), "gone": ()})


def _entries(known: Deviations, result: Result) -> list[Deviation]:
    """The entries about a subject that name this case and dtype, whatever their versions."""
    _, spec, *_ = [*shlex.split(result.selector), "", ""]  # --subject SPEC
    return [
        entry
        for entry in known.entries
        if entry.subject == spec and result.case in entry.cases and result.dtype in entry.dtypes
    ]


def _judge_case(judged: Judged, result: Result, entries: list[Deviation], row: Row) -> None:
    place = (result.case, result.dtype)
    here = [entry for entry in entries if not entry.why_not(row.packages.get)]
    outcome = with_known(result, here)
    wrong = [mismatch.stage for mismatch in result.mismatches]
    # What an entry for these versions explains, one for others need not have caused.
    unexplained = [array for array in wrong if not any(entry.covers(array) for entry in here)]
    elsewhere = [entry for entry in entries if entry not in here and any(map(entry.covers, unexplained))]
    seen = [*(entry for entry in here if any(map(entry.covers, wrong))), *elsewhere]
    unlisted = [array for array in dict.fromkeys(wrong) if not any(entry.covers(array) for entry in entries)]
    status: str = outcome.status
    if status == "different" and not unlisted and not outcome.gone and elsewhere:
        status = "other version"
    judged.counts[status] += 1
    if status == "failed":
        message = shown(result.message, LONGEST_REASON)
        judged.facts[FAILED, message].add(place)
        judged.findings[f"gives no answer: {message}"].add(place)
    for identifier in outcome.gone:
        judged.findings[f"{identifier} is listed and does not happen"].add(place)
    if result.status in ("failed", "unsupported"):
        return
    judged.judged.add(place)
    for entry in seen:
        judged.facts[DEVIATION, entry.id].add(place)
    if unlisted:
        judged.facts[UNLISTED, _in_short(unlisted)].add(place)
        judged.findings[f"differs in {_in_short(unlisted)}, which no entry lists"].add(place)
    for entry in elsewhere:
        judged.findings[_excluded(entry)].add(place)


def _judge_probe(judged: Judged, probe: dict[str, str], entry: Deviation, row: Row) -> None:
    """A probe is one more place, where its entry was seen or not."""
    place, here = (entry.id, ""), not entry.why_not(row.packages.get)
    if probe["outcome"] == "failed":
        judged.counts["failed" if here else "unsupported"] += 1
        judged.facts[FAILED, f"the probe of {entry.id} can't be run: {probe['seen']}"].add(place)
        if here:
            judged.findings[f"the probe of {entry.id} can't be run: {probe['seen']}"].add(PROBE)
        return
    judged.judged.add(place)
    happens = probe["outcome"] == "happens"
    if happens:
        judged.facts[DEVIATION, entry.id].add(place)
    if happens and not here:
        judged.findings[_excluded(entry)].add(PROBE)
    elif here and not happens and not entry.only_where:
        judged.findings[f"{entry.id} is listed and does not happen"].add(PROBE)
    expected = happens == here or bool(here and entry.only_where)
    status = "deviates" if happens else "equal"
    judged.counts[status if expected else "other version" if happens else "different"] += 1


def _in_short(arrays: Iterable[str]) -> str:
    """The stages by name, and all gradients as one.

    >>> _in_short(["heads", "output", "gradients.keys", "gradients.bias"])
    'heads, output, gradients'
    """
    return ", ".join(dict.fromkeys("gradients" if is_gradient(array) else array for array in arrays))


def _excluded(entry: Deviation) -> str:
    return f"{entry.id} happens, though listed for {', '.join(entry.versions)} alone"


def statuses(judged: Iterable[Judged]) -> Counter[str]:
    """All counts together."""
    total: Counter[str] = Counter()
    for one in judged:
        total += one.counts
    return total
