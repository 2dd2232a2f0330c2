"""Outcomes of a command for CI: JUnit's XML, SARIF and a badge. None of them passes where the command does not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

from mha.cli import options
from mha.cli.common import COULD_NOT_RUN, DIFFERENT, EQUAL
from mha.cli.options import Options

if TYPE_CHECKING:
    from conformance.judging.result import Result
    from mha.invariance.report import Report
    from mha.substitution.reports.report import WhereReport

Status = Literal["passed", "failure", "error", "skipped"]

COLOURS = {EQUAL: "brightgreen", DIFFERENT: "red", COULD_NOT_RUN: "lightgrey"}

RULES = {
    "different": "It gives something else than the reference.",
    "failed": "It gave no answer.",
    "unsupported": "It can't express the case.",
    "diagnosed": "Why the subject differs, and what to change.",
    "could-not-run": "Something could not run, or nothing was judged.",
    "wrong-in-its-parts": "One or more of its parts are wrong, which are written otherwise together.",
    "wrong-by-itself": "The module gives something else than its original on what it was given.",
    "wrong-in-its-own-lines": "The module's parts are right, and what it does between them is not.",
    "wrong-backward": "The module is right forward, and its gradients are not.",
    "uncovered": "Parameters that nothing but the whole model judges.",
    "not-judged": "The module was not judged.",
    "contradicts-itself": "It gives another number in another way.",
    "through-its-parts": "It differs through modules inside it.",
    "caused-upstream": "It was given something else than its original.",
}
"""Rule -> what it means. A rule is the reason of an outcome that did not pass."""

SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@dataclass(frozen=True)
class Outcome:
    """An outcome of one test case, or of one module of a model, for CI.

    Attributes:
        suite: the layer under test (with its dtype), or the model.
        name: the name of the case or of the module.
        status: "passed", "failure" (it differs), "error" (it could not run) or "skipped" (it was not judged).
        rule: what did not pass, a key of RULES such as "different"; "" if it passed.
        message: why it did not pass.
        seconds: how long it took.
    """

    suite: str
    name: str
    status: Status
    rule: str = ""
    message: str = ""
    seconds: float = 0.0


class Reported(Options):
    """A base class with the options of commands that also write their outcomes for CI."""

    junit_path: Path | None = options.output_file(
        "--junit", help="Also write the outcomes to this file as JUnit's XML."
    )
    sarif_path: Path | None = options.output_file("--sarif", help="Also write what did not pass to this file as SARIF.")

    def write_outcomes(
        self,
        outcomes: Callable[[], Sequence[Outcome]],
        status: int,
        diagnoses: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write the files that --junit and --sarif name.

        Args:
            outcomes: a function that returns the outcomes.
            status: the exit status of the command. If it is not 0 and no outcome failed, an error is added.
            diagnoses: why layers under test differ, as in the JSON of `mha check`.
        """
        from mha_core.files.writing import write_json, write_whole

        if self.junit_path is None and self.sarif_path is None:
            return
        found = list(outcomes())
        if status != EQUAL and not any(one.status in ("failure", "error") for one in found):
            said = f"It ended with exit status {status}."
            found.append(Outcome("mha", "the command", "error", "could-not-run", said))
        if self.junit_path is not None:
            write_whole(self.junit_path, junit(found, diagnoses))
        if self.sarif_path is not None:
            write_json(self.sarif_path, sarif(found, diagnoses))


def of_results(results: Sequence[Result], could_not_run: Sequence[str] = ()) -> list[Outcome]:
    """Return an outcome for each result, and for each line of `could_not_run` (about a layer that can't be run)."""
    statuses: dict[str, Status] = {"different": "failure", "failed": "error", "unsupported": "skipped"}
    found = []
    for one in results:
        status = statuses.get(one.status, "passed")
        message = "\n".join([mismatch.message for mismatch in one.mismatches] or [one.message])
        rule, text = ("", "") if status == "passed" else (one.status, f"{message}\n{one.rerun}")
        found.append(Outcome(f"{one.subject} {one.dtype} {one.device}", one.case, status, rule, text, one.seconds))
    broken = [Outcome("mha", "loading", "error", "could-not-run", line) for line in could_not_run]
    return [*found, *broken]


def of_modules(found: WhereReport) -> list[Outcome]:
    """Return the outcomes of the modules of a port."""
    return [_of_module(found, number) for number in range(len(found.results))]


