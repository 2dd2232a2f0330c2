"""What changed between releases, and the table and page that show it."""

from __future__ import annotations

from conformance.deviations.entry import Deviation
from conformance.deviations.known import Deviations
from mha.matrix.changes import changes, in_order
from mha.matrix.judged import judge
from mha.matrix.record import Row
from mha.matrix.report import cells, change_lines, finding_lines, make, markdown
from mha.matrix.request import ReleaseSet, Request
from tests.mha.matrix.made_up import record, result

ENTRY = Deviation(
    "late",
    "mine.layers:Layer",
    "",
    "",
    "",
    "",
    ("mine>=2,<4",),
    cases=("causal", "long"),
    dtypes=("float64", "float32"),
    arrays=("output",),
)
KNOWN = Deviations((ENTRY,))


def lines(*records):
    return change_lines(changes(judged(KNOWN, *records)))


def judged(known, *records):
    for found in records:
        found.judged = judge(found, known)
    return in_order(records)


def test_releases_are_in_the_order_of_their_versions():
    assert [found.name for found in in_order([record("0.10.2"), record("0.9"), record("0.10")])] == [
        "mine 0.9",
        "mine 0.10",
        "mine 0.10.2",
    ]


def test_a_deviation_that_comes_and_goes_is_a_line_each():
    both = [result("causal", "output"), result("causal", "output", dtype="float32"), result("long", "output")]
    neither = [result("causal"), result("causal", dtype="float32"), result("long")]
    assert lines(record("1", *neither), record("2", *both), record("3", *both), record("4", *neither)) == [
        "a layer: late is seen since mine 2: 2 cases (causal, long), float32 and float64",
        "a layer: late is no longer seen since mine 4: 2 cases (causal, long), float32 and float64",
    ]


def test_an_unlisted_difference_and_a_failure_are_lines_too():
    found = lines(
        record("1", result("causal")),
        record("2", result("causal", "weights")),
        record("3", result("causal", status="failed", message="no")),
    )
    assert found == [
        "a layer: differs in weights, which no entry lists since mine 2: 1 case (causal), float64",
        "a layer: fails (no) since mine 3: 1 case (causal), float64",
    ]


def test_of_a_case_that_one_release_was_not_asked_nothing_is_said():
    assert lines(record("1", result("causal", status="unsupported")), record("2", result("causal", "output"))) == []
    assert lines(record("1", result("long")), record("2", result("causal", "output"))) == []
    failed = lines(
        record("1", result("causal", status="failed", message="no")), record("2", result("causal", "output"))
    )
    assert failed == ["a layer: no longer fails (no) since mine 2: 1 case (causal), float64"]


def test_a_probe_that_no_longer_happens_is_a_line():
    probed = Deviation("slow", "mine.layers:Layer", "", "", "", "", ("mine>=1",), probe="a.b:c")
    found = [record(version, probes=(("slow", outcome),)) for version, outcome in (("1", "happens"), ("2", "gone"))]
    known = Deviations((probed,))
    assert change_lines(changes(judged(known, *found))) == ["probes: slow is no longer seen since mine 2"]


def test_a_layer_that_a_release_lacks_is_a_line():
    other = {**result("causal"), "subject": "another layer"}
    assert lines(record("1", result("causal")), record("2", result("causal"), other)) == [
        "another layer: first there since mine 2"
    ]


def rows():
    request = Request(tuple(ReleaseSet(f"set {n}", ("mine",), ("mine",)) for n in "123"), ("causal",), ("float64",))
    ended = record("3", result("causal", "output"), note="the last")
    ended.problems.append("mine.layers:Bad: it was ended by SIGSEGV")
    first, second = record("1", result("causal", "output")), record("2", result("causal"))
    return request, [ended, Row("mine 0", "mine", problem="can't be installed: a|b"), first, second]


def test_the_report_counts_and_orders_and_knows_what_is_missing():
    report = make(*rows(), KNOWN)
    assert [row.name for row in report.rows] == ["mine 1", "mine 2", "mine 3", "mine 0"]
    assert cells(report.rows[0]) == ("mine 1", "mine 1", "-", "-", "1", "-", "-", "-")
    assert cells(report.rows[1]) == ("mine 2", "mine 2", "-", "-", "-", "1", "-", "-")
    assert cells(report.rows[2]) == ("mine 3", "mine 3", "-", "1", "-", "-", "-", "-")
    assert report.different
    assert report.incomplete
    assert finding_lines(report.rows[2]) == ["mine.layers:Bad: it was ended by SIGSEGV"]
    assert report.to_dict()["changes"]["mine"][0]["since"] == "mine 2"


def test_equal_and_as_listed_is_neither_different_nor_incomplete():
    request, _ = rows()
    report = make(request, [record("2", result("causal", "output"), result("a"))], KNOWN)
    assert not report.different
    assert not report.incomplete


def test_the_page_holds_all_of_it():
    page = markdown(make(*rows(), KNOWN), "mine.toml")
    assert "| mine 0 | could not run |" in page
    assert "#### mine 0\n\n- can't be installed: a\\|b\n" in page
    assert "- mine 3: the last" in page
    assert "- a layer: late is no longer seen since mine 2: 1 case (causal), float64" in page
    assert "- a layer: late happens, though listed for mine&gt;=2,&lt;4 alone: 1 case (causal), float64" in page
    assert "SIGSEGV" in page
