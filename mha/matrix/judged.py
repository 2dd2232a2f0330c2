"""Applies the tables of deviations to a record: what is equal, what deviates as listed, and what no entry lists."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from conformance.deviations.entry import Deviation
from conformance.deviations.known import Deviations, with_known
from conformance.judging.compare import Mismatch
from conformance.judging.result import Result
from mha.matrix.record import Record
from mha_core.errors import shown
from mha_core.stages import is_gradient

Place = tuple[str, str]
"""Case and dtype; both empty for a probe."""

PROBE: Place = ("", "")

LONGEST_REASON = 200
"""Most characters that are shown of why there was no answer."""

DEVIATION, UNLISTED, FAILED = "deviation", "unlisted", "failed"
"""The kinds of facts: an entry of a table was seen; an array differs that no entry covers; there was no answer."""

Fact = tuple[str, str]
"""A kind, and the id of the entry, the arrays, or the message."""


@dataclass
class Judged:
    """One subject in one set, judged.

    Attributes:
        subject: its name.
        counts: status -> number of results, as `mha check` gives them with these versions.
        facts: what was seen -> where.
        judged: where it gave an answer that could be judged.
        findings: a line for each thing in which the table is wrong about this release.
    """

    subject: str
    counts: Counter[str] = field(default_factory=Counter)
    facts: dict[Fact, set[Place]] = field(default_factory=lambda: defaultdict(set))
    judged: set[Place] = field(default_factory=set)
    findings: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))


def judge(record: Record, known: Deviations) -> dict[str, Judged]:
    """Subject -> what the record says of it, with the tables; in the order of the record.

    A listed difference counts as listed only if the entry's versions are those of the record. One that an entry
    describes, but for other versions, is a finding.
    """
    found: dict[str, Judged] = {}
    for line in record.results:
        result = _result(line["result"])
        judged = found.setdefault(result.subject, Judged(result.subject))
        _judge_case(judged, result, _entries(known, line["spec"], result), record)
    by_id = {entry.id: entry for entry in known.entries}
    for probe in record.probes:
        entry = by_id.get(probe["id"])
        if entry is not None:  # else the entry was taken out of its table since
            _judge_probe(found.setdefault("probes", Judged("probes")), probe, entry, record)
    return found


def _result(fields: dict[str, object]) -> Result:
    """The Result that a record holds as JSON."""
    mismatches = tuple(Mismatch(**mismatch) for mismatch in fields["mismatches"])  # type: ignore[attr-defined]  # JSON
    whole = {**fields, "mismatches": mismatches, "judged": tuple(fields["judged"])}  # type: ignore[arg-type]  # JSON
    return Result(**{**whole, "deviations": (), "gone": ()})  # type: ignore[arg-type]  # of JSON


def _entries(known: Deviations, spec: str, result: Result) -> list[Deviation]:
    """The entries about a subject that name this case and dtype, whatever their versions."""
    return [
        entry
        for entry in known.entries
        if entry.subject == spec and result.case in entry.cases and result.dtype in entry.dtypes
    ]


def _judge_case(judged: Judged, result: Result, entries: list[Deviation], record: Record) -> None:
    place = (result.case, result.dtype)
    here = [entry for entry in entries if not entry.why_not(record.packages.get)]
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


def _judge_probe(judged: Judged, probe: dict[str, str], entry: Deviation, record: Record) -> None:
    """A probe is one more place, where its entry was seen or not."""
    place, here = (entry.id, ""), not entry.why_not(record.packages.get)
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
