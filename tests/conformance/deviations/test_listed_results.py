"""Results are judged with the table: what is listed deviates as known, and what is not is a difference."""

from dataclasses import replace

import pytest

from conformance.cases.table import select
from conformance.deviations.known import with_known
from conformance.deviations.table import read
from conformance.reports import text as report
from conformance.runner import run_case
from conformance.subjects.load import load_subject
from mha_core import STAGES
from tests.conformance.deviations.listed_layer import ENTRY, result_of, toml


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_is_listed_deviates_as_known(table, dtype):
    result = result_of("valid-lens-per-query", table(ENTRY), dtype=dtype)
    assert (result.status, result.deviations) == ("deviates", ("empty-row-is-mean",))
    assert [mismatch.stage for mismatch in result.mismatches] == ["weights", "output"]
    assert result.message == "deviates as known: empty-row-is-mean"
    assert "--deviations" in result.rerun
    assert "mine.toml" in result.rerun


def test_without_a_table_every_difference_is_one(table):
    table(ENTRY)
    subject = load_subject("their_layer:mean_of_values", "float64")
    assert run_case(select(("valid-lens-per-query",))[0], subject).status == "different"


def test_an_array_that_is_not_listed_is_a_difference(table):
    result = result_of("valid-lens-per-query", table({**ENTRY, "arrays": ["weights"]}))
    assert (result.status, result.deviations, result.gone) == ("different", ("empty-row-is-mean",), ())
    assert [mismatch.stage for mismatch in result.mismatches] == ["weights", "output"]


def test_two_entries_can_cover_one_result_together(table):
    path = table({**ENTRY, "arrays": ["weights"]}, {**ENTRY, "id": "second", "arrays": ["output"]})
    result = result_of("valid-lens-per-query", path)
    assert (result.status, result.deviations) == ("deviates", ("empty-row-is-mean", "second"))


def test_everything_can_be_listed(table):
    assert result_of("one-key", table({**ENTRY, "arrays": ["*"]})).status == "deviates"


def test_a_listed_deviation_that_no_longer_happens_is_a_difference(table):
    result = result_of("prime", table({**ENTRY, "cases": ["prime"]}))
    assert (result.status, result.deviations, result.gone) == ("different", (), ("empty-row-is-mean",))
    assert result.stale
    message = "listed deviation 'empty-row-is-mean' no longer happens: weights, output equal. Correct the table."
    assert [mismatch.message for mismatch in result.mismatches] == [message]
    text = report.failure_text(result)
    assert "case prime: not as listed" in text
    assert message in text


def test_what_happens_only_somewhere_may_be_absent(table):
    path = table({**ENTRY, "cases": ["prime", "one-key"], "only_where": "the processor has no fused product"})
    here = result_of("prime", path)
    assert (here.status, here.deviations, here.gone) == ("equal", (), ())
    assert result_of("one-key", path).status == "deviates"


def test_one_array_of_several_is_enough_to_happen(table):
    assert result_of("one-key", table({**ENTRY, "arrays": ["weights", "output", "heads"]})).status == "deviates"


def test_a_gone_one_beside_one_that_happens_is_a_difference(table):
    gone = {**ENTRY, "id": "never", "arrays": ["queries"]}
    result = result_of("one-key", table(ENTRY, gone))
    assert (result.status, result.deviations, result.gone) == ("different", ("empty-row-is-mean",), ("never",))
    assert not result.stale


def test_a_listed_case_that_can_not_be_expressed_is_a_difference(table):
    result = result_of("bias-per-head", table({**ENTRY, "cases": ["bias-per-head"]}))
    assert result.status == "different"
    assert "cannot express: additive bias" in result.mismatches[0].message


def test_a_subject_that_did_not_run_failed_whatever_is_listed(table):
    path = table({**ENTRY, "subject": "their_layer:raises"})
    assert result_of("one-key", path, "raises").status == "failed"


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": "their_layer:other"},
        {"cases": ["prime"]},
        {"dtypes": ["float32"]},
        {"versions": "numpy<1"},
        {"versions": ["numpy>=1", "no-such-package>=1"]},
    ],
)
def test_an_entry_applies_to_its_subject_case_dtype_and_versions_alone(table, changes):
    assert result_of("one-key", table({**ENTRY, **changes})).status == "different"
    if "cases" not in changes:
        happens = result_of("prime", table({**ENTRY, **changes, "cases": ["prime"]}))
        assert happens.status == "equal"


def test_gradients_can_be_listed_as_one():
    entry = replace(read(toml(ENTRY), source="x")[0], arrays=("gradients.*", "heads"))
    assert entry.covers("gradients.q_proj.weight")
    assert entry.covers("heads")
    assert not entry.covers("output")


def test_nothing_listed_changes_nothing(table):
    table(ENTRY)
    result = run_case(select(("one-key",))[0], load_subject("their_layer:mean_of_values", "float64"))
    assert with_known(result, []) is result


def test_the_stage_named_for_a_gone_deviation_is_one_that_reports_know(table):
    for arrays in (["*"], ["gradients.*"], ["heads"]):
        result = result_of("prime", table({**ENTRY, "cases": ["prime"], "arrays": arrays}))
        assert result.mismatches[0].stage in STAGES
