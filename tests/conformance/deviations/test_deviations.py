"""Deviations: the table is read strictly, results are judged with it, and `mha deviations` shows and probes it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

import conformance
from conformance.cases.table import select
from conformance.deviations.entry import Deviation, installed
from conformance.deviations.known import load, with_known
from conformance.deviations.table import GRADIENTS, read
from conformance.reports import text as report
from conformance.reports.html import render
from conformance.reports.html_view import groups_of, result_view
from conformance.reprobe import probe_all
from conformance.runner import run_case
from conformance.subjects.load import load_subject
from mha.cli.suite.check import check
from mha.cli.suite.deviations import deviations
from mha_core import STAGES, SpecError
from mha_core.files.writing import jsonable

ROOT = Path(conformance.__file__).parent.parent
SCHEMA = json.loads((ROOT / "conformance" / "reports" / "schema.json").read_text())

LAYER = """
import numpy as np
from mha_core import AttentionInputs, AttentionMask, reference

def mean_of_values(weights, queries, keys, values, mask, *, config):
    '''A row without an allowed key is uniform instead of empty.'''
    empty = ~mask.any(axis=-1, keepdims=True)
    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=mask | empty))
    trace = reference.run(config, weights, inputs)
    dtype = queries.dtype
    return {"weights": trace.weights.astype(dtype), "output": trace.output.astype(dtype)}

def raises(weights, queries, keys, values, mask, *, config):
    raise RuntimeError("not today")

def seen():
    return "saw 0.25 instead of 0"

def unseen():
    return None

def mistaken():
    return 3
"""

ENTRY = {
    "id": "empty-row-is-mean",
    "subject": "their_layer:mean_of_values",
    "summary": "gives the mean of all values",
    "definition": "gives 0",
    "reason": "softmax over equal fill values",
    "link": "https://example.org/issues/1",
    "versions": "numpy>=1",
    "cases": ["valid-lens-per-query", "one-key"],
    "arrays": ["weights", "output"],
}


def toml(*entries: dict) -> str:
    return "\n".join(
        "\n".join(["[[deviation]]", *(f"{name} = {json.dumps(value)}" for name, value in entry.items())])
        for entry in entries
    )


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Write a table next to the module that it is about; gives its path."""
    (tmp_path / "their_layer.py").write_text(LAYER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_layer", raising=False)

    def write(*entries: dict) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(toml(*entries))
        return path

    yield write
    sys.modules.pop("their_layer", None)


def result_of(case: str, path: Path, name: str = "mean_of_values", dtype: str = "float64"):
    return run_case(select((case,))[0], load_subject(f"their_layer:{name}", dtype), load(path))


# Judging -------------------------------------------------------------------------------------------------


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
    (found,) = probe_all([entry for entry in load(path).entries if entry.id == ENTRY["id"]])
    assert (found.outcome, found.seen) == ("not here", "happens only where the processor has no fused product")


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


# The table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"summary": None}, "entry 1 ('empty-row-is-mean') lacks 'summary', which every entry has"),
        ({"sumary": "x"}, "entry 1 ('empty-row-is-mean') has the unknown field 'sumary' (known: id, subject,"),
        ({"id": "Not Kebab"}, "entry 1 ('Not Kebab'): id must be kebab-case"),
        ({"id": 7}, "entry 1: id must be a text. Got 7."),
        ({"reason": " "}, "reason must be a text. Got ' '."),
        ({"subject": "mine.py"}, "subject must be package.module:name. Got 'mine.py'."),
        ({"cases": ["prime", "primes"]}, "cases holds 'primes', which is not known (`mha cases` lists them)"),
        ({"cases": []}, "cases must be a list of texts. Got []."),
        ({"cases": "prime"}, "cases must be a list of texts. Got 'prime'."),
        ({"cases": ["prime", "prime"]}, "cases holds 'prime' twice"),
        ({"cases": ["pri*"]}, "cases holds 'pri*', which is not known"),
        ({"dtypes": ["float31"]}, "dtypes holds 'float31', which is not known (float64, float32,"),
        ({"arrays": ["outputs"]}, "arrays holds 'outputs', which is not known (stages, gradients.NAME, gradients.*"),
        ({"arrays": ["gradients.q_proj"]}, "arrays holds 'gradients.q_proj', which is not known"),
        ({"arrays": None}, "lacks 'arrays'; it must have cases and arrays, or a probe"),
        ({"probe": "mine:probe"}, "has 'probe' and 'cases'; it must have a probe, or cases and arrays"),
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


# What this project keeps ---------------------------------------------------------------------------------


def test_every_layer_and_probe_in_the_projects_table_exists():
    """Looked up in the source, so that it holds in an environment without the frameworks too."""
    for entry in load().entries:
        spec = entry.probe or entry.subject
        for where in {spec, entry.subject}:
            module, _, name = where.partition(":")
            tree = ast.parse((ROOT / Path(*module.split("."))).with_suffix(".py").read_text())
            defined = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
            assert name in defined, (entry.id, where)


def test_the_projects_table_says_enough():
    for entry in load().entries:
        assert entry.frameworks
        assert entry.subject.startswith(("backends.", "mha.recipes.")), entry.id
        assert len(entry.summary) > 20, entry.id
        assert len(entry.definition) > 10, entry.id


# Reports -------------------------------------------------------------------------------------------------


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
    (group,) = groups_of([result_view(index, entry) for index, entry in enumerate(whole["results"])], whole["results"])
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


# Commands ------------------------------------------------------------------------------------------------


def invoke(command, *arguments: str):
    return CliRunner().invoke(command, [*map(str, arguments)], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({}, 0, "All 3 results are equal to the reference, but for 2 that deviate as known."),
        ({"arrays": ["weights"]}, 1, "2 of 3 results differ from the reference"),
        ({"cases": ["prime", "one-key", "valid-lens-per-query"]}, 1, "1 of 3 results differ from the reference"),
    ],
)
def test_check_with_a_table_of_ones_own(table, changes, status, words):
    path = table({**ENTRY, **changes})
    cases = [text for case in ("prime", "one-key", "valid-lens-per-query") for text in ("--case", case)]
    options = ["--subject", ENTRY["subject"], "--deviations", path, "--dtype", "float64", *cases]
    found = invoke(check, *options)
    assert found.exit_code == status, found.output
    assert words in found.output


