"""The page on trials shows the figures that were kept, and these are figures of trials that there are."""

from __future__ import annotations

import json

import pytest

from _data import trials as kept
from _ext.pages import trials
from conformance.trials import report
from conformance.trials.judge import Verdict
from conformance.trials.made import families
from conformance.trials.points import POINTS
from conformance.trials.unit import Outcome
from tests.docs.conftest import ROOT

pytestmark = pytest.mark.same_on_newest  # tables and pages; no framework takes part

KEPT = json.loads(kept.KEPT.read_text())


def test_every_group_and_kind_is_a_row():
    table = trials.table("groups")
    assert KEPT["schema_version"] == report.SCHEMA_VERSION
    assert table.count("\n|") == 1 + len(KEPT["groups"])
    assert trials.GROUPS.keys() == set(report.GROUPS)
    kinds = trials.table("singles")
    assert all(f"\n| {kind} |" in kinds for kind in KEPT["groups"]["singles"]["kinds"])


def test_what_is_kept_of_reports_is_each_outcome_once():
    right, wrong = (Verdict(True, True, True, False, False, "so"), Verdict(True, False, False, True, False, "not so"))
    first, second = Outcome("1-0", "mask", "it", right, 1.0, 1.0), Outcome("1-1", "mask", "it", wrong, 1.0, 1.0)
    reports = [report.to_json(some, seed=1, experiments=True, environment={}) for some in ([first, second], [second])]
    found = kept.together(json.loads(json.dumps(reports)))
    assert found["groups"]["singles"]["tried"] == 2
    assert found["seeds"] == [1]
    assert [one["id"] for one in found["outcomes"]] == ["1-1"]


def test_the_page_counts_points_and_families():
    page = (ROOT / "docs/trials.md").read_text()
    backward = len(families()["gradients"])
    assert f"a hook at each of {len(POINTS)} points" in page
    assert f"are {sum(map(len, families().values())) - backward} families forward and {backward} of wrong" in page
