"""docs/atlas.md and its JSON: one is made of the other, and the installed engines still answer so."""

import json
from pathlib import Path

import pytest

from conformance.deviations.entry import installed
from conformance.workers.interpreters import Settings
from mha.atlas.engine import ENGINES
from mha.atlas.page import answered, page
from mha.atlas.questions import QUESTIONS, abouts
from mha.atlas.run import changes, entry_of, whole
from tests.mha.atlas import FOOT, HEAD
from tests.mha.schemas.test_schemas import check_form

DOCS = Path(__file__).parents[3] / "docs"
KEPT = json.loads((DOCS / "_data/atlas.json").read_text("utf-8"))
RAN = {one["id"]: one for one in KEPT["engines"] if not one["why"]}


def test_the_page_is_made_of_the_json():
    check_form("atlas", KEPT)
    assert (DOCS / "atlas.md").read_text("utf-8") == page(KEPT)


def test_the_page_on_layers_is_made_of_its_json():
    kept = json.loads((DOCS / "_data/atlas-layers.json").read_text("utf-8"))
    check_form("atlas", kept)
    assert (DOCS / "atlas-layers.md").read_text("utf-8") == page(kept, HEAD, FOOT)
    assert all(one["why"].startswith("off by ") for one in kept["engines"] if one["why"])


def test_it_is_of_these_engines_and_questions_and_most_are_answered():
    assert [one["id"] for one in KEPT["engines"]] == list(ENGINES)
    assert KEPT["questions"] == whole([])["questions"]
    assert len(abouts()) == 14
    assert len(RAN) >= 14
    cells = [cell for one in RAN.values() for cell in one["cells"]]
    assert answered(cells) >= 0.6 * len(cells)
    assert all(len(one["cells"]) == len(QUESTIONS) for one in RAN.values())


@pytest.mark.nightly("the atlas says what engines do: each answers as it is kept")
@pytest.mark.parametrize("id", RAN)
def test_an_engine_answers_as_it_is_kept(id):
    old = RAN[id]
    here = {package: installed(package) for package in old["versions"]}
    if here != old["versions"]:
        pytest.skip(f"kept of {old['versions']}, here are {here}")
    found = list(changes({"engines": [old]}, whole([entry_of(ENGINES[id], (), Settings(), 60.0)])))
    assert [one for one in found if not one.startswith("keras-tf float16-sum:")] == []  # by the processor, as is said
