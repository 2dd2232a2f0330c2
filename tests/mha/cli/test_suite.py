"""The `mha` command as a user runs it: its exit status, what it prints, and what it refuses."""

import json

import pytest
from click.testing import CliRunner

from conformance.cases.table import all_cases
from mha.cli.main import main

pytestmark = pytest.mark.same_on_newest  # it is about the command line


def mha(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.nightly("`mha check` is 0 for each backend", but=("torch",))
def test_check_of_equal_backends_exits_0(backend_name, tmp_path):
    path = tmp_path / "report.json"
    result = mha(
        "check", "--backend", backend_name, "--case", "causal-b*", "--case", "trained-first-layer", "--json", str(path)
    )
    assert result.exit_code == 0, result.output
    assert "are equal to the reference" in result.output
    report = json.loads(path.read_text())
    assert report["schema"] == 1
    assert backend_name in report["environment"]["backends"]
    results = report["results"]
    assert {r["status"] for r in results} == {"equal"}
    assert {r["dtype"] for r in results} == {"float64", "float32"}
    assert {r["subject"] for r in results} == {backend_name, f"{backend_name} fast"}
    assert all(0.0 <= ratio <= 1.0 for r in results for ratio in r["ratios"].values())
    trained = [r for r in results if r["case"].startswith("trained") and r["dtype"] == "float64"]
    assert all(distance < 1e-13 for r in trained for distance in r["recorded"].values())


def test_check_of_a_broken_backend_exits_1_and_names_stage_index_and_rerun(monkeypatch):
    pytest.importorskip("torch")
    import backends.torch.ops.scores as scores

    right = scores.dot_score
    monkeypatch.setattr(scores, "dot_score", lambda queries, keys, scale: right(queries, keys, 2.0 * scale))
    result = mha("check", "-b", "torch", "-c", "prime", "-d", "float64")
    assert result.exit_code == 1
    assert "torch float64 on cpu, case prime: different since stage 'scores'" in result.output
    assert "scores differs in 210 of 210 elements (100 %), worst at [" in result.output
    assert "rerun: mha check --backend torch --case prime --dtype float64" in result.output


def test_check_of_a_backend_that_fails_exits_2(monkeypatch):
    pytest.importorskip("torch")
    import backends.torch.layers as layers

    def fail(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(layers, "masked_softmax", fail)
    result = mha("check", "-b", "torch", "-c", "prime", "-d", "float64")
    assert result.exit_code == 2
    assert "case prime: did not run" in result.output
    assert "RuntimeError: no such kernel" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--backend", "pytroch"],
            "backend 'pytroch' is not known (known: jax, mxnet, tf, torch); did you mean torch?",
        ),
        (["--case", "primes"], "case 'primes' is not known"),
        (["--dtype", "float8"], "dtype 'float8' is not known (known: float64, float32, float16, bfloat16)"),
        (["--json", "/no/such/folder/report.json"], "There is no /no/such/folder"),
        (["--json", "/"], "--json must name a file. Got the folder /"),
        (["--backend", "jax", "--device", "tpu:7"], "device 'tpu:7' is not there (there are: cpu"),
    ],
)
def test_bad_arguments_exit_2_before_anything_runs(arguments, message):
    result = mha("check", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Worst error" not in result.output


def test_a_dtype_that_a_backend_lacks_is_listed_not_skipped_in_silence(backend_names):
    if "mxnet" not in backend_names:
        pytest.skip("mxnet is not among the backends under test")
    both = mha("check", "-b", "torch", "-b", "mxnet", "-c", "prime", "-d", "float16")
    assert both.exit_code == 0
    assert "left out: mxnet does not compute in float16 on cpu" in both.output
    alone = mha("check", "-b", "mxnet", "-c", "prime", "-d", "float16")
    assert alone.exit_code == 2
    assert "nothing to run" in alone.output


def test_backends_lists_versions_devices_and_dtypes(backend_names):
    result = CliRunner(env={"COLUMNS": "160"}).invoke(main, ["check", "--installed"])
    assert result.exit_code == 0
    for name in backend_names:
        assert name in result.output
    assert "cpu" in result.output
    assert "float64, float32" in result.output


def test_cases_lists_every_case():
    result = CliRunner(env={"COLUMNS": "160"}).invoke(main, ["check", "--list"])
    assert result.exit_code == 0
    assert all(case.id in result.output for case in all_cases())
    some = CliRunner(env={"COLUMNS": "160"}).invoke(main, ["check", "--list", "--case", "causal*"])
    assert "causal-bottom-right" in some.output
    assert "prime" not in some.output
    onnx = CliRunner(env={"COLUMNS": "160"}).invoke(main, ["check", "--list", "--suite", "onnx"])
    assert "onnx:4d_causal" in onnx.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--list", "-b", "jax", "--badge", "x.json"], "--list takes no --backend, --badge"),
        (["--twice", "--subject", "mine:layer"], "--twice takes no --subject"),
        (["--twice", "--list"], "--list takes no --twice"),
    ],
)
def test_options_that_mean_nothing_beside_another_are_refused(arguments, message):
    result = mha("check", *arguments)
    assert (result.exit_code, result.output) == (2, f"Error: {message}\n")
