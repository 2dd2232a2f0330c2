"""Where the tables of known deviations stand, and what they call a rule."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from conformance.deviations.known import ENTRY_POINT_GROUP, tables
from conformance.deviations.table import read
from mha_core import SpecError
from mha_core.reference.rules import RULES

ROOT = Path(__file__).parents[3]

ENTRY = """
[[deviation]]
id = "empty-row-is-mean"
subject = "theirs:Layer"
cases = ["ragged-square"]
arrays = ["output"]
summary = "The mean of all values."
definition = "{definition}"
reason = "A softmax over a fill value."
link = "https://example.org/issues/1"
versions = ["numpy>=1"]
"""


def test_the_projects_tables_refer_to_the_rules_by_id_and_stand_with_their_owners():
    assert len(tables()) == 5
    for path in tables():
        owner = path.relative_to(ROOT).parent.as_posix().replace("/", ".")
        for entry in tomllib.loads(path.read_text())["deviation"]:
            assert entry["definition"] in RULES, entry["id"]
            assert entry["subject"].startswith(f"{owner}."), entry["id"]


def test_a_definition_is_a_rule_or_a_sentence():
    (entry,) = read(ENTRY.format(definition="empty-row"), source="theirs.toml")
    assert entry.definition == RULES["empty-row"].plain
    (entry,) = read(ENTRY.format(definition="It is 0."), source="theirs.toml")
    assert entry.definition == "It is 0."
    with pytest.raises(SpecError, match=r"must be the id of a rule \(head-order, .*\) or a sentence. Got 'x'"):
        read(ENTRY.format(definition="x"), source="theirs.toml")


def test_a_package_without_its_table_is_named(monkeypatch):
    point = EntryPoint("theirs", "mha_core.call", ENTRY_POINT_GROUP)
    monkeypatch.setattr("conformance.deviations.known.entry_points", lambda group: [point])
    with pytest.raises(SpecError, match=r"'mha_core.call', an entry point of 'mha.deviations', has no deviations.toml"):
        tables()
