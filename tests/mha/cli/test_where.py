"""`mha where`: the page's example, a map, what it writes, and what it refuses."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path
from shutil import copy

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import mha
from mha.cli.main import main
from mha.cli.porter.where import where
from mha.substitution.reports.page import render
from mha.substitution.reports.report import ModuleResult, WhereReport
from mha_core.errors import install_command
from tests.browser.driver import CONTRASTS, LOWEST_CONTRAST

MHA = [sys.executable, "-c", "from mha.cli.main import run; run()"]
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "where.md").read_text()
EXAMPLE = ROOT / "examples" / "where"


def shape_of(text: str) -> str:
    """The text without its numbers, which differ with the processor, and without the spaces that fill columns."""
    return re.sub(r" +", " ", re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", in_any_order(text)))


def in_any_order(text: str) -> str:
    """The text with each list of bugs in alphabetical order, since nearly equal changes differ with the processor."""
    bug = r"[a-z\d]+-[a-z\d-]+"
    return re.sub(rf"{bug}(, {bug})+", lambda found: ", ".join(sorted(found[0].split(", "))), text)


def test_the_example_of_the_page(tmp_path, backend_names, monkeypatch):
    if not {"torch", "jax"} <= set(backend_names):
        pytest.skip("needs torch and jax")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "models", None)  # gone after the test,
    del sys.modules["models"]  # and not there before
    copy(EXAMPLE / "models.py", "models.py")
    shown = re.search(r"```\n\$ python models.py; mha (where [^\n]*)\n(.*?)```", PAGE, re.S)
    assert shown is not None
    run_path("models.py", run_name="__main__")  # here, where both frameworks are
    found = CliRunner().invoke(main, shown[1].split())
    assert found.exit_code == 1, found.output
    assert shape_of(found.stdout.rstrip()) == shape_of(shown[2].rstrip())


@pytest.mark.nightly("pages show what commands print")
def test_the_page_s_functions_of_jax_are_read_as_a_recording(tmp_path, backend_names, monkeypatch):
    if not {"torch", "jax"} <= set(backend_names):
        pytest.skip("needs torch and jax")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "models", None)
    del sys.modules["models"]
    for name in ("models.py", "arrays.py"):
        copy(EXAMPLE / name, name)
    shown = re.search(r"```\n\$ python arrays.py; mha (where [^\n]*)\n(.*?)```", PAGE, re.S)
    assert shown is not None
    done = subprocess.run([sys.executable, "arrays.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = CliRunner().invoke(main, shown[1].split())
    assert found.exit_code == 1, found.output
    parts = [re.escape(shape_of(part).strip()) for part in re.split(r"^\.\.\.$", shown[2], flags=re.MULTILINE)]
    assert re.fullmatch(r".*?".join(parts), shape_of(found.stdout).strip(), re.DOTALL), found.stdout


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A folder with `mine.py`, whose `original` and `right` agree, and recordings of two ports."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5)).eval()
    torch.save(model.state_dict(), "weights.pt")
    name = f"mine_{tmp_path.name}"
    Path(f"{name}.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef original():\n"
        "    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5)).eval()\n"
        "    model.load_state_dict(torch.load('weights.pt'))\n    return model\n\n\n"
        "def broken():\n    raise ValueError('no weights')\n\n\nclass Model(nn.Module):\n    pass\n"
    )
    wrong = nn.Sequential(model[0], nn.GELU("tanh"), model[2]).eval()
    for file, port in (("right.safetensors", model), ("wrong.safetensors", wrong)):
        with mha.capture(port, file, modules=True):
            port(torch.randn(4, 6))
    return name


def run(*arguments: str):
    return CliRunner().invoke(where, list(arguments))


def test_a_right_port_and_a_wrong_one(recorded):
    right = run(f"{recorded}:original", "right.safetensors", "--json", "right.json")
    assert right.exit_code == 0, right.output
    assert "Equal: 4 of 4 modules were judged" in right.stdout
    wrong = run(f"{recorded}:original", "wrong.safetensors", "--json", "wrong.json")
    assert wrong.exit_code == 1
    assert wrong.stdout.startswith("1 (torch.nn.modules.activation.GELU) is wrong by itself: ")
    found = json.loads(Path("wrong.json").read_text())
    assert (found["equal"], found["wrong"], found["schema"]) == (False, ["1"], 1)
    assert json.loads(Path("right.json").read_text())["equal"] is True


DEEP = """
import torch
from torch import nn


