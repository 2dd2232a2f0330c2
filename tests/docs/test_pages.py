"""What pages show is what the code and the tables have: mistakes, deviations, numbers."""

from __future__ import annotations

import json

import pytest

from _ext import proof, traps
from conformance.deviations.known import load
from conformance.zoo.registry import all_bugs

pytestmark = pytest.mark.same_on_newest  # tables and pages; no framework takes part


def test_every_deviation_is_a_card(site):
    page = (site / "traps.html").read_text()
    missing = [entry.id for entry in load().entries if f'id="{entry.id}"' not in page]
    assert missing == []
    seen = json.loads(traps.SEEN.read_text())["seen"]
    assert list(seen) == [entry.id for entry in load().entries], "docs/_data/seen.py makes seen.json anew"
    assert {found["outcome"] for found in seen.values()} <= {"happens", "not here", "other version"}


def test_every_bug_of_the_zoo_stands_at_its_stage(site):
    page = (site / "stages.html").read_text()
    for bug in all_bugs():
        part = page.partition(f'<section id="{bug.stage}">')[2].partition("</section>")[0]
        assert f">{bug.id}<" in part, bug.id


def test_the_page_on_shapes_has_its_numbers(site):
    """The check of the books finds nothing, and looking at every number of all-ones inputs misses nearly half."""
    found = proof.found()
    assert len(found.all) == len(found.by_random) == 69
    assert found.by_shape == ()
    assert len(set(found.all) - set(found.by_ones)) == 30
    assert {"scale-missing", "mask-ignored", "keys-and-values-exchanged"} <= set(found.all) - set(found.by_ones)
    page = (site / "why-a-shape-is-no-proof.html").read_text()
    assert "0 of 69" in page
    assert "39 of 69" in page
