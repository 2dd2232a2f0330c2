"""The pytest plugin, as somebody else's repository uses it: pytest in a process of its own, in another folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_on_newest  # it is about pytest

ROOT = str(Path(__file__).parents[2])

SUBJECT = """
from mha_core import AttentionInputs, AttentionMask, reference

def right(weights, queries, keys, values, mask, *, config):
    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=mask))
    return reference.run(config, weights, inputs).output.astype(queries.dtype)

def wrong(weights, queries, keys, values, mask, *, config):
    if config.head_dim == 1:
        raise ValueError("heads of width 1\\nare not for me")
    return right(weights, queries, keys, values, mask, config=config) * 1.001

def ends(weights, queries, keys, values, mask, *, config):
    if config.head_dim == 1:
        import os
        os._exit(3)
    return right(weights, queries, keys, values, mask, config=config)

class Slow:
    def prepare(self, config, weights):
        import time
        time.sleep(30)
"""
CASES = ("--mha-case", "prime", "--mha-case", "head-dim-1", "--mha-case", "scores-shifted")
OF_OURS = ("Traceback", "conformance/", "run_case")
"""What would show where we failed, and nobody wants to read of a layer that did."""


@pytest.fixture
def run(tmp_path):
    """Run pytest with the plugin, whether or not its entry point is installed."""
    (tmp_path / "mine.py").write_text(SUBJECT)

    def run(*arguments: str) -> tuple[int, str]:
        plugin = ("-p", "conformance.plugin", "-p", "no:cacheprovider")
        command = [sys.executable, "-m", "pytest", *plugin, "--color=no", *arguments]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
        environment.pop("PYTEST_ADDOPTS", None)
        result = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        return result.returncode, result.stdout + result.stderr

    return run


def test_each_case_and_dtype_is_one_test_in_a_folder_without_tests(run):
    code, output = run("--mha-subject", "mine:right", *CASES, "-v", "-rs", "-W", "error")
    assert code == 0, output
    assert "collected 6 items" in output
    named = [line.split()[0] for line in output.splitlines() if "%]" in line]
    assert named == [
        f"mine:right::{case}[{dtype}]"
        for dtype in ("float64", "float32")
        for case in ("prime", "scores-shifted", "head-dim-1")
    ]
    assert "4 passed, 2 skipped" in output
    reason = "scores-shifted[float64] cannot express: additive bias (the function has no parameter bias)"
    assert f"SKIPPED [1] mine:right: {reason}" in output


def test_failures_say_what_mha_check_says_and_nothing_else(run):
    code, output = run("--mha-subject", "mine:wrong", *CASES, "--mha-dtype", "float64", "--mha-no-diagnosis")
    assert code == 1
    assert "2 failed, 1 skipped" in output
    assert "wrong float64 on cpu, case prime: different since stage 'output'\n  output differs in 290 of 290" in output
    assert "rerun: mha check --subject mine:wrong --case prime --dtype float64" in output
    assert "wrong float64 on cpu, case head-dim-1: did not run\n  ValueError: heads of width 1 (mine.py:10 in" in output
    assert not [words for words in (*OF_OURS, "diagnosis of") if words in output]


def test_a_subject_that_differs_is_diagnosed_once(run):
    """Unless it is told not to, as above."""
    code, output = run("--mha-subject", "mine:wrong", *CASES)
    assert code == 1
    assert output.count("diagnosis of mine:wrong in float64") == 1
    assert "diagnosis of mine:wrong in float32" not in output
    assert "wrong (float64) raised in 1 case (head-dim-1). Else it differs in the one case: prime." in output
    assert " further calls." in output
    assert not [words for words in OF_OURS if words in output]


def test_a_subject_that_hangs_fails_its_test(run):
    code, output = run("--mha-subject", "mine:Slow", "--mha-case", "prime", "--mha-time-limit", "0.2")
    assert code == 1
    assert "no answer within 0.2 s" in output
    assert "2 failed" in output


@pytest.mark.nightly("a subject that harms its process fails its test", every=2)
@pytest.mark.parametrize("apart", [("--mha-apart",), ("--mha-python", f"mine={sys.executable}")])
def test_a_subject_apart_that_ends_its_process_fails_its_test(run, apart):
    code, output = run("--mha-subject", "mine:ends", *apart, "--mha-dtype", "float64", *CASES)
    assert code == 1, output
    assert "1 failed, 1 passed, 1 skipped" in output  # a plain function can't express shifted scores
    assert "case head-dim-1: did not run" in output
    assert "its process ended itself with status 3" in output


def test_beside_other_tests_and_chosen_by_mark_and_keyword(run, tmp_path):
    (tmp_path / "test_mine.py").write_text("def test_own(): pass")
    options = ("--mha-subject", "mine:right", "--mha-case", "prime", "--strict-markers", "-v")
    assert "3 passed" in run(*options)[1]
    code, output = run(*options, "-m", "mha", "-k", "float32")
    assert code == 0, output
    assert "1 passed, 2 deselected" in output
    assert "test_own" in run(*options, "-m", "not mha")[1]


@pytest.mark.nightly("pytest's own options do with the plugin what they do")
def test_last_failed_runs_what_failed(run):
    options = (
        "--mha-subject",
        "mine:wrong",
        "--mha-case",
        "prime",
        "--mha-case",
        "scores-shifted",
        "--mha-no-diagnosis",
        "-p",
        "cacheprovider",
    )
    run(*options)
    assert "2 failed, 2 deselected" in run(*options, "--last-failed")[1]


def test_with_xdist(run):
    code, output = run("--mha-subject", "mine:right", *CASES, "-p", "xdist.plugin", "-n", "2", "-rs")
    assert code == 0, output
    assert "4 passed, 2 skipped" in output
    assert "SKIPPED [1] mine:right: scores-shifted[float32] cannot express: additive bias" in output


def test_dtypes_that_the_subject_lacks_are_listed_also_when_quiet(run):
    options = ("--mha-subject", "mine:right", "--mha-case", "prime", "--mha-dtype", "float16", "-q")
    code, output = run(*options, "--mha-dtype", "float32")
    assert code == 0
    assert "1 passed" in output
    assert "mha: left out: subject 'mine:right' does not compute in float16 (it does in: float64, float32)" in output
    code, output = run(*options)
    assert code == 4
    assert "ERROR: nothing to run:" in output


@pytest.mark.nightly("bad options end the run before any test", every=4)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mha-subject", "mine"), "ERROR: subject 'mine': name what is in it, too: write mine:"),
        (("--mha-subject", "mine:left"), "ERROR: subject 'mine:left': mine has no 'left'"),
        (("--mha-subject", "mine:right", "--mha-case", "primes"), "ERROR: case 'primes' is not known"),
        (("--mha-subject", "mine:right", "--mha-dtype", "float8"), "ERROR: dtype 'float8' is not known"),
        (("--mha-subject", "mine:right", "--mha-time-limit", "-1"), "ERROR: the time limit must be a positive number"),
        (("--mha-subject", "mine:right", "--mha-python", "their=python"), "ERROR: --mha-python their=python: 'their'"),
        (("--mha-case", "prime"), "ERROR: --mha-case needs --mha-subject"),
    ],
)
def test_bad_options_end_the_run_before_any_test(run, tmp_path, arguments, message):
    (tmp_path / "test_mine.py").write_text("def test_own(): raise SystemExit('it ran')")
    code, output = run(*arguments)
    assert code == 4
    assert message in output
    assert "it ran" not in output


def test_without_the_option_nothing_is_collected_changed_or_imported(run, tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "import sys\ndef test_own(): assert not {'numpy', 'rich', 'conformance.runner', 'mha_core'} & set(sys.modules)"
    )
    code, output = run()
    assert code == 0, output
    assert "1 passed" in output
    lines = [line for line in output.splitlines() if not line.startswith("plugins: ")]
    assert "mha" not in "\n".join(lines).replace(str(tmp_path), "")


# A project with packages of our names -------------------------------------------------------------------------------

THEIRS = {
    "conformance/__init__.py": "theirs = 1",
    "backends/__init__.py": "theirs = 2",
    "mha.py": SUBJECT,
    "test_theirs.py": "import backends, conformance, mha\n\ndef test():\n    assert backends.theirs == 2\n",
}


@pytest.fixture
def their_project(tmp_path):
    for name, text in THEIRS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def run(*command: str) -> tuple[int, str]:
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200", "PYTHONPATH": ROOT}
        result = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return result.returncode, result.stdout + result.stderr

    return run


PYTEST = ("-m", "pytest", "-p", "mha_parity.pytest_plugin", "-p", "no:cacheprovider", "--color=no", "-q")


def test_the_plugin_does_not_harm_a_project_that_has_packages_of_our_names(their_project):
    code, output = their_project(*PYTEST)
    assert code == 0, output
    assert "1 passed" in output


def test_a_package_that_hides_the_clones_is_named_where_the_suite_is_used(their_project, tmp_path):
    code, output = their_project(*PYTEST, "--mha-subject", "mine:right")
    assert code == 4
    assert f"the package 'backends' that Python finds is {tmp_path / 'backends' / '__init__.py'}" in output
    assert "INTERNALERROR" not in output
    script = "from mha_parity.script import run; run()"
    code, output = their_project("-c", script, "check", "--list")
    assert (code, output.count("Error: the package 'backends' that Python finds is")) == (2, 1)
