"""Files that could be read as another layer: pickles, misspelt names, and recordings with other types."""

import io
import json
import pickle
import re
import struct
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from safetensors.numpy import save_file

from mha.cli.common import says
from mha.cli.porter.replay import replay
from mha.convert.convert import convert
from mha.formats import open_checkpoint
from mha.infer import Observed
from mha_core import AttentionConfig, SpecError
from tests.mha.convert.weight_files import arrays_of, refused, weights_of, write
from tests.mha.formats.refused_files import refusal
from tests.mha.recordings.wrong_ports import MASKS, layer_of, recording_of


@pytest.mark.parametrize("zipped", [True, False])
def test_every_way_that_a_state_dict_holds_tensors_is_read_as_torch_reads_it(zipped, tmp_path):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(7, 5, generator=generator)
    content = {
        "transposed": base.T,
        "part": base[2:5, 1:],
        "parameter": torch.nn.Parameter(base * 2),
        "half": base.half(),
        "brain": base.to(torch.bfloat16),
        "double": base.double(),
        "whole": torch.arange(6),
        "bool": base > 0,
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 3),
        "nested": OrderedDict(w=base + 1, step=3, name="x", betas=(0.9, 0.99), size=base.shape, dtype=torch.float16),
    }
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    with open_checkpoint(tmp_path / "a.pt") as checkpoint:
        flat = {**{name: value for name, value in content.items() if name != "nested"}, "nested.w": base + 1}
        assert {name: (entry.shape, entry.dtype) for name, entry in checkpoint.entries.items()} == {
            name: (tuple(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in flat.items()
        }
        assert set(checkpoint.others) == {f"nested.{name}" for name in ("step", "name", "betas", "size", "dtype")}
        for name, value in flat.items():
            if value.is_floating_point():
                assert checkpoint.array(name).astype("f8").tolist() == value.detach().double().tolist(), name


def test_a_sparse_tensor_and_a_program_are_refused_in_words(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.eye(3).to_sparse()}, tmp_path / "a.pt")
    with open_checkpoint(tmp_path / "a.pt") as checkpoint:
        assert (dict(checkpoint.entries), checkpoint.others) == ({}, {"w": "Tensor"})
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        for name in ("data.pkl", "constants.pkl"):
            archive.writestr(f"a/{name}", pickle.dumps({}, protocol=2))
    assert "no program (TorchScript)" in refusal(tmp_path / "b.pt")


@pytest.mark.parametrize(
    "name",
    [
        *("attn.q_prpj.bias", "attn.q_proj.bais", "atn.q_proj.bias", "attn.qq_proj.bias", "attn.v_projbias"),
        *("attn.q_prxj.bias", "attn.q_prxj.bibs", "attn.v_pqxj.bias", "aktn.v_prxj.bixs"),
    ],
)
def test_a_misspelt_bias_is_no_missing_one(name, tmp_path):
    config = AttentionConfig(12, 3, bias={"q_proj": True, "v_proj": True, "out_proj": True})
    arrays = {f"attn.{own}": array for own, array in weights_of(config, 0).items()}
    meant = "attn.v_proj.bias" if "v" in name else "attn.q_proj.bias"
    arrays[name] = arrays.pop(meant)
    path = write(tmp_path / "a.safetensors", arrays, "canonical")
    refused(path, f"lacks {meant}, and there is '{name}': misspelt, or damaged", num_heads=3)
    assert not (tmp_path / "b.npz").exists()


def test_a_bias_that_is_no_array_is_not_passed_over(tmp_path):
    serialization = pytest.importorskip("flax.serialization")
    layer: dict = {}
    for name, array in arrays_of("linen", AttentionConfig(12, 3, bias=True)).items():
        part, own = name.split("/")
        layer.setdefault(part, {})[own] = array
    layer["key"]["bias"] = 7
    (tmp_path / "a.msgpack").write_bytes(serialization.msgpack_serialize({"attn": layer}))
    refused(tmp_path / "a.msgpack", "lacks attn/key/bias, and what has that name is no array")


def test_a_bias_that_the_config_in_the_file_does_not_have_is_refused(tmp_path):
    config = AttentionConfig(12, 3)
    path = tmp_path / "a.safetensors"
    arrays = {**weights_of(config, 0), "q_proj.bias": np.ones(12, "f4")}
    save_file(arrays, path, metadata={"mha_config": json.dumps(config.to_dict())})
    refused(path, "weights hold 'q_proj.bias', which this config does not have")


@pytest.mark.parametrize(
    ("byte", "message"),
    [
        ("address", "attn/query_dense/vars/1 stands where the file keeps names and addresses"),
        ("order", "attn/query_dense/vars/1 is big-endian and attn/key_dense/vars/0 is not"),
        ("shape", "attn/query_dense/vars/1 claims 32 bytes, and the file has 48 of it"),
        ("exponent", "attn/query_dense/vars/1 is of a type of the file's own"),
    ],
)
def test_one_damaged_byte_beside_the_numbers_of_hdf5_gives_no_others(byte, message, tmp_path):
    h5py = pytest.importorskip("h5py")
    path = write(tmp_path / "a.weights.h5", arrays_of("keras", AttentionConfig(12, 3, bias=True), "attn"), "keras")
    with h5py.File(path) as file:
        bias = file["attn/query_dense/vars/1"]
        header, start = h5py.h5o.get_info(bias.id).addr, bias.id.get_offset()
    data = bytearray(path.read_bytes())
    kept = data.index(struct.pack("<QQ", start, 48), header)  # where the header keeps the address and the length
    type_of_float32 = data.index(b"\x11\x20\x1f\x00\x04\x00\x00\x00", header)
    shape = data.index(struct.pack("<QQ", 3, 4), header)
    place, value = {
        "address": (kept, data[kept] ^ 0x80),
        "order": (type_of_float32 + 1, 0x21),
        "shape": (shape, 2),
        "exponent": (type_of_float32 + 16, data[type_of_float32 + 16] ^ 1),
    }[byte]
    data[place] = value
    path.write_bytes(data)
    assert re.search(message, refusal(path))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("query_offset", np.array(1.7), "query_offset must be an integer"),
        ("query_offset", np.array([1.0, 2.0]), "query_offset must be an integer"),
        ("causal", np.array(0.3), "causal must be True or False"),
        ("causal", np.array([True, False]), "causal must be True or False"),
        ("causal", np.array(2), "causal must be True or False"),
        ("dtype", np.array("float8"), "dtype 'float8' is not known"),
    ],
)
def test_no_number_is_taken_for_a_flag_or_an_integer(field, value, message, tmp_path):
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("f4")
    np.savez(tmp_path / "call.npz", queries=x, output=x, **{field: value})
    with pytest.raises(SpecError, match=message):
        Observed.load(tmp_path / "call.npz")