def test_check_of_nothing_but_what_is_known_exits_0(table):
    options = ["--subject", ENTRY["subject"], "--deviations", table(ENTRY), "--dtype", "float32", "--case", "one-key"]
    found = invoke(check, *options)
    assert found.exit_code == 0, found.output
    assert "All 1 results are equal to the reference, but for 1 that deviates as known." in found.output


def test_check_refuses_a_wrong_table_before_anything_runs(table):
    found = invoke(check, "--subject", ENTRY["subject"], "--deviations", table({**ENTRY, "link": "x"}))
    assert found.exit_code == 2
    assert "link must be a URL" in found.output


def test_the_table_is_shown_and_written(table, tmp_path):
    path, out = table(ENTRY), tmp_path / "out.json"
    found = invoke(deviations, "--deviations", path, "--subject", "their_layer:*", "--json", out)
    assert found.exit_code == 0, found.output
    for words in ("empty-row-is-mean", "their_layer:mean", "gives the mean of all values", "gives 0"):
        assert words in found.output
    (entry,) = json.loads(out.read_text())["deviations"]
    assert entry["versions"] == ["numpy>=1"]


def test_one_entry_is_shown_in_full(table):
    found = invoke(deviations, "empty-row-is-mean", "--deviations", table(ENTRY))
    assert found.exit_code == 0, found.output
    for words in ("softmax over equal fill values", "https://example.org/issues/1", "valid-lens-per-query, one-key"):
        assert words in found.output


@pytest.mark.parametrize(
    ("option", "text"), [("--framework", "numpi"), ("--id", "nothing-like-it"), ("--subject", "nothing")]
)
def test_a_filter_that_fits_nothing_is_an_error(option, text):
    found = invoke(deviations, option, text)
    assert found.exit_code == 2
    assert f"{option.removeprefix('--') if option == '--id' else option} {text!r} fits no deviation" in found.output


