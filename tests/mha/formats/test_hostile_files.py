"""Files made to do harm: to copy other files out, to fill the memory, to never end, to be read as another layer."""

import codecs
import io
import pickle
import struct
import zipfile

import h5py
import numpy as np
import pytest

from mha.formats import create, format_of, open_checkpoint
from tests.mha.convert.weight_files import arrays_of, write
from tests.mha.formats.refused_files import refusal
from tests.mha.formats.some_files import read

SECRET = np.arange(6, dtype="f4")


def in_group(path, fill):
    with h5py.File(path, "w") as file:
        fill(file.create_group("q/vars"))
    return path


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
        assert (dict(checkpoint.entries), checkpoint.others) == ({}, {"w": "Tensor"})
    tied = torch.ones(1000, 1000)
    torch.save({f"w{index}": tied for index in range(60)}, tmp_path / "c.pt")
    assert "its arrays would take 240000000 bytes" in refusal(tmp_path / "c.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pt_is_given_no_memory_that_its_file_does_not_fill(zipped, tmp_path):
    torch = pytest.importorskip("torch")

    class Made:
        def __init__(self, *call):
            self.call = call

        def __reduce__(self):
            return self.call

    rebuild = torch._tensor._rebuild_from_type_v2
    for name, made in {
        "torch.storage.UntypedStorage": Made(torch.UntypedStorage, (1000,)),
        "torch.storage.TypedStorage": Made(torch.TypedStorage, (1000,)),
        "torch.Tensor": Made(torch.Tensor, (1000,)),
        "__builtin__.bytearray": Made(bytearray, (3 * 10**9,)),
        "torch._tensor._rebuild_from_type_v2": Made(rebuild, (rebuild, torch.Tensor, (), {})),
    }.items():
        torch.save({"w": torch.ones(6), "x": made}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
        assert f"holds {name}, which is no tensor" in refusal(tmp_path / "a.pt")
    for encoding, words in (("latin1", ""), ("idna", "it encodes a text as ('idna',)")):
        made = Made(codecs.encode, ("abc", encoding))
        torch.save({"w": torch.ones(6), "x": made}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
        assert words in refusal(tmp_path / "a.pt") if words else list(read(tmp_path / "a.pt")) == ["w"]
    torch.save({"w": torch.ones(6)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    data = (tmp_path / "a.pt").read_bytes()
    for place in [at for at in range(len(data)) if data.startswith(b"K\x06", at)]:
        (tmp_path / "a.pt").write_bytes(data[: place + 1] + b"\xc8" + data[place + 2 :])
        refusal(tmp_path / "a.pt")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("order", [b"little", b"big"])
def test_a_pt_that_was_zipped_again_or_has_the_other_order_of_bytes_is_read(order, method, tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"v": torch.zeros(0), "w": torch.arange(6.0), "x": torch.arange(3.0) + 7}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as source, zipfile.ZipFile(tmp_path / "b.pt", "w", method) as target:
        for name in source.namelist():
            data = source.read(name)
            if order == b"big" and "/data/" in name:
                data = np.frombuffer(data, "<f4").astype(">f4").tobytes()
            target.writestr(name, order if name.endswith("byteorder") else data)
    with open_checkpoint(tmp_path / "b.pt") as checkpoint:
        assert checkpoint.array("w").tolist() == [0, 1, 2, 3, 4, 5]
        assert checkpoint.array("x").tolist() == [7, 8, 9]
        assert checkpoint.array("v").shape == (0,)


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


def nested(depth, *, shared):
    tree: dict = {"w": 1}
    for _ in range(depth):
        tree = {"a": tree, "b": tree} if shared else {"a": tree}
    return tree


@pytest.mark.parametrize("shared", [True, False])
def test_dicts_in_dicts_without_end_are_refused(shared, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(nested(40 if shared else 200, shared=shared), protocol=2))
        archive.writestr("a/version", "3")
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
        assert "cut off" not in refusal(tmp_path / name)


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
        archive.writestr("a/version", "3")
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
