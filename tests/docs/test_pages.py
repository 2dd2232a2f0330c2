"""What pages show is what the code and the tables have: mistakes, deviations, numbers."""

from __future__ import annotations

import html
import json
import re
from importlib import import_module
from itertools import permutations

import pytest

from _ext import common
from _ext.pages import bugs, proof, traps
from _ext.phrasebook import operations as phrases
from conformance.deviations.known import load
from conformance.zoo.registry import all_bugs
from mha.cli.main import main
from mha.phrases.said import CONCEPTS
from mha.phrases.table import NATIVES, warnings_of
from mha.phrases.text import lines_of, words_of
from tests.docs.conftest import ROOT

pytestmark = pytest.mark.same_on_newest  # tables and pages; no framework takes part


def test_every_deviation_is_a_card(site):
    page = (site / "traps.html").read_text()
    missing = [entry.id for entry in load().entries if f'id="{entry.id}"' not in page]
    assert missing == []
    seen = json.loads(traps.SEEN.read_text())["seen"]
    made = "python -m tests.conformance.deviations.seen"
    assert list(seen) == [entry.id for entry in load().entries], f"`{made}` makes seen.json anew"
    assert {found["outcome"] for found in seen.values()} <= {"happens", "not here", "other version"}


def test_every_bug_of_the_zoo_stands_at_its_stage_or_on_the_page_of_its_part(site):
    stages = (site / "stages.html").read_text()
    for bug in all_bugs():
        place = bugs.place_of(bug)
        if place in bugs.PARTS:
            text = (site / "parts" / f"{place}.html").read_text()
        else:
            text = stages.partition(f'<section id="{place}">')[2].partition("</section>")[0]
        assert f">{bug.id}<" in text, bug.id


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


def test_the_reference_has_every_public_name_and_command(site):
    page, layers, commands = ((site / f"{name}.html").read_text() for name in ("api", "api-layers", "cli"))
    for package in ("mha_core", "mha", "conformance.subjects"):
        for name in import_module(package).__all__:
            assert f'id="{package}.{name}"' in page
    for backend in common.FRAMEWORKS:
        source = (ROOT / "backends" / backend / "__init__.py").read_text()
        for name in re.findall(r'^    "(\w+)",$', source, re.MULTILINE):
            assert f'id="backends.{backend}.{name}"' in layers
    for name in main.commands:
        assert f'<section id="mha-{name}' in commands


def test_the_lesson_on_a_port_shows_the_example_of_the_readme(site):
    page = re.sub(r"<[^>]+>", "", (site / "port.html").read_text())
    for line in ("import numpy as np", "scale-query-dim: Scores are divided", "def softmax(scores, mask)"):
        assert line in page


def test_every_call_of_the_steps_is_in_the_phrase_book(site, monkeypatch):
    assert phrases.unexplained() == []
    page = (site / "phrasebook.html").read_text()
    for phrase in phrases.PHRASES:
        assert f"<h2>{phrase.title}<" in page
        shown = {(place, step) for place, step in phrases.chosen(phrase)}
        for dialect in common.DIALECTS:
            said = {use.name for use in phrases.uses(dialect) if (phrases.short(use.place), use.step) in shown}
            assert {use.name for use in phrases.uses(dialect)} & set(phrase.calls) <= said, (phrase.title, dialect)
    monkeypatch.setattr(phrases, "PHRASES", phrases.PHRASES[1:])
    assert "tf.matmul of" in "; ".join(phrases.unexplained())


def test_a_statement_stands_beside_its_own_translation():
    """Not a call of one dialect beside whatever the next has of the same name."""
    for phrase in phrases.PHRASES:
        for table in "\n".join(phrases.section(phrase)).split("\n\n")[2:]:
            if "plain edition" in table:
                step = table.split("`")[1]
                rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", table, re.MULTILINE))
                assert list(rows) == list(common.DIALECTS.values()), (phrase.title, step)
                assigned = [row for row in rows.values() if row.startswith((f"`{step} = ", "`return ", "`powers = "))]
                assert len(assigned) == len(rows), (phrase.title, step)


def test_the_phrase_book_of_layers_has_every_statement_and_every_pair(site):
    page = (site / "phrasebook-layers.html").read_text()
    assert len(page.encode()) < 300_000
    text = html.unescape(re.sub(r"<wbr>|</?span[^>]*>", "", page))
    for native in NATIVES.values():
        for concept, heading in CONCEPTS.items():
            part = text.partition(f"<h2>{html.unescape(heading)}<")[2].partition("<h2>")[0]
            mine = [cell for cell in re.findall(r"<article.*?</article>", part, re.DOTALL) if native.id in _ids(cell)]
            assert len(mine) == 1, (native.id, concept)
            for line in [*lines_of(native, concept), words_of(native, concept)]:
                assert line in mine[0], (native.id, concept, line)
            for entry in warnings_of(native, concept):
                assert f'"traps.html#{entry.id}"' in mine[0], (native.id, concept)
    pairs = [pair for found in re.findall(r'data-pairs="([^"]*)"', page) for pair in found.split()]
    assert sorted(pairs) == sorted(f"{old}/{new}" for old, new in permutations(NATIVES, 2))


def _ids(cell: str) -> list[str]:
    return re.findall(r'data-of="([^"]*)"', cell)[0].split()