def deep(epsilon=1e-5):
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6, epsilon)) for _ in range(4))).eval()
"""


def test_modules_that_are_wrong_alike_are_told_together_and_a_long_tree_if_asked_for(recorded):
    Path(f"{recorded}_deep.py").write_text(DEEP)
    scope = {}
    exec(DEEP, scope)
    port = scope["deep"](epsilon=1e-2)
    with mha.capture(port, "deep.safetensors", modules=True), torch.no_grad():
        port(torch.randn(5, 6))
    short = run(f"{recorded}_deep:deep", "deep.safetensors")
    assert short.exit_code == 1
    first, _, alike, empty, last, more, *_ = short.stdout.splitlines()
    assert first.startswith("0.1 (torch.nn.modules.normalization.LayerNorm) is wrong by itself: ")
    assert (alike, empty) == ("  So are 3 more: 1.1, 2.1, 3.1.", "")
    assert last.startswith("Wrong: 0.1 and 3 alike. 13 of 13 modules were judged")
    assert more == "Every module, with its verdict: add -v"
    whole = run(f"{recorded}_deep:deep", "deep.safetensors", "-v").stdout
    assert more not in whole
    assert sum(" wrong " in row and row.endswith("derived") for row in whole.splitlines()) == 4
    other = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6, bias=False), nn.Tanh())).eval()
    with mha.capture(other, "other.safetensors", modules=True), torch.no_grad():
        other(torch.randn(5, 6))
    said = run(f"{recorded}:original", "other.safetensors").stdout
    assert "Is this its port? No module in it has the parameters of one of the original's" in said


def test_a_map_is_written_and_then_used(recorded):
    assert run(f"{recorded}:original", "right.safetensors", "--map", "pairs.toml").exit_code == 0
    text = Path("pairs.toml").read_text()
    assert text.splitlines() == ["[pairs]", '"0" = "0"', '"1" = "1"', '"2" = "2"']
    Path("pairs.toml").write_text(text.replace('"0" = "0"', '"0" = "9"'))
    done = run(f"{recorded}:original", "right.safetensors", "--map", "pairs.toml")
    assert "the map names '9', and no module of the port that was called has that name" in done.output
    Path("pairs.toml").write_text("pairs = 3")
    done = run(f"{recorded}:original", "right.safetensors", "--map", "pairs.toml")
    assert "must hold one table, [pairs]" in done.output
    done = run(f"{recorded}:original", "right.safetensors", "--map", "right.safetensors")
    assert (done.exit_code, "right.safetensors is no text: a map is one in TOML" in done.output) == (2, True)


def test_a_map_that_cannot_be_written_is_refused_before_the_original_runs(recorded):
    done = run(f"{recorded}:broken", "right.safetensors", "--map", "nowhere/pairs.toml")
    assert done.exit_code == 2
    assert "--map needs an existing folder" in done.output


def test_inputs_of_its_own(recorded):
    from safetensors.torch import save_file

    save_file({"input": torch.randn(4, 6)}, "inputs.safetensors")
    assert run(f"{recorded}:original", "right.safetensors", "--inputs", "inputs.safetensors").exit_code == 0


@pytest.mark.parametrize(
    ("original", "recording", "message"),
    [
        ("{}:nothing", "right.safetensors", "has no 'nothing'"),
        (
            "{}:Model",
            "right.safetensors",
            ":Model is a class: name a model, or a function that returns one (def original",
        ),
        ("{}:broken", "right.safetensors", "can't be made: it raised ValueError: no weights ("),
        ("{}:Model.forward", "right.safetensors", "'self'; name a function that needs none: def original(): return"),
        ("nowhere", "right.safetensors", "no folder of that name exists"),
        ("{}", "right.safetensors", "name what is in it, too: write "),
        ("{}:original", "weights.pt", "safetensors"),
        ("{}:original", "absent.safetensors", "no such file"),
    ],
)
def test_what_is_refused_is_refused_in_one_line(recorded, original, recording, message, capfd):
    done = CliRunner().invoke(main, ["where", original.format(recorded), recording])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert capfd.readouterr() == ("", "")  # nor does anything else that writes past Python


def test_inputs_of_another_kind_are_refused(recorded):
    done = run(f"{recorded}:original", "right.safetensors", "--inputs", "input=x")
    assert done.exit_code == 2
    assert "--inputs must name a file that ends in .npz or .safetensors. Got input=x." in done.output


def test_a_program_refuses_it_in_the_same_words(recorded):
    Path(f"{recorded}_bare.py").write_text("def broken():\n    raise ValueError('no weights')\n")  # imports nothing
    arguments = ["where", f"{recorded}_bare:broken", "right.safetensors"]
    done = subprocess.run([*MHA, *arguments], capture_output=True, text=True, check=False)
    here = CliRunner().invoke(main, arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", here.stderr)


def test_the_page_has_what_the_terminal_says_and_names_are_escaped(recorded):
    assert run(f"{recorded}:original", "wrong.safetensors", "--html", "wrong.html").exit_code == 1
    page = Path("wrong.html").read_text()
    assert "<script" not in page
    assert 'It parts at <a href="#parts">1</a>' in page
    (row,) = re.findall(r'<tr class="wrong" id="parts">.*?</tr>', page, re.S)
    assert ">wrong: it parts here</td>" in row
    assert '<circle class="point"' in row
    assert page.count('<th scope="row"') == page.count('<line class="allowed"') == 4
    assert "is wrong by itself" in page
    assert f"torch {torch.__version__}" in page
    report = WhereReport(
        (ModuleResult("<b>", "mine.<i>", 0, "<u>", "name", "wrong", 9.0, index=(0,), got=1.0, expected=2.0),),
        (),
        "float32",
        {},
    )
    page = render(dataclasses.replace(report, diagnosed={"<b>": "<s>"}), "<q>")
    assert not re.findall(r"<(b|i|u|s|q)>", page)
    assert page.count("&lt;b&gt;") >= 3
    assert "&lt;s&gt;" in page


@pytest.mark.same_on_newest  # a page in a browser
@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_can_be_read_in_a_browser(recorded, browser, width, scheme):
    run(f"{recorded}:original", "wrong.safetensors", "--html", "wrong.html")
    browser.open(Path("wrong.html").absolute(), width, scheme)
    assert browser.overflowing() == []
    assert {name: found for name, found in browser.run(CONTRASTS).items() if found < LOWEST_CONTRAST} == {}


@pytest.mark.nightly("another interpreter runs the command")
def test_another_interpreter_runs_the_same_command(recorded):
    command = [*MHA, "where", f"{recorded}:original", "wrong.safetensors", "--python", sys.executable]
    done = subprocess.run([*command, "--json", "there.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout == run(f"{recorded}:original", "wrong.safetensors").stdout
    assert json.loads(Path("there.json").read_text())["wrong"] == ["1"]


def refused_by(program: str, **variables: str) -> str:
    """What the command says of an interpreter, in one line."""
    path = os.pathsep.join(filter(None, sys.path))  # PYTHONPATH would lead the other one there as well
    code = f"import os, sys; sys.path[:] = {path!r}.split(os.pathsep); {MHA[-1]}"
    command = [sys.executable, "-c", code, "where", "nowhere", "absent.safetensors", "--python", program]
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run(command, capture_output=True, text=True, env=given, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def test_an_interpreter_that_can_not_be_used_is_refused_in_one_line(tmp_path):
    assert "there is no program /nowhere that can be run" in refused_by("/nowhere")
    assert "is no interpreter of Python 3.11 or newer" in refused_by("/bin/true")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    said = refused_by(bare)
    assert f"{bare} can't import mha-parity" in said
    assert f"-m {install_command()}" in said
    for package in ("conformance/workers", "mha/cli"):  # one that says that it is another version
        (tmp_path / "other" / package).mkdir(parents=True)
    (tmp_path / "other/mha/cli/main.py").touch()
    (tmp_path / "other/conformance/workers/protocol.py").write_text(
        "class Hello:\n    @classmethod\n    def of_this_process(cls):\n        return cls()\n\n"
        "    def to_bytes(self):\n"
        '        return b\'{"project": "0.0.1", "code": "", "python": "3.11", "pid": 1}\'\n'
    )
    said = refused_by(bare, PYTHONPATH=str(tmp_path / "other"))
    assert f"{bare} has mha-parity 0.0.1; this is " in said


def test_an_original_that_is_not_there_is_said_before_what_the_recording_lacks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("port.safetensors").write_bytes(b"hello")
    said = CliRunner().invoke(main, ["where", "no_folder", "port.safetensors"])
    assert said.exit_code == 2
    assert "no_folder" in said.output
    assert "port.safetensors" not in said.output