def _of_module(found: WhereReport, number: int) -> Outcome:
    from mha.substitution.allowance import times_rounding

    one = found.results[number]
    status: Status = "skipped"
    if one.status == "wrong":
        inside = "wrong-in-its-parts" if one.among else "wrong-by-itself"
        status, rule = "failure", "wrong-in-its-own-lines" if one.own_lines else inside
    elif one.wrong_backward:
        status, rule = "failure", "wrong-backward"
    elif one.name in found.uncovered and not found.equal:
        status, rule = "failure", "uncovered"
    elif one.status in ("equal", "divided otherwise"):
        return Outcome("port", one.name or "the model", "passed")
    else:
        rule = one.status.replace(" ", "-")
        status = "error" if number == 0 and rule == "not-judged" else "skipped"
    seen = one.backward if one.wrong_backward and one.backward is not None else one
    worst = times_rounding(seen.ratio) if seen.ratio is not None else ""
    place = f"worst at {seen.place} {list(seen.index)}: got {seen.got}, expected {seen.expected}" if seen.place else ""
    original = f"Its original is {one.original or 'the model'}." if one.original is not None else ""
    apart = (each.message for each in one.causes)
    said = filter(None, [RULES[rule], original, worst, place, one.reason, *apart, *one.notes])
    return Outcome("port", one.name or "the model", status, rule, "\n".join(said))


def of_relations(found: Report) -> list[Outcome]:
    """Return an outcome for each relation of `mha invariants`: "skipped" if it is untested or known to be broken."""
    statuses: dict[str, tuple[Status, str]] = {
        "holds": ("passed", ""), "broken": ("failure", "contradicts-itself"), "known": ("skipped", "not-judged"),
        "not asked": ("skipped", "not-judged"),
    }  # fmt: skip
    outcomes = []
    for one in found.results:
        status, rule = statuses[one.status]
        said = "" if status == "passed" else "\n".join(filter(None, [one.sentence, one.reason, one.by, one.code]))
        outcomes.append(Outcome(found.name, one.id, status, rule, said, one.seconds))
    return outcomes


def junit(outcomes: Sequence[Outcome], diagnoses: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """Return the outcomes as JUnit's XML: a testsuite for each suite, and in it a testcase for each outcome.

    A diagnosis becomes the system-out of its testsuite.
    """
    root = ElementTree.Element("testsuites")
    for suite in dict.fromkeys(one.suite for one in outcomes):
        own = [one for one in outcomes if one.suite == suite]
        counts = Counter(one.status for one in own)
        numbers = {"failures": counts["failure"], "errors": counts["error"], "skipped": counts["skipped"]}
        sizes = {"tests": len(own), **numbers, "time": f"{sum(one.seconds for one in own):.3f}"}
        attributes = {"name": _plain(suite), **{name: str(value) for name, value in sizes.items()}}
        element = ElementTree.SubElement(root, "testsuite", attributes)
        for one in own:
            named = {"classname": _plain(suite), "name": _plain(one.name), "time": f"{one.seconds:.3f}"}
            case = ElementTree.SubElement(element, "testcase", named)
            if one.status != "passed":
                text = _plain(one.message)
                reason = ElementTree.SubElement(case, one.status, type=one.rule, message=text.partition("\n")[0])
                reason.text = text
        for told in diagnoses:
            if suite.startswith(f"{told['subject']} {told['dtype']} "):
                ElementTree.SubElement(element, "system-out").text = _plain(told["text"])
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _plain(text: str) -> str:
    r"""A text without the characters that XML does not have.

    >>> _plain("a\x1b[31mb")
    'a?[31mb'
    """
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def sarif(outcomes: Sequence[Outcome], diagnoses: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the outcomes as SARIF 2.1.0, with a result for each outcome that did not pass.

    Skipped outcomes and diagnoses have the level "note", others "error".
    """
    told = [
        Outcome(f"{one['subject']} {one['dtype']}", "diagnosis", "skipped", "diagnosed", one["text"])
        for one in diagnoses
    ]
    wrong = [*told, *(one for one in outcomes if one.status != "passed")]
    rules = list(dict.fromkeys(one.rule for one in wrong))
    try:
        own = version("mha-parity")
    except PackageNotFoundError:  # a checkout that was not installed
        own = "0"
    driver = {
        "name": "mha",
        "version": own,
        "rules": [{"id": rule, "shortDescription": {"text": RULES[rule]}} for rule in rules],
    }
    results = [
        {
            "ruleId": one.rule,
            "ruleIndex": rules.index(one.rule),
            "level": "note" if one.status == "skipped" else "error",
            "message": {"text": one.message},
            "locations": [{"logicalLocations": [{"name": one.name, "fullyQualifiedName": f"{one.suite}/{one.name}"}]}],
        }
        for one in wrong
    ]
    return {"$schema": SARIF, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def badge(results: Sequence[Result], status: int) -> dict[str, Any]:
    """Return the JSON of a badge of shields.io: green only for exit status 0, red for a difference, else grey.

    >>> badge([], COULD_NOT_RUN)
    {'schemaVersion': 1, 'label': 'mha parity', 'message': 'nothing judged', 'color': 'lightgrey'}
    """
    counts: Counter[str] = Counter(one.status for one in results)
    words = {"different": "different", "failed": "failed", "equal": "equal", "deviates": "as listed"}
    said = [f"{counts[name]:,} {word}" for name, word in words.items() if counts[name]]
    if status == COULD_NOT_RUN and said and not counts["failed"]:
        said.insert(0, "not all could run")
    message = ", ".join(said) or "nothing judged"
    return {"schemaVersion": 1, "label": "mha parity", "message": message, "color": COLOURS[status]}
