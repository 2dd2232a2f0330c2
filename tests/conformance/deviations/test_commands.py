"""The commands and pytest with a table: `mha check` obeys it, `mha deviations` shows it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import conformance
from mha.cli.suite.check import check
from mha.cli.suite.deviations import deviations
from tests.conformance.deviations.listed_layer import ENTRY

pytestmark = pytest.mark.same_on_newest  # the command line and the plugin, with a layer of NumPy

ROOT = Path(conformance.__file__).parent.parent


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
    found = invoke(check, *options, "-v")
    assert found.exit_code == status, found.output
    assert words in found.output


def test_check_of_nothing_but_what_is_known_exits_0(table):
    options = ["--subject", ENTRY["subject"], "--deviations", table(ENTRY), "--dtype", "float32", "--case", "one-key"]
    found = invoke(check, *options, "-v")
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


def test_a_part_of_ids_is_answered_with_the_pattern_that_fits_them():
    found = invoke(deviations, "keras")
    assert found.exit_code == 2
    assert re.search(r"id 'keras' fits no deviation; .*; did you mean '\*keras\*', which fits \d\d\?", found.output)


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


@pytest.mark.nightly("known deviations are expected", every=2)
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
    command = [sys.executable, "-m", "pytest", *plugins, *options, "--mha-no-diagnosis"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert f"{summary} in" in done.stdout, done.stdout + done.stderr
    assert words in done.stdout
    assert done.returncode == (1 if "failed," in summary else 0)
