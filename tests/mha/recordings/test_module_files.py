"""Recordings of modules that somebody else made: names are printed as text, and what contradicts itself is one line."""

import copy
import json

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

import mha  # noqa: E402
from mha.cli.main import main  # noqa: E402
from mha.recordings.modules.recorder import METADATA_KEY  # noqa: E402
from mha.recordings.modules.recording import ModuleRecording  # noqa: E402
from mha_core import SpecError  # noqa: E402
from mha_core.files.tensorfile import read_tensors, to_sealed  # noqa: E402

ESCAPE = "\x1b]0;x\x07\nEqual: all"
SHOWN = "\\x1b]0;x\\x07\\nEqual: all"


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The file of a small model, its arrays and what it says of them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    path = tmp_path_factory.mktemp("recorded") / "one.safetensors"
    with mha.capture(model, path, modules=True, gradients=True):
        model(torch.from_numpy(np.ones((2, 4), np.float32))).sum().backward()
    arrays, metadata = read_tensors(path)
    return path, arrays, metadata


def changed(parts, tmp_path, change):
    _, arrays, metadata = parts
    said = copy.deepcopy(json.loads(metadata[METADATA_KEY]))
    change(said)
    path = tmp_path / "changed.safetensors"
    path.write_bytes(to_sealed(arrays, {**metadata, METADATA_KEY: json.dumps(said)}))
    return path


def rename(said):
    said["modules"][1].update(name=ESCAPE, kind=ESCAPE)
    said["versions"] = {ESCAPE: ESCAPE}
    said["calls"][1]["gave"] = {"parts": {ESCAPE: said["calls"][1]["gave"]}}


def test_a_name_with_escape_sequences_is_printed_as_text(parts, tmp_path):
    path = changed(parts, tmp_path, rename)
    done = CliRunner().invoke(main, ["where", str(parts[0]), str(path), "--json", str(tmp_path / "found.json")])
    assert "\x1b" not in done.output
    assert not any(line.startswith("Equal") for line in done.output.splitlines()[:-1])
    assert SHOWN in done.output
    assert SHOWN in [one["name"] for one in json.loads((tmp_path / "found.json").read_text())["modules"]]


def test_the_arrays_of_such_a_module_are_found(tmp_path):
    model = torch.nn.ModuleDict({ESCAPE: torch.nn.Linear(4, 3)})
    model.forward = lambda x: model[ESCAPE](x)
    path = tmp_path / "live.safetensors"
    with mha.capture(model, path, modules=True, gradients=True):
        model(torch.ones(2, 4)).sum().backward()
    recording = ModuleRecording(path)
    assert recording.modules[1].name == SHOWN
    assert all(recording.numbers(name).size for name in recording.modules[1].values.values())
    done = CliRunner().invoke(main, ["where", str(path), str(path)])
    assert (done.exit_code, "\x1b" in done.output) == (0, False), done.output


WRONG = {
    **{
        name: (
            lambda said, shape=shape: said["modules"][1]["parameters"]["weight"].__setitem__(0, shape),
            f"the shape of 'weight' must be a list of sizes. Got {shape!r}.",
        )
        for name, shape in (("a shape of a text", ["5", 4]), ("a shape of lists", [[5], 4]), ("no shape", "54"))
    },
    "a module twice": (lambda said: said["calls"][3].update(module=1), "no call is of module 3, '2'"),
    "a name twice": (lambda said: said["modules"][2].update(name="0"), "two modules have the name '0'"),
    "half a module": (lambda said: said["calls"][1].update(module=1.5), "call 1 names a module or a call that is not"),
    "within half a call": (lambda said: said["calls"][1].update(within=0.5), "call 1 names a module or a call that is"),
    "an array without a name": (lambda said: said["calls"][1]["gave"].update(array=None), "KeyError: None"),
    "an array named by a list": (lambda said: said["calls"][1]["gave"].update(array=[1]), "TypeError: unhashable"),
    "a parameter's array without a name": (
        lambda said: said["modules"][1]["values"].update(weight=None),
        "'weight' has an array of the name None, which is not there",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_contradicts_itself_is_one_line(wrong, parts, tmp_path):
    change, message = WRONG[wrong]
    path = changed(parts, tmp_path, change)
    with pytest.raises(SpecError) as error:
        ModuleRecording(path)
    assert str(error.value).startswith(f"{path} is a recording of modules that can't be used: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    done = CliRunner().invoke(main, ["where", str(parts[0]), str(path)])
    assert (done.exit_code, done.output) == (2, f"Error: {error.value}\n")
