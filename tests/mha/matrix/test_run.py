"""A set from its requirements to its row, in processes of its own; nothing is installed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from mha.matrix import run as running
from mha.matrix.request import ReleaseSet, Request
from mha.matrix.run import Options, copy_project, find_uv, run_set
from mha_core import SpecError
from tests.mha.matrix.made_up import release_set, result, uv

REQUEST = Request((), ("one-key",), ("float32",))


@pytest.fixture(autouse=True)
def caches(monkeypatch, tmp_path):
    """The folders of what is kept and of environments."""
    monkeypatch.setenv("MHA_COMPILE_CACHE", str(tmp_path / "kept"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "kept" / "matrix", tmp_path / "cache"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """One for all tests, as for all sets: what Python compiles of it is kept."""
    folder = tmp_path_factory.mktemp("copy")
    copy_project(folder)
    return folder


def run(folder, copy, one, **options):
    return list(run_set(one, REQUEST, Options((str(folder / "uv"),), copy, **options)))


# The releases of PyTorch and TensorFlow are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
def test_a_set_is_measured_once_in_its_own_environment(backend_name, copy, tmp_path, caches):
    made = uv(tmp_path / "made", venv=f"echo made >> {tmp_path}/log")
    one = release_set(backends=(backend_name,))
    (row,) = run(made, copy, one)
    assert row.problem == ""
    assert (row.problems, row.lacking) == ([], [])
    assert row.release
    assert row.packages["mha-parity"]
    assert {backend_name, f"{backend_name} fast"} <= {result["subject"] for result in row.results}
    assert any(f"--subject backends.{backend_name}.native." in result["selector"] for result in row.results)
    assert {result["case"] for result in row.results} == {"one-key"}
    assert row.probes
    assert {probe["outcome"] for probe in row.probes} <= {"happens", "gone"}

    # Its environment is gone, and its result is kept: not a single program is started for it again.
    assert list(caches[1].glob("mha-matrix-*")) == []
    (again,) = run(made, copy, replace(one, name="another name"))
    assert again.measured() == row.measured()
    assert again.name == "another name"
    assert (tmp_path / "log").read_text() == "made\n"


FOUND = {"python": "3.11.7", "versions": {"torch": "2.5.1"}, "packages": {"torch": "2.5.1"}, "lacking": []}


def says(*lines, then=":"):
    """A shell command that prints lines of JSON, and then runs another."""
    return "\n".join([*(f"echo {shlex.quote(json.dumps(line))}" for line in lines), then])


def finds(*layers, probes=":"):
    """A shell command that stands for `mha.matrix.inside`; `probes` stands for what runs after the layers are found."""
    return says({"problem": "", "measured": FOUND, "layers": layers}, then=probes)


def reports(*results, could_not_run=()):
    """A shell command that writes the report of `mha check`."""
    report = {"results": results, "could_not_run": could_not_run}
    return f'echo {shlex.quote(json.dumps(report))} > "$report"'


def test_what_ends_its_process_costs_only_itself(copy, tmp_path):
    check = f"""case "$*" in
        *a:Bad*) kill -SEGV $$ ;;
        *a:Odd*) {reports(could_not_run=["subject 'a:Odd': its process was ended"])} ; exit 2 ;;
        *a:Good*) {reports(result("causal", "output"))} ; exit 1 ;;
        *) {reports()} ;;
    esac"""
    inside = finds("a:Bad", "a:Odd", "a:Good", probes="exit 3")
    (row,) = run(uv(tmp_path / "made", inside=inside, check=check), copy, release_set())
    assert row.problems == [
        "a:Bad: it was ended by SIGSEGV",
        "subject 'a:Odd': its process was ended",
        "probes: it ended with status 3",
    ]
    assert [found["case"] for found in row.results] == ["causal"]
    assert row.versions == {"torch": "2.5.1"}


def test_the_suite_is_asked_for_the_cases_and_dtypes_of_the_request(copy, tmp_path):
    made = uv(tmp_path / "made", inside=finds("a:B", "a:C"), check=f'echo "$@" >> {tmp_path}/log; {reports()}')
    run(made, copy, release_set(), time_limit=7.0)
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert (
        " check --backend torch --device cpu --subject a:B --subject a:C --no-diagnosis --time-limit 7 --case" in line
    )
    assert "--case one-key --dtype float32 --json" in line


def test_a_backend_that_cannot_be_imported_costs_its_set_and_is_tried_again(copy, tmp_path, caches):
    made = uv(tmp_path / "made", inside=says({"problem": "ImportError: no libcudart.so"}))
    for _ in range(2):
        (row,) = run(made, copy, release_set())
        assert row.problem == "torch can't be used: ImportError: no libcudart.so"
    assert not caches[0].exists()


def test_a_process_that_ends_before_it_says_anything_costs_its_set(copy, tmp_path):
    (row,) = run(uv(tmp_path / "made", inside="kill -SEGV $$"), copy, release_set())
    assert row.problem == "torch can't be used: it was ended by SIGSEGV"


def test_requirements_that_cannot_be_installed_cost_every_backend_of_the_set(copy, tmp_path, caches):
    rows = run(uv(tmp_path / "made"), copy, release_set("nowhere==1", backends=("torch", "jax")))
    assert [row.backend for row in rows] == ["torch", "jax"]
    said = "can't be installed: it ended with status 1: error: No solution found: cause: there is no nowhere"
    assert {row.problem for row in rows} == {said}
    assert list(caches[1].iterdir()) == []


def test_again_measures_again_and_so_does_another_request(copy, tmp_path, monkeypatch):
    made = uv(tmp_path / "made", venv=f"echo run >> {tmp_path}/log", inside=finds(), check=reports())
    for again in (False, False, True):
        run(made, copy, release_set(), again=again)
    assert (tmp_path / "log").read_text().count("run") == 2
    run(made, copy, release_set("torch==2.5.0"))
    run(made, copy, release_set(), time_limit=5.0)
    monkeypatch.setattr(running, "source_hash", lambda *packages: "other code")
    run(made, copy, release_set())
    assert (tmp_path / "log").read_text().count("run") == 5


def test_the_copy_has_the_packages_and_the_metadata(copy):
    assert (copy / "mha_core" / "__init__.py").is_file()
    assert "mha.backends" in next(copy.glob("*.dist-info/entry_points.txt")).read_text()


def test_an_interpreter_that_is_too_old_is_refused_in_one_line():
    text = "import sys; sys.version_info = (3, 9, 0); from mha.matrix.inside import main; main()"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (1, "this project needs Python 3.11 or newer. Got 3.9.\n")


def test_uv_is_found_on_the_path_or_among_the_packages(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(uv(tmp_path / "made")))
    assert find_uv() == (str(tmp_path / "made" / "uv"),)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(running, "find_spec", lambda name: object())
    assert find_uv() == (sys.executable, "-m", "uv")
    monkeypatch.setattr(running, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"uv, which makes the environments, is not installed: pip install"):
        find_uv()


@pytest.mark.skipif(not shutil.which("uv") and not running.find_spec("uv"), reason="uv is in the extra `matrix`")
def test_uv_itself_says_in_one_line_what_it_does_not_find(copy, tmp_path, monkeypatch, caches):
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    for name in [name for name in os.environ if name.startswith("UV_") and "INDEX" in name]:
        monkeypatch.delenv(name)
    sets = [release_set("a-package-that-nobody-made==1"), ReleaseSet("two", ("numpy",), ("torch",), "/no/such/python")]
    found = [row.problem for one in sets for row in run_set(one, REQUEST, Options(find_uv(), copy))]
    assert "a-package-that-nobody-made was not found" in found[0] or "no solution" in found[0].lower()
    assert "/no/such/python" in found[1]
    assert all("\n" not in text and text.startswith("can't be installed: ") for text in found)
    assert list(caches[1].iterdir()) == []