def test_listing_imports_no_framework():
    code = (
        "import sys; from mha.cli.suite.deviations import deviations\n"
        "try:\n    deviations.main([])\n"
        "finally:\n    print(sorted(set(sys.modules) & {'torch', 'tensorflow', 'keras', 'jax', 'mxnet'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert done.stdout.strip().endswith("[]"), done.stdout


PROBED = {name: ENTRY[name] for name in ("subject", "summary", "definition", "reason", "link", "versions")}


def probe(*entries: dict):
    return {finding.entry.id: finding for finding in probe_all(read(toml(*entries), source=""))}


def test_probing_says_what_it_saw(table):
    table()
    found = probe(
        ENTRY,
        {**ENTRY, "id": "gone", "cases": ["one-key", "prime", "causal"]},
        {**PROBED, "id": "seen", "probe": "their_layer:seen"},
        {**PROBED, "id": "unseen", "probe": "their_layer:unseen"},
        {**PROBED, "id": "mistaken", "probe": "their_layer:mistaken"},
        {**PROBED, "id": "no-probe", "probe": "their_layer:nothing"},
        {**ENTRY, "id": "raises", "subject": "their_layer:raises"},
        {**ENTRY, "id": "other", "versions": "numpy<1"},
        {**ENTRY, "id": "absent", "versions": "no-such-package>=1"},
    )
    assert {name: finding.outcome for name, finding in found.items()} == {
        "empty-row-is-mean": "happens",
        "gone": "gone",
        "seen": "happens",
        "unseen": "gone",
        "mistaken": "failed",
        "no-probe": "failed",
        "raises": "failed",
        "other": "other version",
        "absent": "not installed",
    }
    assert found["empty-row-is-mean"].seen.startswith("valid-lens-per-query, float64: weights differs in")
    assert found["gone"].seen == "not in prime, causal, float64"
    assert found["seen"].seen == "saw 0.25 instead of 0"
    assert "it must return a sentence, or None" in found["mistaken"].seen
    assert "there is no probe their_layer:nothing" in found["no-probe"].seen
    assert "RuntimeError: not today" in found["raises"].seen
    assert found["other"].seen == f"numpy {installed('numpy')}, it is known of numpy<1"
    assert found["absent"].seen == "no-such-package"


@pytest.mark.parametrize(("probe_name", "status"), [("seen", 0), ("unseen", 1), ("mistaken", 2)])
def test_the_exit_status_of_probing(table, tmp_path, probe_name, status):
    path = table({**PROBED, "id": "probed", "probe": f"their_layer:{probe_name}"})
    found = invoke(deviations, "--probe", "probed", "--deviations", path, "--json", tmp_path / "out.json")
    assert found.exit_code == status, found.output
    (entry,) = json.loads((tmp_path / "out.json").read_text())["deviations"]
    assert entry["outcome"] == {0: "happens", 1: "gone", 2: "failed"}[status]
    assert entry["seen"] in found.output


def test_the_stage_named_for_a_gone_deviation_is_one_that_reports_know(table):
    for arrays in (["*"], ["gradients.*"], ["heads"]):
        result = result_of("prime", table({**ENTRY, "cases": ["prime"], "arrays": arrays}))
        assert result.mismatches[0].stage in STAGES


# pytest --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "summary", "words"),
    [
        ({}, "1 passed, 2 xfailed", "one-key[float64] deviates as known: empty-row-is-mean"),
        ({"cases": ["one-key", "prime"]}, "2 failed, 1 xfailed", "'empty-row-is-mean' no longer happens"),
    ],
)
def test_in_pytest_what_is_listed_is_expected_to_fail(table, tmp_path, changes, summary, words):
    path = table({**ENTRY, **changes})
    cases = [text for case in ("prime", "one-key", "valid-lens-per-query") for text in ("--mha-case", case)]
    options = ["--mha-subject", ENTRY["subject"], "--mha-deviations", str(path), "--mha-dtype", "float64", *cases]
    plugins = ["-p", "conformance.plugin", "-p", "no:cacheprovider", "--color=no", "-rx", "-W", "error"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", *plugins, *options]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert f"{summary} in" in done.stdout, done.stdout + done.stderr
    assert words in done.stdout
    assert done.returncode == (1 if "failed," in summary else 0)
