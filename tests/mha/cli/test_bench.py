"""`mha bench`: what it refuses before it works, and one small measurement."""

from __future__ import annotations

import importlib.util
import json

import jsonschema
import pytest
from click.testing import CliRunner

from mha.bench import machine
from mha.bench.results import to_results, write
from mha.cli.main import main
from mha.schemas import schema
from tests.mha.bench.made_up import entry, measured


def bench(*arguments):
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


@pytest.fixture
def file(tmp_path):
    results = to_results(measured(), threads=2, seconds=0.5, date="2025-03-04T05:06:07+00:00")
    write(tmp_path / "results.json", results)
    return tmp_path / "results.json"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "pytroch"], "no benchmarks for backend 'pytroch' (there are: jax, mxnet, tf, torch)"),
        (["--setting", "big"], "setting 'big' is not known (known: short"),
        (["--length", "0"], "a length must be at least 1. Got 0."),
        (["--length", "many"], "'many' is no list of integers"),
        (["--dtype", "float8"], "float8"),
        (["--seconds", "0"], "--seconds must be more than 0. Got 0."),
        (["--threads", "100000"], "--threads must be at most"),
        (["--json", "no/such/folder.json"], "--json needs an existing folder"),
        (["--plots", "no/such/folder"], "--plots needs an existing folder"),
        (["--render", "no/such/file.json"], "can't be read"),
        (["--render", "x.json", "--setting", "long"], "--render measures nothing: leave out --setting"),
    ],
)
def test_mistakes_are_told_before_anything_runs(monkeypatch, arguments, message):
    monkeypatch.setattr("mha.bench.run.run_worker", lambda *_: pytest.fail("it measured"))
    result = bench(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_plots_without_matplotlib_are_refused(monkeypatch, tmp_path):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else there(name))
    result = bench("--plots", tmp_path)
    assert result.exit_code == 2
    assert "pip install 'mha-parity[bench]'" in result.output


def test_a_backend_that_is_asked_for_must_be_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = bench("--backend", "jax")
    assert result.exit_code == 2
    assert "needs the package 'jax', which is not installed" in result.output


def test_render_shows_a_file_again(file, tmp_path):
    result = bench("--render", file, "--markdown", "--plots", tmp_path)
    assert result.exit_code == 0
    assert "| (1, 64, 512, 8), forward | 0.50 (10.0) | no peer (10.0) |" in result.output
    assert (tmp_path / "cpu-float32-forward.svg").exists()
    assert "Slow" in bench("--render", file, "--details").output


def test_what_failed_makes_the_status_2(file):
    results = json.loads(file.read_text())
    results["rows"][0]["contestants"].append(
        {**entry("Broken", left_out="failed: E", failed=True), "ratio": None, "share": None}
    )
    file.write_text(json.dumps(results))
    result = bench("--render", file)
    assert result.exit_code == 2
    assert "swift, length-64, forward: Broken failed: E" in result.output


def test_a_worker_is_held_to_its_threads():
    environment = machine.environment(3)
    assert {environment[name] for name in machine.THREAD_VARIABLES} == {"3"}
    assert 1 <= machine.cores() == machine.describe()["cores"]


@pytest.mark.same_on_newest  # PyTorch's release is the same there
def test_one_small_measurement(backend_names, tmp_path):
    backend = sorted(backend_names)[-1]  # torch, where it is there: it starts fast
    path = tmp_path / "results.json"
    given = ("--length", "3,5", "--seconds", "1e-6", "--direction", "forward", "--threads", 1, "--json", path)
    result = bench("--backend", backend, *given, "--plots", tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    jsonschema.validate(found, schema("bench"))
    assert list(found["frameworks"]) == [backend]
    assert found["threads"] == 1
    assert [row["setting"]["length"] for row in found["rows"]] == [3, 5]
    assert all(row["contestants"][0]["ratio"] > 0 for row in found["rows"])
    assert (tmp_path / "cpu-float32-forward.svg").exists()
