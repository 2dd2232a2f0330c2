"""Reports, in text, JSON and on the page, count what deviates as known apart from what is different."""

import json
from pathlib import Path

import jsonschema
import pytest

import conformance
from conformance.deviations.known import load
from conformance.reports import text as report
from conformance.reports.html import groups_of, render, result_view
from mha.schemas import schema
from mha_core.files.writing import jsonable
from tests.conformance.deviations.listed_layer import ENTRY, result_of

ROOT = Path(conformance.__file__).parent.parent
SCHEMA = schema("check")


def runs(path: Path, *cases: str) -> list:
    return [result_of(case, path) for case in cases]


def test_reports_count_what_is_known_apart(table):
    path = table(ENTRY)
    results = runs(path, "prime", "one-key", "valid-lens-per-query", "bias-per-head")
    assert report.verdict(results) == (
        "All 3 results are equal to the reference, but for 2 that deviate as known. 1 more could not be expressed."
    )
    assert report.deviation_lines(results) == [
        "mean_of_values float64 deviates as known in 2 (mha deviations empty-row-is-mean): "
        "one-key, valid-lens-per-query"
    ]
    columns = report.parity_table(results).columns
    assert [next(iter(column.cells)) for column in columns[:3]] == [
        "mean_of_values float64",
        "[green]1/3[/]",
        "2/3",
    ]
    assert float(next(iter(columns[-2].cells))) <= 1.0  # the worst output of what is not known


def test_json_and_page_hold_the_entries_that_results_name(table):
    path = table(ENTRY, {**ENTRY, "id": "unused", "subject": "their_layer:raises"})
    results = runs(path, "prime", "one-key")
    whole = json.loads(json.dumps(jsonable(report.to_json(results, {}, load(path)))))
    jsonschema.validate(whole, SCHEMA)
    assert [entry["id"] for entry in whole["deviations"]] == ["empty-row-is-mean"]
    page = render(whole)
    assert '<p class="verdict deviates">✓ All 2 results are equal' in page
    assert '<tr id="deviation-1"><th scope="row">one-key</th>' in page
    assert '<a href="#listed-empty-row-is-mean">' in page
    assert '<dt id="listed-empty-row-is-mean">' in page
    assert 'href="https://example.org/issues/1"' in page
    assert "gives the mean of all values" in page


def test_the_page_leaves_what_is_known_out_of_the_worst_errors(table):
    whole = report.to_json(runs(table(ENTRY), "prime", "one-key"), {})
    (group,) = groups_of([result_view(index, entry) for index, entry in enumerate(whole["results"])])
    assert (group.equal, group.known, group.passed) == (1, 1, True)
    assert not group.worst["output"].wrong
    assert group.results[1].ratios["output"].wrong


def test_a_stale_entry_is_valid_json_and_a_failure_on_the_page(table):
    path = table({**ENTRY, "cases": ["prime"]})
    whole = json.loads(json.dumps(jsonable(report.to_json(runs(path, "prime"), {}, load(path)))))
    jsonschema.validate(whole, SCHEMA)
    assert "no longer happens" in render(whole)


@pytest.mark.parametrize("changes", [{"mismatches": []}, {"deviations": []}, {"gone": ["x"]}])
def test_the_schema_refuses_a_result_that_deviates_without_saying_how(table, changes):
    whole = json.loads(json.dumps(jsonable(report.to_json(runs(table(ENTRY), "one-key"), {}))))
    whole["results"][0].update(changes)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(whole, SCHEMA)