def test_a_bias_that_one_layer_lacks_and_its_neighbours_have_is_missed(tmp_path):
    config = AttentionConfig(12, 3, bias=True)
    arrays = {**arrays_of("canonical", config, "h.0.attn"), **arrays_of("canonical", config, "h.1.attn", seed=1)}
    arrays["g.0.attx.k_pr.bias"] = arrays.pop("h.0.attn.k_proj.bias")
    path = write(tmp_path / "a.safetensors", arrays, "canonical")
    with pytest.raises(SpecError, match="'h.0.attn' lacks h.0.attn.k_proj.bias, and its neighbour at 'h.1.attn' has"):
        convert(path, to_layout="canonical", out=tmp_path / "b.npz", num_heads=3, every=True, moved=True)


def test_markup_in_the_name_of_a_recorded_layer_is_shown_as_it_is(tmp_path):
    path = tmp_path / "calls.safetensors"
    recording_of(layer_of("float64", "a[/red][bold]"), masks=MASKS[2:]).save(path)
    result = CliRunner().invoke(replay, [str(path), "--backend", "torch", "--case", "*"])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code in (0, 2), result.output
    console = Console(file=io.StringIO(), force_terminal=True)
    with console.status("") as status:
        says(status)("what a[/red] would have shown")


def test_an_array_whose_entry_is_damaged_is_not_passed_over_in_an_archive(tmp_path):
    rng = np.random.default_rng(3)
    queries, output = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 5))
    record = {"queries": queries, "output": output, "valid_lens": np.array([2, 3])}
    layer = {"q_proj.weight": rng.normal(size=(4, 4)), "q_proj.bias": rng.normal(size=4)}
    for arrays, lost, read in (
        (record, b"valid_lens.npy", Observed.load),
        (layer, b"q_proj.bias.npy", lambda path: open_checkpoint(path).__enter__()),
    ):
        path = tmp_path / "a.npz"
        np.savez(path, **arrays)
        read(path)
        data = path.read_bytes()
        start = data.rindex(lost)
        for name in (lost[:-3] + b"jpy", lost[:-4] + b"-npy"):
            path.write_bytes(data[:start] + name + data[start + len(lost) :])
            with pytest.raises(SpecError, match="does not fit its entry in the table of contents"):
                read(path)
