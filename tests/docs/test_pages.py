"""What pages show is what the code and the tables have: mistakes, deviations, numbers."""

import html
import re
from importlib import import_module
from itertools import permutations

import pytest

from _ext import common
from _ext.pages import bugs, traps
from conformance.deviations.known import load
from conformance.zoo.registry import all_bugs, beginnings_of_parts
from mha.cli.main import main
from mha.learn.exercises import all_exercises
from mha.phrases.said import CONCEPTS
from mha.phrases.table import NATIVES, warnings_of
from mha.phrases.text import lines_of, words_of
from tests.docs.conftest import ROOT

pytestmark = pytest.mark.same_on_newest  # tables and pages; no framework takes part


def test_every_deviation_is_a_card(site):
    page = (site / "traps.html").read_text()
    missing = [entry.id for entry in load().entries if f'id="{entry.id}"' not in page]
    assert missing == []
    assert set(traps.WORST) <= {entry.id for entry in load().entries}


def test_every_bug_of_the_zoo_stands_at_its_stage_or_with_its_part(site):
    stages, definition = ((site / f"{name}.html").read_text() for name in ("stages", "definition"))
    found = definition.partition('<section id="rotary-positions">')[2]
    rotary, _, norm = found.partition('<section id="query-key-norm">')
    parts = {"rotary": rotary, "query_key_norm": norm}
    for bug in all_bugs():
        place = bugs.place_of(bug)
        if place in beginnings_of_parts():
            text = parts[place]
        else:
            text = stages.partition(f'<section id="{place}">')[2].partition("</section>")[0]
        assert f">{bug.id}<" in text, bug.id


def test_every_exercise_stands_on_the_page_of_exercises(site):
    page = (site / "learn.html").read_text()
    for one in all_exercises(("numpy",)):
        name = re.sub("-in-numpy$", "-in-...", one.name)
        assert re.search(rf"<td><p><code[^>]*><span[^>]*>{re.escape(name)}</span>", page), name


def test_the_reference_has_every_public_name_and_command(site):
    page, layers, commands = ((site / f"{name}.html").read_text() for name in ("api", "layers", "api"))
    for package in ("mha_core", "mha", "conformance.subjects"):
        for name in import_module(package).__all__:
            assert f'id="{package}.{name}"' in page
    outlines = re.sub(r"<[^>]+>", "", layers)
    for backend in common.FRAMEWORKS:
        source = (ROOT / "backends" / backend / "__init__.py").read_text()
        for name in re.findall(r'^    "(\w+)",$', source, re.MULTILINE):
            assert len(re.findall(rf"\b(?:class|def) {name}\b", outlines)) == len(common.FRAMEWORKS), (backend, name)
    for name in main.commands:
        assert f'<section id="mha-{name}' in commands


def test_the_lesson_on_a_port_shows_the_example_of_the_readme(site):
    page = re.sub(r"<[^>]+>", "", (site / "port.html").read_text())
    for line in ("import numpy as np", "(scale-query-dim)", "def softmax(scores, mask)"):
        assert line in page


def test_the_phrase_book_of_layers_has_every_statement_and_every_pair(site):
    page = (site / "phrasebook.html").read_text()
    assert len(page.encode()) < 300_000
    text = html.unescape(re.sub(r"<wbr>|</?span[^>]*>", "", page))
    for native in NATIVES.values():
        for concept, heading in CONCEPTS.items():
            part = text.partition(f"<h3>{html.unescape(heading)}<")[2].partition("<h3>")[0]
            mine = [cell for cell in re.findall(r"<article.*?</article>", part, re.DOTALL) if native.id in _ids(cell)]
            assert len(mine) == 1, (native.id, concept)
            for line in [*lines_of(native, concept), words_of(native, concept)]:
                assert line in mine[0], (native.id, concept, line)
            warned = warnings_of(native, concept)
            for entry in warned:
                assert f'"traps.html#{entry.id}"' in mine[0], (native.id, concept)
            assert mine[0].partition("<details>")[0].count("traps.html#") == min(len(warned), 2), (native.id, concept)
    pairs = [pair for found in re.findall(r'data-pairs="([^"]*)"', page) for pair in found.split()]
    assert sorted(pairs) == sorted(f"{old}/{new}" for old, new in permutations(NATIVES, 2))


def _ids(cell: str) -> list[str]:
    return re.findall(r'data-of="([^"]*)"', cell)[0].split()
