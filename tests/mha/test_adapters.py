"""The files that `mha check --new` writes are equal as they are; what is not written is said in one line."""

import importlib.util
import re
import sys

import pytest
from click.testing import CliRunner

from mha.adapters import FRAMEWORKS
from mha.cli.main import main
from mha_core.errors import install_command

NEEDED = {"torch": "torch", "keras": "tf", "jax": "jax", "nnx": "jax", "mxnet": "mxnet"}
"""Framework -> the backend with which it is installed."""

CASES = ("prime", "causal", "no-bias", "nan-in-padding", "one-key")

SEQUENCES = ("sequence-numbers", "sequence-layouts", "sequence-weights")
"""Negative strides, calls without a cotangent, weights that are written into: what a copy is needed for."""

OTHERS = ("grouped-heads", "dot", "scale", "additive", "softcap", "rotary", "past")
"""Cases of what no file takes: they are not judged, and so not said to be wrong."""


def run(*arguments):
    return CliRunner().invoke(main, ["check", *arguments])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return tmp_path


@pytest.mark.nightly("a file to begin with is equal, in each framework", but=("numpy",))
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_file_is_equal_as_it_is_written(framework, folder, backend_names):
    if NEEDED.get(framework, "torch") not in backend_names and framework != "numpy":
        pytest.skip(f"{framework} is not among what is under test")
    written = run("--new", "made.py", "--framework", framework)
    assert written.exit_code == 0, written.output
    specs = re.findall(r"^  mha check --subject (\S+)$", written.output, re.MULTILINE)
    assert specs == ["made:attention", "made:Layer"]
    text = (folder / "made.py").read_text()
    assert "mine" not in text
    assert all(f"mha check --subject {spec}" in text for spec in specs)
    cases = [word for case in (*CASES, *SEQUENCES, *OTHERS) for word in ("--case", case)]
    done = run(*[word for spec in specs for word in ("--subject", spec)], *cases, "--workers", "1")
    for name in ("attention", "Layer"):
        for dtype, asked in (("float64", CASES + SEQUENCES), ("float32", CASES)):  # sequences: the first dtype alone
            answer = f"{name} {dtype}: equal in all {len(asked)}; {len(OTHERS)} not judged\n"
            assert answer in done.output, done.output
    assert done.exit_code == 0


def test_what_is_detached_has_the_gradient_0_and_its_outputs_are_judged(folder, backend_names):
    if "torch" not in backend_names:
        pytest.skip("torch is not among what is under test")
    run("--new", "cut.py", "--framework", "torch")
    text = (folder / "cut.py").read_text()
    (folder / "cut.py").write_text(
        text.replace("q, k, v = self.q_proj(queries), ", "q, k, v = self.q_proj(queries).detach(), ")
    )
    done = run(
        "--subject", "cut:Layer", "--case", "prime", "--dtype", "float64", "--workers", "1", "--no-diagnosis", "-v"
    )
    assert done.exit_code == 1
    assert "gradients.queries differs" in done.output
    assert "output differs" not in done.output


def test_a_file_that_is_there_is_not_overwritten(folder):
    (folder / "mine.py").write_text("precious = 1\n")
    done = run("--new", "mine.py")
    assert (done.exit_code, done.output) == (
        2,
        "Error: --new mine.py: it is there already, and is not overwritten; name another\n",
    )
    assert (folder / "mine.py").read_text() == "precious = 1\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    {
        ("--new", "no-module.py"): "--new no-module.py: its name must be that of a module, such as mine.py",
        ("--new", "mine"): "--new mine: its name must be that of a module, such as mine.py",
        ("--new", "torch.py"): "--new torch.py: it would hide the package torch; name it otherwise, such as mine.py",
        ("--new", "nowhere/mine.py"): "--new nowhere/mine.py: there is no folder nowhere",
        ("--new", "mine.py", "--all"): "--new takes no --all",
        ("--framework", "torch"): "--framework is for --new FILE, which writes a file to begin with",
    }.items(),
)
def test_what_can_not_be_written_is_one_line(arguments, said, folder):
    done = run(*arguments)
    assert (done.exit_code, done.output) == (2, f"Error: {said}\n")
    assert list(folder.iterdir()) == []


def test_a_framework_that_is_not_installed_is_told_with_the_command(folder, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flax" else found(name))
    absent = f"flax is not installed here: {install_command('jax')}\n"
    assert run("--new", "mine.py", "--framework", "nnx").output.endswith(absent)
    assert "installed" not in run("--new", "own.py").output


def test_in_another_folder_the_command_says_where_it_runs(folder):
    (folder / "some where").mkdir()
    done = run("--new", "some where/mine.py")
    assert "\n  cd 'some where' && mha check --subject mine:attention\n" in done.output


def test_an_output_of_another_shape_leads_to_a_file_to_begin_with(folder):
    (folder / "turned.py").write_text(
        "def attention(weights, queries, keys, values, mask, *, num_heads):\n    return queries[:, :, :1]\n"
    )
    done = run("--subject", "turned:attention", "--case", "prime")
    assert done.exit_code == 1
    assert done.output.endswith("\nAn output is (B, Lq, Do): `mha check --new FILE.py` writes one to begin with.\n")
