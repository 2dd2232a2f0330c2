"""Files made to do harm: to copy other files out, to fill the memory, to never end, to be read as another layer."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections import OrderedDict

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from safetensors import safe_open
from safetensors.numpy import save_file

from mha.cli.common import says
from mha.cli.porter.replay import replay
from mha.convert.convert import convert
from mha.formats import create, format_of, open_checkpoint
from mha.infer import Observed
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, init_weights
from mha_core.reference import pipeline as reference
from tests.mha.convert.weight_files import arrays_of, weights_of, write

SECRET = np.arange(6, dtype="f4")


def read(path):
    with open_checkpoint(path) as checkpoint:
        return {name: checkpoint.array(name) for name in checkpoint.entries}


def refusal(path):
    """What is said of the file; nothing else than a SpecError of one bounded line may come."""
    with pytest.raises(SpecError) as caught:
        read(path)
    text = str(caught.value)
    assert len(text) < 1000
    assert text.isprintable()
    return text


def in_group(path, fill):
    with h5py.File(path, "w") as file:
        fill(file.create_group("q/vars"))
    return path


# HDF5 that reaches elsewhere ----------------------------------------------------------------------------


def external_storage(group):
    group.create_dataset("0", (2, 3), "f4", external=[("/etc/passwd", 0, 24)])


def virtual(group):
    layout = h5py.VirtualLayout((2, 3), "f4")
    layout[:] = h5py.VirtualSource("secret.h5", "secret", (2, 3))
    group.create_virtual_dataset("0", layout)


def committed(group):
    group.file["kind"] = np.dtype("f4")
    group.create_dataset("0", (2, 3), group.file["kind"])


def chunks_of_4_gb(group):
    data = group.create_dataset("0", (1,), "f4", chunks=(1 << 29,), maxshape=(None,), compression="gzip")
    data.id.write_direct_chunk((0,), b"x\x9c\x03\x00\x00\x00\x00\x01")


HDF5 = {
    "external storage": (external_storage, "takes its numbers from another file (external storage)"),
    "virtual": (virtual, "takes its numbers from other datasets (a virtual one)"),
    "external link": (lambda g: g.__setitem__("0", h5py.ExternalLink("secret.h5", "s")), "a link into another file"),
    "soft link": (lambda g: g.__setitem__("0", h5py.SoftLink("/x")), "q/vars/0 is a soft link"),
    "never written": (lambda g: g.create_dataset("0", (2, 3), "f4"), "was never written: the file has 0 of its 24"),
    "never written, 8 GB": (lambda g: g.create_dataset("0", (1 << 31,), "f4"), "claims 8589934592 bytes"),
    "blocks never written": (lambda g: g.create_dataset("0", (8, 8), "f4", chunks=(4, 4)), "has 0 of its 4 blocks"),
    "blocks of 2 GB": (chunks_of_4_gb, "claims blocks of 2147483648 bytes"),
    "own type": (committed, "is a type of the file's own"),
    "null": (lambda g: g.create_dataset("0", data=h5py.Empty("f4")), "a dataset that holds nothing"),
    "a loop of groups": (lambda g: g.__setitem__("loop", g), "is a group that stands at another place too"),
    "another filter": (lambda g: g.create_dataset("0", data=np.ones((4, 4)), compression="lzf"), "needs the filter"),
}


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
@pytest.mark.parametrize("name", HDF5)
def test_hdf5_that_takes_its_numbers_from_elsewhere_is_refused_by_name(name, suffix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with h5py.File("secret.h5", "w") as file:
        file["secret"] = SECRET.reshape(2, 3)
    fill, message = HDF5[name]
    path = in_group(tmp_path / "file.weights.h5", fill)
    if suffix == ".keras":
        with zipfile.ZipFile(tmp_path / "file.keras", "w") as archive:
            archive.write(path, "model.weights.h5")
        path = tmp_path / "file.keras"
    assert message in refusal(path)


def test_hdf5_in_compressed_blocks_is_read(tmp_path):
    array = np.random.default_rng(0).normal(size=(9, 7)).astype("f4")
    path = in_group(
        tmp_path / "file.weights.h5",
        lambda group: group.create_dataset("0", data=array, chunks=(4, 5), compression="gzip", shuffle=True),
    )
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.array("q/kernel").tobytes() == array.tobytes()


def test_a_group_that_damage_has_emptied_is_missed(tmp_path):
    path = tmp_path / "a.weights.h5"
    write(path, {f"h/{n}/attn/{own}": a for n in (0, 1) for own, a in arrays_of("keras", seed=n).items()}, "keras")
    data = path.read_bytes()
    trees = [at for at in range(len(data)) if data.startswith(b"TREE\0\0\1\0", at)]
    emptied = 0
    for at in trees:
        path.write_bytes(data[: at + 6] + b"\0\0" + data[at + 8 :])
        text = refusal(path)
        emptied += "names stand in it, and its groups have" in text
    assert emptied >= len(trees) - 2


def test_bytes_put_into_hdf5_shift_what_stands_after_them(tmp_path):
    for libver in ("earliest", "latest"):
        path = tmp_path / "a.weights.h5"
        with h5py.File(path, "w", libver=libver) as file:
            file["q/vars/0"] = SECRET.reshape(2, 3)
        assert read(path)["q/kernel"].tolist() == SECRET.reshape(2, 3).tolist()
        path.write_bytes(path.read_bytes() + bytes(3))
        assert "it says that it ends at byte" in refusal(path)


# Claims against the size ---------------------------------------------------------------------------------


def test_a_small_pt_that_claims_gigabytes_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(1).expand(2, 10**9)}, tmp_path / "a.pt")
    assert "claims the shape (2, 1000000000) of a storage of 1 numbers" in refusal(tmp_path / "a.pt")
    torch.save({"w": torch.ones(2, 10**5, device="meta")}, tmp_path / "b.pt")
    with open_checkpoint(tmp_path / "b.pt") as checkpoint:
        assert (list(checkpoint.entries), dict(checkpoint.others)) == (
            [],
            {"w": "torch._utils._rebuild_meta_tensor_no_storage"},
        )
    tied = torch.ones(1000, 1000)
    torch.save({f"w{index}": tied for index in range(60)}, tmp_path / "c.pt")
    assert "its arrays would take 240000000 bytes" in refusal(tmp_path / "c.pt")


@pytest.mark.parametrize("suffix", [".npz", ".keras"])
def test_a_zip_that_grows_without_end_is_refused_before_it_does(suffix, tmp_path):
    name = {".npz": "w.npy", ".keras": "model.weights.h5"}[suffix]
    path = tmp_path / f"file{suffix}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (20 << 20,)})
        for _ in range(80):
            member.write(bytes(1 << 20))
    assert "its members would take 83886" in refusal(path)


def test_a_keras_file_that_was_zipped_again_is_unpacked_once(tmp_path, monkeypatch):
    arrays = {f"layer_{index}/query/kernel": np.full((2, 3, 4), index, "f4") for index in range(200)}
    with create(tmp_path / "a.weights.h5", format_of(tmp_path / "a.weights.h5"), layout="keras", configs={}) as add:
        for name, array in arrays.items():
            add(name, array)
    with zipfile.ZipFile(tmp_path / "a.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "a.weights.h5", "model.weights.h5")
    monkeypatch.delattr(zipfile.ZipExtFile, "seek")  # each step back would unpack it from its beginning
    with open_checkpoint(tmp_path / "a.keras") as checkpoint:
        assert all((checkpoint.array(name) == array).all() for name, array in arrays.items())


# Shared and deep structures ------------------------------------------------------------------------------


def nested(depth, *, shared):
    tree: dict = {"w": 1}
    for _ in range(depth):
        tree = {"a": tree, "b": tree} if shared else {"a": tree}
    return tree


@pytest.mark.parametrize("shared", [True, False])
def test_dicts_in_dicts_without_end_are_refused(shared, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(nested(40 if shared else 200, shared=shared), protocol=2))
    assert "its dicts stand in one another deeper than 64, or more often than it is long" in refusal(tmp_path / "a.pt")


def test_deep_msgpack_is_refused(tmp_path):
    (tmp_path / "a.msgpack").write_bytes(b"\x81\xa1a" * 5000 + b"\x00")
    refusal(tmp_path / "a.msgpack")
    (tmp_path / "b.msgpack").write_bytes(b"\x81\xa1a" * 100 + b"\x00")
    assert "deeper than 64" in refusal(tmp_path / "b.msgpack")
    (tmp_path / "c.msgpack").write_bytes(b"\x81\xa1a" + b"\xdd\xff\xff\xff\xff" * 500)
    refusal(tmp_path / "c.msgpack")


# Damage that could be read as another layer ------------------------------------------------------------------


def test_members_with_a_wrong_checksum_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    array = torch.arange(50.0)
    torch.save({"w": array}, tmp_path / "a.pt")
    np.savez(tmp_path / "a.npz", w=array.numpy())
    for name in ("a.pt", "a.npz"):
        data = bytearray((tmp_path / name).read_bytes())
        data[data.index(array.numpy().tobytes()) + 9] ^= 1
        (tmp_path / name).write_bytes(data)
        assert "Bad CRC-32" in refusal(tmp_path / name)


def test_a_name_that_stands_there_twice_is_refused(tmp_path):
    serialization = pytest.importorskip("flax.serialization")
    buffer = io.BytesIO()
    np.save(buffer, SECRET)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("w.npy", buffer.getvalue())
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("w.npy", buffer.getvalue())
    twice = serialization.msgpack_serialize({"w0": SECRET, "w1": SECRET + 1}).replace(b"\xa2w1", b"\xa2w0")
    (tmp_path / "a.msgpack").write_bytes(twice)
    path = tmp_path / "a.params"
    with create(path, format_of(path), layout="canonical", configs={}) as add:
        add("arg:w", SECRET)
        add("aux:w", SECRET)
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({"w0": 1, "w1": 2}, protocol=2).replace(b"w1", b"w0"))
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({"a": {"b": 1}, "a.b": 2}, protocol=2))
    for name in ("a.npz", "a.msgpack", "a.params", "a.pt", "b.pt"):
        assert "stands there twice" in refusal(tmp_path / name)


def test_a_member_that_the_table_of_contents_has_lost_is_missed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=SECRET, b=SECRET + 1, c=SECRET + 2)
    data = path.read_bytes()
    start = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", start + 4)
    third = data.index(b"PK\x01\x02", second + 4)
    end = bytearray(data[data.index(b"PK\x05\x06") :])
    end[12:16] = struct.pack("<I", len(data) - start - len(end) - (third - second))
    path.write_bytes(data[:second] + data[third : -len(end)] + bytes(end))
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["a.npy", "c.npy"]
    assert "stands what no entry names" in refusal(path)


def test_names_that_would_rewrite_the_terminal_are_refused(tmp_path):
    name = "attn.\x1b[2J[/red]" + "x" * 5000
    np.savez(tmp_path / "a.npz", **{name: SECRET})
    assert "must be printable and at most 1000 characters long. Got 'attn.\\x1b[2J[/red]" in refusal(tmp_path / "a.npz")


# PyTorch's pickles, read without PyTorch ---------------------------------------------------------------------


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
        assert checkpoint.others == {"w": "torch._utils._rebuild_sparse_tensor"}
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        for name in ("data.pkl", "constants.pkl"):
            archive.writestr(f"a/{name}", pickle.dumps({}, protocol=2))
    assert "no program (TorchScript)" in refusal(tmp_path / "b.pt")


@pytest.mark.parametrize(
    "name", ["attn.q_prpj.bias", "attn.q_proj.bais", "atn.q_proj.bias", "attn.qq_proj.bias", "attn.v_projbias"]
)
def test_a_misspelt_bias_is_no_missing_one(name, tmp_path):
    config = AttentionConfig(12, 3, bias={"q_proj": True, "v_proj": True, "out_proj": True})
    arrays = {f"attn.{own}": array for own, array in weights_of(config, 0).items()}
    meant = "attn.v_proj.bias" if "v" in name else "attn.q_proj.bias"
    arrays[name] = arrays.pop(meant)
    path = write(tmp_path / "a.safetensors", arrays, "canonical")
    with pytest.raises(SpecError, match=f"lacks {meant}, and there is '{name}': misspelt, or damaged"):
        convert(path, to_layout="canonical", out=tmp_path / "b.npz", num_heads=3)
    assert not (tmp_path / "b.npz").exists()


def test_a_bias_that_is_no_array_is_not_passed_over(tmp_path):
    serialization = pytest.importorskip("flax.serialization")
    layer: dict = {}
    for name, array in arrays_of("linen", AttentionConfig(12, 3, bias=True)).items():
        part, own = name.split("/")
        layer.setdefault(part, {})[own] = array
    layer["key"]["bias"] = 7
    (tmp_path / "a.msgpack").write_bytes(serialization.msgpack_serialize({"attn": layer}))
    with pytest.raises(SpecError, match="lacks attn/key/bias, and what has that name is no array"):
        convert(tmp_path / "a.msgpack", to_layout="canonical", out=tmp_path / "b.npz")


def test_a_bias_that_the_config_in_the_file_does_not_have_is_refused(tmp_path):
    config = AttentionConfig(12, 3)
    path = tmp_path / "a.safetensors"
    arrays = {**weights_of(config, 0), "q_proj.bias": np.ones(12, "f4")}
    save_file(arrays, path, metadata={"mha_config": json.dumps(config.to_dict())})
    with pytest.raises(SpecError, match="weights hold 'q_proj.bias', which this config does not have"):
        convert(path, to_layout="canonical", out=tmp_path / "b.npz")


# One recorded call -----------------------------------------------------------------------------------------


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


def edited_recording(path, change):
    config = AttentionConfig(6, 2)
    x = np.random.default_rng(0).normal(size=(1, 3, 6))
    layer = RecordedLayer("attn", "mine.Attention", "float64", config, init_weights(config, 0))
    inputs = AttentionInputs(x, x, x, AttentionMask(causal=True, query_offset=1))
    call = RecordedCall(0, inputs, {"output": reference.run(config, layer.weights, inputs).output})
    Recording((layer,), (call,), {"mine": "1"}).save(path, overwrite=True)
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
        description = json.loads(file.metadata()["mha_recording"])
    change(description)
    save_file(arrays, path, metadata={"mha_recording": json.dumps(description)})
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["calls"][0]["mask"].update(query_offset=1.7), "query_offset must be an"),
        (lambda d: d["calls"][0]["mask"].update(causal=1), "causal must be True or False"),
        (lambda d: d["calls"][0].update(layer=False), "one of 1 layers by position. Got False"),
        (lambda d: d.update(format=True), "its format must be a positive integer. Got True"),
        (lambda d: d["layers"][0].update(name="a\x1b[2J"), "must be a printable text"),
        (lambda d: d["layers"][0].update(kind="x" * 5000), "must be a printable text of at most 1000 characters"),
        (lambda d: d["versions"].update(mine=1), "a version must be a printable text"),
        (lambda d: d["layers"][0]["config"].update(scale=10**400), "beyond the range of integers"),
        (lambda d: d["calls"][0]["outputs"]["output"].update({"as": "float8"}), "by its name, and as bfloat16"),
        (lambda d: d["calls"][0].update(inputs=[]), "can't be used"),
        (lambda d: d.update(layers=[[]]), "can't be used"),
    ],
)
def test_every_field_of_a_recording_is_looked_at(change, message, tmp_path):
    with pytest.raises(SpecError) as caught:
        Recording.load(edited_recording(tmp_path / "calls.safetensors", change))
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert Recording.load(edited_recording(tmp_path / "calls.safetensors", lambda d: None)).names == ("attn",)


def test_a_bias_that_one_layer_lacks_and_its_neighbours_have_is_missed(tmp_path):
    config = AttentionConfig(12, 3, bias=True)
    arrays = {**arrays_of("canonical", config, "h.0.attn"), **arrays_of("canonical", config, "h.1.attn", seed=1)}
    arrays["g.0.attx.k_pr.bias"] = arrays.pop("h.0.attn.k_proj.bias")
    path = write(tmp_path / "a.safetensors", arrays, "canonical")
    with pytest.raises(SpecError, match="'h.0.attn' lacks h.0.attn.k_proj.bias, and its neighbour at 'h.1.attn' has"):
        convert(path, to_layout="canonical", out=tmp_path / "b.npz", num_heads=3, every=True, moved=True)


def test_markup_in_the_name_of_a_recorded_layer_is_shown_as_it_is(tmp_path):
    path = edited_recording(tmp_path / "calls.safetensors", lambda d: d["layers"][0].update(name="a[/red][bold]"))
    result = CliRunner().invoke(replay, [str(path), "--backend", "torch", "--case", "*"])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code in (0, 2), result.output
    console = Console(file=io.StringIO(), force_terminal=True)
    with console.status("") as status:
        says(status)("what a[/red] would have shown")
