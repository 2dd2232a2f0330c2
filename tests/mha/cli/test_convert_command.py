"""`mha convert` as a user runs it: what it shows, what it refuses, what it leaves."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mha_core import SpecError
from mha_core.layouts import LAYOUTS
from tests.mha.convert.weight_files import (
    GROUPED,
    PREFIXES,
    arrays_of,
    assert_holds,
    mha,
    move,
    torch_source,
    two_layers,
    verify_in_numpy,
    write,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def source(tmp_path):
    return torch_source(tmp_path)


@pytest.fixture
def without_frameworks(monkeypatch):
    verify_in_numpy(monkeypatch)


# The command ----------------------------------------------------------------------------------------------


def test_list_shows_every_layer(source, tmp_path):
    result = mha(source, "--list")
    assert result.exit_code == 0
    for prefix in PREFIXES:
        assert f"'{prefix}'" in result.output
    assert "in_proj_weight 36x12, out_proj.weight 12x12" in result.output
    assert "?" in result.output, "nothing says how many heads"
    write(tmp_path / "a.weights.h5", arrays_of("keras-gqa", GROUPED, "attn"), "keras-gqa")
    result = mha(tmp_path / "a.weights.h5", "--list")
    assert "4 (2 for keys)" in result.output
    assert "keras or keras-gqa" in result.output
    assert "query/kernel 20x4x5, 2 of 20x2x5, attention_output/kernel 4x5x20" in result.output


def test_names_of_any_kind_are_shown_as_they_are(tmp_path):
    """Brackets are markup to rich."""
    save_file(arrays_of("torch", prefix="[/red] layer[0]"), tmp_path / "a.safetensors")
    assert "'[/red] layer[0]'" in mha(tmp_path / "a.safetensors", "--list").output
    result = mha(tmp_path / "a.safetensors", "--to", "bert", "--out", tmp_path / "b.npz", "--num-heads", 3, "--moved")
    assert (result.exit_code, "[/red] layer[0]" in result.output) == (0, True)


def test_layouts_and_formats_are_shown_without_a_source():
    result = mha("--layouts")
    assert result.exit_code == 0
    for name in LAYOUTS:
        assert name in result.output
    assert ".weights.h5" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "has 2 attention layers; choose one (--prefix), or all (--all). It has: 'encoder.layers.0.attn',"),
        (["--prefix", "decoder"], "has no attention layer at prefix 'decoder' (it has them at: 'encoder.layers.0"),
        (["--prefix", PREFIXES[0], "--all"], "give a prefix or ask for all layers, not both"),
        (["--all", "--from", "bert"], "does not have layout 'bert' (it fits: torch)"),
        (["--all", "--from", "pytorch"], "layout 'pytorch' is not known; did you mean torch? `mha convert --layouts`"),
        (["--all", "--to", "kears"], "layout 'kears' is not known; did you mean keras? `mha convert --layouts`"),
        (["--all", "--num-heads", "5"], "'encoder.layers.0.attn': q_proj.weight must have rows for num_heads=5"),
        (["--all"], "layout 'torch' does not say how many heads there are; give num_heads (--num-heads)"),
        (["--all", "--num-heads", "3", "--num-kv-heads", "2"], "num_kv_heads must be 3"),
        (["--all", "--num-heads", "3", "--dtype", "int8"], "dtype 'int8' is not known"),
        (["--all", "--num-heads", "3", "--to-prefix", "x"], "to prefix 'x'; put {prefix} or {index} into"),
        (["--all", "--num-heads", "3", "--to", "torch", "--out", "o.weights.h5"], "'torch' has no place in a Keras"),
        (
            ["--all", "--to", "keras", "--out", "o.pt"],
            "layout 'keras' is of tf, and o.pt is by its ending a file of torch; "
            "files for this layout end in .safetensors, .weights.h5, .npz",
        ),
        (
            ["--all", "--to", "nnx", "--out", "o.params"],
            "layout 'nnx' is of jax, and o.params is by its ending a file of mxnet; "
            "files for this layout end in .safetensors, .msgpack, .npz",
        ),
        (["--all", "--num-heads", "3", "--to", "keras", "--out", "o.keras"], "a .keras file holds a whole model"),
        (["--all", "--num-heads", "3", "--out", "o.txt"], "the suffix names no format that is known"),
        (
            ["--all", "--num-heads", "3", "--to", "torch", "--out", "source2.onnx"],  # near to a file that is there
            "Error: source2.onnx: the suffix names no format that is known; files for layout 'torch' end in "
            ".safetensors, .pt, .pth, .bin, .npz",
        ),
        (["--all", "--num-heads", "3", "--out", "no/such/o.npz"], "--out needs an existing folder. There is no /"),
        (["--all", "--num-heads", "3", "--to", "keras", "--out", "there.npz"], "is already there; force (--force)"),
    ],
)
def test_bad_arguments_exit_2_and_leave_nothing(arguments, message, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.npz").write_text("mine")
    defaults = {"--to": "bert", "--out": "o.npz"}
    rest = [part for option, value in defaults.items() if option not in arguments for part in (option, value)]
    result = mha(source, *arguments, *rest, "--moved")
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert len(result.output.splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == ["source.safetensors", "there.npz"]
    assert (tmp_path / "there.npz").read_text() == "mine"


def test_without_a_target_and_without_layers(source, tmp_path):
    assert "give --to LAYOUT and --out FILE, or --list" in mha(source).output
    assert "Error: give --out FILE, or --list" in mha(source, "--to", "keras").output
    save_file({name: np.ones(3, "float32") for name in ("w", "u", "x", "y")}, tmp_path / "a.safetensors")
    for arguments in (["--list"], ["--to", "bert", "--out", tmp_path / "b.npz"]):
        result = mha(tmp_path / "a.safetensors", *arguments)
        assert (result.exit_code, "no attention layer of a layout that is known" in result.output) == (2, True)
        assert "among its arrays u, w, x and 1 more; where names mean nothing, --infer --recorded" in result.output


def test_a_file_of_another_framework_is_refused_before_anything_is_read(tmp_path):
    asked = ["--to", "keras", "--out", tmp_path / "o.pt"]
    for more in ([], ["--infer", "--recorded", tmp_path / "absent.npz"]):
        result = mha(tmp_path / "absent.safetensors", *asked, *more)
        assert (result.exit_code, result.output.count("\n")) == (2, 1)
        assert "layout 'keras' is of tf, and o.pt is by its ending a file of torch" in result.output


def test_a_folder_that_cannot_be_written_to_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(SpecError, match="needs a folder that can be written to"):
        move(source, to_layout="bert", out=tmp_path / "o.npz", num_heads=3, every=True)


def test_force_replaces_and_a_failure_leaves_what_was_there(source, tmp_path):
    out = tmp_path / "o.npz"
    out.write_text("mine")
    failed = mha(source, "--to", "bert", "--out", out, "--all", "--num-heads", 5, "--force", "--moved")
    assert (failed.exit_code, out.read_text()) == (2, "mine")
    result = mha(source, "--to", "bert", "--out", out, "--all", "--num-heads", 3, "--force", "--moved")
    assert result.exit_code == 0, result.output
    assert_holds(out, two_layers("bert"))


@pytest.mark.usefixtures("without_frameworks")
def test_a_file_can_be_converted_in_place(source):
    move(source, to_layout="bert", out=source, every=True, num_heads=3, force=True)
    assert_holds(source, two_layers("bert"))


@pytest.mark.usefixtures("without_frameworks")
def test_a_layout_must_be_said_where_several_mean_different_things(tmp_path):
    """q_proj, k_proj, v_proj with out_proj and o_proj both: canonical and llama."""
    arrays = arrays_of("canonical")
    save_file({**arrays, "o_proj.weight": arrays["out_proj.weight"] + 1}, tmp_path / "a.safetensors")
    with pytest.raises(SpecError, match=r"fits several layouts; say which \(--from\): canonical, llama"):
        move(tmp_path / "a.safetensors", to_layout="bert", out=tmp_path / "b.npz", num_heads=3)


def test_no_framework_is_imported_that_is_not_needed(tmp_path):
    save_file(arrays_of("canonical"), tmp_path / "a.safetensors")
    code = (
        "import sys; from mha.convert.convert import convert\n"
        f"done = convert({str(tmp_path / 'a.safetensors')!r}, moved=True, to_layout='canonical', "
        f"out={str(tmp_path / 'b.params')!r}, num_heads=3)\n"
        "print(done.layers[0].target.engine)\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'tensorflow', 'jax', 'mxnet', 'h5py'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.splitlines() == ["the reference in NumPy", ""]
