"""Records under the tables: what is as listed, what is listed for other versions, what is listed nowhere."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from conformance.deviations.entry import Deviation
from conformance.deviations.known import Deviations, with_known
from mha.matrix.judged import as_measured, judge
from tests.mha.matrix.made_up import record, result

SUBJECT = "mine.layers:Layer"


def entry(identifier, versions=("mine>=2",), arrays=("output",), **more):
    places = {} if "probe" in more else {"cases": ("causal", "long"), "dtypes": ("float64",), "arrays": arrays}
    return Deviation(identifier, SUBJECT, "", "", "", "", versions, **{**places, **more})


def judged(found, *entries):
    (subject,) = judge(found, Deviations(entries)).values()
    return subject


def findings(subject):
    return {text: sorted(places) for text, places in subject.findings.items()}


def test_what_an_entry_lists_is_no_finding():
    subject = judged(record("2.1", result("causal", "output"), result("long", "output"), result("a")), entry("late"))
    assert subject.counts == {"deviates": 2, "equal": 1}
    assert subject.facts == {("deviation", "late"): {("causal", "float64"), ("long", "float64")}}
    assert findings(subject) == {}


def test_what_happens_in_a_version_that_the_entry_leaves_out_is_a_finding():
    subject = judged(record("1.9", result("causal", "output"), result("long", "output")), entry("late"))
    assert subject.counts == {"other version": 2}
    assert subject.facts == {("deviation", "late"): {("causal", "float64"), ("long", "float64")}}
    assert findings(subject) == {
        "late happens, though listed for mine>=2 alone": [("causal", "float64"), ("long", "float64")]
    }


def test_an_entry_for_other_versions_is_not_seen_in_what_one_for_these_explains():
    early = entry("early", versions=("mine<2",), arrays=("output", "weights"))
    subject = judged(record("2.1", result("causal", "output")), entry("late"), early)
    assert subject.counts == {"deviates": 1}
    assert set(subject.facts) == {("deviation", "late")}
    both = judged(record("2.1", result("causal", "output", "weights")), entry("late"), early)
    assert set(both.facts) == {("deviation", "late"), ("deviation", "early")}
    assert list(both.findings) == ["early happens, though listed for mine<2 alone"]


def test_what_no_entry_covers_is_different_and_a_finding():
    subject = judged(record("2.1", result("causal", "output", "weights")), entry("late"))
    assert subject.counts == {"different": 1}
    assert subject.facts["unlisted", "weights"] == {("causal", "float64")}
    assert findings(subject) == {"differs in weights, which no entry lists": [("causal", "float64")]}


def test_what_is_listed_and_does_not_happen_is_different_unless_it_has_a_condition():
    gone = judged(record("2.1", result("causal")), entry("late"))
    assert gone.counts == {"different": 1}
    assert findings(gone) == {"late is listed and does not happen": [("causal", "float64")]}
    with_condition = judged(record("2.1", result("causal")), entry("late", only_where="it rains"))
    assert with_condition.counts == {"equal": 1}
    assert findings(with_condition) == {}


def test_no_answer_is_a_finding_and_what_cannot_be_expressed_is_none():
    lines = [result("causal", status="failed", message="no"), result("a", status="unsupported", message="window")]
    subject = judged(record("2.1", *lines), entry("late"))
    assert subject.counts == {"failed": 1, "unsupported": 1}
    assert subject.judged == set()
    assert findings(subject) == {"gives no answer: no": [("causal", "float64")]}


def test_a_listed_case_that_can_no_longer_be_expressed_is_a_finding():
    subject = judged(record("2.1", result("long", status="unsupported", message="window")), entry("late"))
    assert subject.counts == {"different": 1}
    assert findings(subject) == {"late is listed and does not happen": [("long", "float64")]}


PROBES = {
    ("happens", "2.1"): ({"deviates": 1}, []),
    ("happens", "1.9"): ({"other version": 1}, ["slow happens, though listed for mine>=2 alone"]),
    ("gone", "2.1"): ({"different": 1}, ["slow is listed and does not happen"]),
    ("gone", "1.9"): ({"equal": 1}, []),
    ("failed", "2.1"): ({"failed": 1}, ["the probe of slow can't be run: "]),
    ("failed", "1.9"): ({"unsupported": 1}, []),
}


@pytest.mark.parametrize(("outcome", "version"), PROBES)
def test_a_probe_is_judged_by_the_versions_of_its_entry(outcome, version):
    counts, said = PROBES[outcome, version]
    subject = judged(record(version, probes=(("slow", outcome),)), entry("slow", probe="mine.probes:slow"))
    assert subject.counts == counts
    assert list(subject.findings) == said


def test_a_probe_with_a_condition_need_not_happen():
    conditional = entry("slow", probe="mine.probes:slow", only_where="it rains")
    subject = judged(record("2.1", probes=(("slow", "gone"),)), conditional)
    assert subject.counts == {"equal": 1}
    assert findings(subject) == {}


ANSWERS = [((), ""), (("output",), ""), (("output", "weights"), ""), ((), "failed"), ((), "unsupported")]


@pytest.mark.parametrize(("wrong", "status"), ANSWERS)
def test_a_result_is_taken_as_it_was_before_the_tables_of_its_run(wrong, status):
    plain = as_measured(result("causal", *wrong, status=status, message=status and "why"))
    for listed in ([entry("late")], [entry("late"), entry("other", arrays=("heads",))]):
        found = as_measured(asdict(with_known(plain, listed)))
        assert (found.status, found.mismatches, found.gone) == (plain.status, plain.mismatches, ())
