"""Files of weights: what other programs write is read, what we write is read by them, and damage is refused."""

import pickle
import re
import sys

import numpy as np
import pytest

from mha.formats import FORMATS, open_checkpoint
from mha_core import SpecError
from tests.mha.formats.refused_files import refusal
from tests.mha.formats.some_files import BFLOAT16, NEEDS, WRITABLE, assert_same, numbers, read, some_arrays, write


@pytest.mark.parametrize(
    ("form", "dtype"),
    [(form, dtype) for form in WRITABLE for dtype in form.dtypes],
    ids=lambda part: getattr(part, "name", part),
)
def test_what_is_written_is_read_to_the_bit(form, dtype, tmp_path):
    pytest.importorskip(NEEDS.get(form.name, "numpy"))
    arrays = some_arrays(BFLOAT16 if dtype == "bfloat16" else dtype)
    path = write(tmp_path / f"file{form.suffixes[0]}", arrays)
    assert_same(read(path), arrays)
    with open_checkpoint(path) as checkpoint:
        entries = checkpoint.entries
        assert {name: (entry.shape, entry.dtype) for name, entry in entries.items()} == {
            name: (array.shape, dtype) for name, array in arrays.items()
        }


@pytest.mark.parametrize("form", WRITABLE, ids=lambda form: form.name)
def test_a_transposed_view_is_written_as_it_reads(form, tmp_path):
    pytest.importorskip(NEEDS.get(form.name, "numpy"))
    array = numbers(5, 2, 3).transpose(2, 1, 0)
    path = write(tmp_path / f"file{form.suffixes[0]}", {"attn/query/kernel": array})
    np.testing.assert_array_equal(read(path)["attn/query/kernel"], array)


@pytest.mark.parametrize("form", WRITABLE, ids=lambda form: form.name)
def test_a_file_cut_anywhere_is_refused_in_one_line(form, tmp_path):
    pytest.importorskip(NEEDS.get(form.name, "numpy"))
    whole = write(tmp_path / f"whole{form.suffixes[0]}", some_arrays()).read_bytes()
    path = tmp_path / f"cut{form.suffixes[0]}"
    for length in (0, 1, 7, 15, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert re.search("is not a whole .* file|can't be read", refusal(path))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("other", ["safetensors", "npz", "MXNet params", "Keras weights"])
def test_another_format_than_the_suffix_says_is_refused(form, other, tmp_path):
    pytest.importorskip(NEEDS.get(form.name, "numpy"))
    if form.name == other:
        return
    suffix = next(known.suffixes[0] for known in FORMATS if known.name == other)
    path = tmp_path / f"file{form.suffixes[0]}"
    path.write_bytes(write(tmp_path / f"real{suffix}", some_arrays()).read_bytes())
    assert "is not a whole" in refusal(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.params", b"PK\x03\x04" + bytes(30), "it looks like zip archive"),
        ("a.safetensors", b"\x89HDF\r\n\x1a\n" + bytes(30), "it looks like HDF5"),
        ("a.npz", b"\x80\x04K\x01.", "it looks like pickle"),
        ("a.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "it looks like a Git LFS pointer"),
        ("a.weights.h5", b"", "is not a whole Keras weights file: it looks like an empty file"),
        ("a.safetensors", b"hello", "is not a whole safetensors file: it looks like a text"),
        ("a.onnx", b"", "the suffix names no format that is known (known: .safetensors, .pt"),
    ],
)
def test_a_refusal_says_what_the_file_looks_like(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert message in refusal(tmp_path / name)


def test_an_archive_under_another_name_is_told_what_to_be_called(tmp_path):
    for suffix, form in ((".npz", "npz"), (".pt", "torch")):
        path = tmp_path / f"{form}.safetensors"
        path.write_bytes(write(tmp_path / f"real{suffix}", some_arrays()).read_bytes())
        assert re.search(rf"it looks like zip archive of \w+.*: rename it {form}{suffix}$", refusal(path))


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path):
    assert "there is no file" in refusal(tmp_path / "none.npz")
    (tmp_path / "folder.npz").mkdir()
    assert "folder.npz has no file of weights" in refusal(tmp_path / "folder.npz")
    (tmp_path / "model.safetensors").touch()
    said = refusal(tmp_path / "model.safetensor")
    assert said.startswith("no such file: ")
    assert "model.safetensor; did you mean model.safetensors" in said


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("a.weights.h5", "h5py", "convert"), ("a.msgpack", "msgpack", "jax"), ("a.pt", "torch", "torch")],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(name, package, extra, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, package, None)
    for reader in ("keras", "hdf5", "flax", "pytorch"):
        monkeypatch.delitem(sys.modules, f"mha.formats.readers.{reader}", raising=False)
    said = f"need the package '{package}', which is not installed: pip install '.*{extra}"
    assert re.search(said, refusal(tmp_path / name))


class Malicious:
    """Unpickling it would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("how", ["zipped", "legacy", "pickle 2", "pickle 4", "inside a state_dict"])
def test_a_pickle_with_code_is_refused_and_not_run(how, tmp_path):
    torch = pytest.importorskip("torch")
    mark, path = tmp_path / "mark", tmp_path / "file.pt"
    if how.startswith("pickle"):
        path.write_bytes(pickle.dumps(Malicious(mark), protocol=int(how[-1])))
    else:
        content = {"w": torch.ones(2), "x": Malicious(mark)} if how == "inside a state_dict" else Malicious(mark)
        torch.save(content, path, _use_new_zipfile_serialization=how != "legacy")
    said = refusal(path)
    assert not mark.exists()
    assert "holds io.open, which is no tensor: reading it would run code" in said
    assert "weights_only" not in said, "nobody is advised to switch the safety off"


def test_a_pytorch_whose_safe_reader_can_run_code_is_given_no_file(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.9.1"))
    monkeypatch.setattr(torch, "load", None)
    said = r"PyTorch 2\.10 or later must read it.* Got 2\.9\.1: pip install -U torch"
    assert re.search(said, refusal(tmp_path / "a.pt"))


def test_what_a_program_allows_pytorch_is_refused_all_the_same(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(2), "x": Malicious(tmp_path / "mark")}, tmp_path / "a.pt")
    with torch.serialization.safe_globals([open]):
        assert "holds io.open, which is no tensor" in refusal(tmp_path / "a.pt")
    assert not (tmp_path / "mark").exists()


def test_an_npz_that_is_cut_off_is_said_to_be(tmp_path):
    path = tmp_path / "cut.npz"
    np.savez(path, w=np.arange(900.0))
    whole = path.read_bytes()
    path.write_bytes(whole[:4000] + b"damage" + whole[4006:])
    assert "Bad CRC-32" in refusal(path)
    path.write_bytes(whole[:5000])
    cut = "cut.npz is not a whole npz file: it is cut off, at 5,000 bytes: write, copy or download it again"
    assert refusal(path).endswith(cut)


def test_pickled_objects_in_npz_are_refused_and_not_run(tmp_path):
    mark, path = tmp_path / "mark", tmp_path / "file.npz"
    np.savez(path, w=np.array([Malicious(mark)], dtype=object))
    assert "w.npy holds pickled objects, whose reading could run code; it is refused" in refusal(path)
    assert not mark.exists()


def test_arrays_of_other_dtypes_are_listed_and_refused_when_read(tmp_path):
    path = tmp_path / "file.npz"
    np.savez(path, counts=np.arange(3), w=numbers(2))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.entries["counts"].dtype == "int64"
        with pytest.raises(SpecError, match="counts must be of float64, float32, float16, bfloat16. Got int64"):
            checkpoint.array("counts")
