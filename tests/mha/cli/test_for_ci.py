"""action.yml and .pre-commit-hooks.yaml do what they say, from a local path: their own lines are run, with no network.

pip has its usual command here, told by its environment to leave dependencies alone, and to install into a folder.
"""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from mha.cli.main import main
from tests.mha.schemas.test_schemas import ATTENTION

ROOT = Path(__file__).parents[3]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())

pytestmark = pytest.mark.same_on_newest  # no framework takes part


@pytest.fixture
def project(tmp_path):
    """The folder of a user's project."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "mine.py").write_text(ATTENTION)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """This repository as GitHub would have fetched it."""
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True)
    names = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    if not names:
        pytest.skip("this is no checkout")
    folder = tmp_path_factory.mktemp("source")
    for name in names:
        if not name.startswith(("tests/", "docs/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables under which pip installs into a folder, from which everything is then imported."""
    target = tmp_path_factory.mktemp("installed")
    pip = {"NO_DEPS": "1", "NO_INDEX": "1", "NO_BUILD_ISOLATION": "0", "TARGET": str(target), "NO_COMPILE": "1"}
    path = f"{target}/bin{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    names = {f"PIP_{name}": value for name, value in pip.items()}
    return {**os.environ, **names, "PATH": path, "PYTHONPATH": str(target), "MHA_WORKERS": "0"}


def step(number, source, project, environment, **inputs):
    """Run one step of the action as GitHub does: expressions stand in its variables, and bash runs its lines."""
    given = {name: one.get("default") for name, one in ACTION["inputs"].items()} | inputs
    values = {"github.action_path": str(source), **{f"inputs.{name}": value for name, value in given.items()}}
    own = ACTION["runs"]["steps"][number]

    def filled(text):
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: values[found[1]], text)

    assert "${{" not in own["run"], "what a user gives must not become part of a program"
    variables = {name: filled(text) for name, text in own["env"].items()}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", own["run"]]
    return subprocess.run(
        command,
        cwd=project / filled(own.get("working-directory", ".")),
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly("GitHub's action runs a command")
def test_the_action_installs_and_runs_a_command(source, project, environment):
    done = step(0, source, project, environment, extras="torch,hf")
    assert done.returncode == 0, done.stderr
    installed = Path(environment["PIP_TARGET"])
    assert (installed / "mha_parity" / "schemas" / "common.json").is_file()

    check = "mha check --case prime --dtype float64 --no-diagnosis --junit out.xml --subject mine"
    for name, status in (("right", 0), ("wrong", 1), ("absent", 2)):
        done = step(1, source, project, environment, command=f"{check}:{name}")
        assert done.returncode == status, done.stdout + done.stderr
    where = "python -c 'import mha_parity; print(mha_parity.__file__)'"
    assert step(1, source, project, environment, command=where).stdout.startswith(str(installed))


def test_the_inputs_of_the_action_are_those_that_its_steps_read():
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    assert all(one["shell"] == "bash" for one in ACTION["runs"]["steps"])
    assert "upload" not in text


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_each_hook_runs_and_is_refused_where_something_is_wrong(hook, project, monkeypatch):
    """pre-commit installs this repository as the action does, and then runs `entry` with the user's `args`: that an
    installed `mha` starts has been tried with the action.
    """
    assert (hook["language"], hook["pass_filenames"]) == ("python", False)
    monkeypatch.chdir(project)
    for name in ("mine", "models"):
        monkeypatch.setitem(sys.modules, name, None)  # gone after the test,
        del sys.modules[name]  # and not there before
    if hook["id"] == "mha-check":
        chosen = ["--case", "prime", "--dtype", "float64", "--no-diagnosis", "--subject"]
        asked = [([*chosen, "mine:right"], 0), ([*chosen, "mine:wrong"], 1)]
    else:
        pytest.importorskip("torch")
        Path("models.py").write_text(MODELS)
        runpy.run_path("models.py", run_name="__main__")
        asked = [(["models:original", "right.safetensors"], 0), (["models:original", "wrong.safetensors"], 1)]
    program, *first = hook["entry"].split()
    assert program == "mha"
    for arguments, status in asked:
        done = CliRunner().invoke(main, [*first, *arguments])
        assert done.exit_code == status, done.output


MODELS = """
import torch
from torch import nn
import mha

torch.manual_seed(0)
original = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5)).eval()
if __name__ == "__main__":
    for name, act in (("right", nn.GELU()), ("wrong", nn.GELU("tanh"))):
        port = nn.Sequential(original[0], act, original[2]).eval()
        with mha.capture(port, f"{name}.safetensors", modules=True):
            port(torch.randn(4, 6))
"""
