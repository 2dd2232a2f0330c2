"""The table is read strictly: a wrong entry is refused by file, entry and field, and the project's own is right."""

import ast
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import conformance
from conformance.cases.table import select
from conformance.deviations.entry import Deviation
from conformance.deviations.known import load
from conformance.deviations.table import GRADIENTS, read
from mha_core import SpecError
from tests.conformance.deviations.listed_layer import ENTRY, toml

ROOT = Path(conformance.__file__).parent.parent


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"summary": None}, "entry 1 ('empty-row-is-mean') lacks 'summary', which every entry has"),
        ({"sumary": "x"}, "entry 1 ('empty-row-is-mean') has the unknown field 'sumary' (known: id, subject,"),
        ({"id": "Not Kebab"}, "entry 1 ('Not Kebab'): id must be kebab-case"),
        ({"id": 7}, "entry 1: id must be a text. Got 7."),
        ({"reason": " "}, "reason must be a text. Got ' '."),
        ({"subject": "mine.py"}, "subject must be MODULE:NAME. Got 'mine.py'."),
        ({"cases": ["prime", "primes"]}, "cases holds 'primes', which is not known (`mha check --list` lists them)"),
        ({"cases": []}, "cases must be a list of texts. Got []."),
        ({"cases": "prime"}, "cases must be a list of texts. Got 'prime'."),
        ({"cases": ["prime", "prime"]}, "cases holds 'prime' twice"),
        ({"cases": ["pri*"]}, "cases holds 'pri*', which is not known"),
        ({"dtypes": ["float31"]}, "dtypes holds 'float31', which is not known (float64, float32,"),
        ({"arrays": ["outputs"]}, "arrays holds 'outputs', which is not known (stages, gradients.NAME, gradients.*"),
        ({"arrays": ["gradients.q_proj"]}, "arrays holds 'gradients.q_proj', which is not known"),
        ({"arrays": None}, "has 'cases' and lacks 'arrays'; it must have cases and arrays, or neither"),
        ({"cases": None, "arrays": None, "dtypes": ["float32"]}, "has 'dtypes' and lacks 'cases'; it must have"),
        ({"probe": "mine:probe"}, "has the unknown field 'probe'"),
        ({"link": "pytorch#1"}, "link must be a URL, https://... Got 'pytorch#1'."),
        ({"versions": "torch 2"}, "versions must be a package and the versions in which it happens"),
        ({"versions": "torch"}, "versions must be a package and the versions in which it happens"),
        ({"versions": ["torch>=2", 3]}, "each of versions must be a text. Got 3."),
        ({"versions": "torch[gpu]>=2"}, "and nothing else. Got 'torch[gpu]>=2'."),
    ],
)
def test_a_wrong_entry_is_refused_by_file_entry_and_field(changes, message):
    entry = {name: value for name, value in {**ENTRY, **changes}.items() if value is not None}
    with pytest.raises(SpecError) as error:
        read(toml(entry), source="mine.toml")
    assert str(error.value).startswith("mine.toml: entry 1")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[deviation", "mine.toml is no TOML:"),
        ("[deviation]\nid = 'x'", "mine.toml: deviation must be an array of tables"),
        ("[[deviations]]\nid = 'x'", "mine.toml holds 'deviations'; it may hold [[deviation]] alone"),
        (toml(ENTRY, ENTRY), "mine.toml: two entries have the id 'empty-row-is-mean'; it must be unique"),
    ],
)
def test_a_wrong_file_is_refused(text, message):
    with pytest.raises(SpecError, match="^mine.toml") as error:
        read(text, source="mine.toml")
    assert message in str(error.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SpecError, match="nothing.toml can't be read as a table of deviations"):
        load(tmp_path / "nothing.toml")


def test_a_table_of_ones_own_is_added_to_the_projects(table):
    assert load(table(ENTRY)).entries == (*load().entries, *read(toml(ENTRY), source=""))


def test_an_entry_reads_back_as_it_was_written():
    (entry,) = read(toml({**ENTRY, "versions": ["torch>=2", "numpy<2"], "dtypes": ["float32"]}), source="")
    assert entry == Deviation(
        **{name: ENTRY[name] for name in ("id", "subject", "summary", "definition", "reason", "link")},
        versions=("torch>=2", "numpy<2"),
        cases=("valid-lens-per-query", "one-key"),
        dtypes=("float32",),
        arrays=("weights", "output"),
    )
    assert entry.requirements == (Requirement("torch>=2"), Requirement("numpy<2"))


def test_gradients_are_named_as_the_suite_names_them():
    named = {f"gradients.{name}" for case in select(()) for name in case.build().weights if not case.expensive}
    assert named <= set(GRADIENTS)


def test_every_layer_in_the_projects_table_exists():
    """Looked up in the source, so that it holds in an environment without the frameworks too."""
    for entry in load().entries:
        module, _, name = entry.subject.partition(":")
        tree = ast.parse((ROOT / Path(*module.split("."))).with_suffix(".py").read_text())
        defined = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        assigned = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        defined |= {target.id for target in assigned if isinstance(target, ast.Name)}
        assert name in defined, entry.id


def test_the_projects_table_says_enough():
    for entry in load().entries:
        assert entry.frameworks
        assert entry.subject.startswith(("backends.", "mha.recipes.")), entry.id
        assert len(entry.summary) > 20, entry.id
        assert len(entry.definition) > 10, entry.id
