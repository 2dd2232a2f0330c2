"""Files of weights: what other programs write is read, what we write is read by them, and damage is refused."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import sys
import zipfile

import h5py
import ml_dtypes
import numpy as np
import pytest

from mha.formats import FORMATS, create, format_of, open_checkpoint
from mha_core import SpecError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NEEDS = {"PyTorch": "torch", "Flax msgpack": "flax"}
WRITABLE = [form for form in FORMATS if not form.readable_only]


def numbers(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def some_arrays(dtype="float32"):
    return {
        "attn/query/kernel": numbers(3, 2, 5, dtype=dtype),
        "attn/query/bias": numbers(2, 5, dtype=dtype, seed=1),
        "other/value/kernel": numbers(4, 2, 3, dtype=dtype, seed=2),
    }


def write(path, arrays, layout="keras", configs=None):
    with create(path, format_of(path), layout=layout, configs={} if configs is None else configs) as add:
        for name, array in arrays.items():
            add(name, array)
    return path


def read(path):
    with open_checkpoint(path) as checkpoint:
        return {name: checkpoint.array(name) for name in checkpoint.entries}


def assert_same(found, wanted):
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


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


# Damage and disguise --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", WRITABLE, ids=lambda form: form.name)
def test_a_file_cut_anywhere_is_refused_in_one_line(form, tmp_path):
    pytest.importorskip(NEEDS.get(form.name, "numpy"))
    whole = write(tmp_path / f"whole{form.suffixes[0]}", some_arrays()).read_bytes()
    path = tmp_path / f"cut{form.suffixes[0]}"
    for length in (0, 1, 7, 15, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(SpecError, match="is not a whole .* file|can't be read") as caught:
            read(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("other", ["safetensors", "npz", "MXNet params", "Keras weights"])
def test_another_format_than_the_suffix_says_is_refused(form, other, tmp_path):
    pytest.importorskip(NEEDS.get(form.name, "numpy"))
    if form.name == other:
        return
    suffix = next(known.suffixes[0] for known in FORMATS if known.name == other)
    path = tmp_path / f"file{form.suffixes[0]}"
    path.write_bytes(write(tmp_path / f"real{suffix}", some_arrays()).read_bytes())
    with pytest.raises(SpecError, match="is not a whole"):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.params", b"PK\x03\x04" + bytes(30), "it looks like zip archive"),
        ("a.safetensors", b"\x89HDF\r\n\x1a\n" + bytes(30), "it looks like HDF5"),
        ("a.npz", b"\x80\x04K\x01.", "it looks like pickle"),
        ("a.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "it looks like a Git LFS pointer"),
        ("a.weights.h5", b"", "it looks like an empty file"),
        ("a.onnx", b"", "the suffix names no format that is known (known: .safetensors, .pt"),
    ],
)
def test_a_refusal_says_what_the_file_looks_like(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecError) as caught:
        read(tmp_path / name)
    assert message in str(caught.value)


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path):
    with pytest.raises(SpecError, match="there is no file"):
        read(tmp_path / "none.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(SpecError, match="folder.npz has no file of weights"):
        read(tmp_path / "folder.npz")


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("a.weights.h5", "h5py", "convert"), ("a.msgpack", "msgpack", "jax")],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(name, package, extra, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, package, None)
    for reader in ("keras", "hdf5", "flax"):
        monkeypatch.delitem(sys.modules, f"mha.formats.readers.{reader}", raising=False)
    with pytest.raises(SpecError, match=f"need the package '{package}', which is not .*mha-parity.{extra}."):
        read(tmp_path / name)


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
    with pytest.raises(SpecError) as caught:
        read(path)
    assert not mark.exists()
    assert "holds io.open, which is no tensor: reading it would run code" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value), "nobody is advised to switch the safety off"


def test_pickled_objects_in_npz_are_refused_and_not_run(tmp_path):
    mark, path = tmp_path / "mark", tmp_path / "file.npz"
    np.savez(path, w=np.array([Malicious(mark)], dtype=object))
    with pytest.raises(SpecError, match="w.npy holds pickled objects, whose reading could run code; it is refused"):
        read(path)
    assert not mark.exists()


def test_arrays_of_other_dtypes_are_listed_and_refused_when_read(tmp_path):
    path = tmp_path / "file.npz"
    np.savez(path, counts=np.arange(3), w=numbers(2))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.entries["counts"].dtype == "int64"
        with pytest.raises(SpecError, match="counts must be of float64, float32, float16, bfloat16. Got int64"):
            checkpoint.array("counts")


# What other programs write and read -----------------------------------------------------------------------


def test_npz_of_other_byte_order_is_read_in_this_machines(tmp_path):
    array = numbers(3, 2)
    np.savez_compressed(tmp_path / "file.npz", w=array.astype(">f4"))
    assert_same(read(tmp_path / "file.npz"), {"w": array})


def test_an_npz_member_shorter_than_its_shape_is_refused(tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, numbers(3, 2))
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as archive:
        archive.writestr("w.npy", buffer.getvalue()[:-4])
    with pytest.raises(SpecError, match="w.npy is not as long as its shape says"):
        read(tmp_path / "file.npz")


def test_state_dicts_in_dicts_and_old_files_are_read_without_copies_of_other_things(tmp_path):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 2)
    wanted = {f"model.{name}": tensor.detach().numpy() for name, tensor in layer.state_dict().items()}
    for index, zipped in enumerate((True, False)):
        path = tmp_path / f"{index}.pth"
        torch.save({"model": layer.state_dict(), "epoch": 3}, path, _use_new_zipfile_serialization=zipped)
        assert_same(read(path), wanted)


def test_torch_loads_what_we_write(tmp_path):
    torch = pytest.importorskip("torch")
    array = numbers(2, 3, dtype=BFLOAT16)
    found = torch.load(write(tmp_path / "file.pt", {"w": array}), weights_only=True)
    assert found["w"].dtype == torch.bfloat16
    assert found["w"].tolist() == array.astype(float).tolist()


def test_flax_reads_what_we_write_and_writes_what_we_read(tmp_path):
    serialization = pytest.importorskip("flax.serialization")
    jnp = pytest.importorskip("jax.numpy")
    tree = {"params": {"Dense_0": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3, jnp.bfloat16)}}, "step": 3}
    (tmp_path / "theirs.msgpack").write_bytes(serialization.to_bytes(tree))
    wanted = {"params/Dense_0/kernel": np.ones((2, 3), "f4"), "params/Dense_0/bias": np.zeros(3, BFLOAT16)}
    assert_same(read(tmp_path / "theirs.msgpack"), wanted)
    ours = write(tmp_path / "ours.msgpack", {name: array + 1 for name, array in wanted.items()})
    template = {"params": {"Dense_0": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3, jnp.bfloat16)}}}
    restored = serialization.from_bytes(template, ours.read_bytes())
    assert restored["params"]["Dense_0"]["kernel"].tolist() == [[2.0] * 3] * 2
    assert str(restored["params"]["Dense_0"]["bias"].dtype) == "bfloat16"


@pytest.mark.filterwarnings("ignore:Please import:DeprecationWarning")  # of SciPy, by MXNet
def test_mxnet_files_of_every_kind_are_read_and_ours_are_loaded(tmp_path):
    framework = pytest.importorskip("backends.mxnet.ops.framework")
    mx = framework.mx
    arrays = {"W_q.weight": numbers(2, 3, dtype="float64"), "b": numbers(4, dtype="float16")}
    in_nd = {name: mx.nd.array(array, dtype=array.dtype) for name, array in arrays.items()}
    mx.nd.save(str(tmp_path / "nd.params"), in_nd)
    assert_same(read(tmp_path / "nd.params"), arrays)
    with_kind = {f"arg:{name}": array for name, array in in_nd.items()}
    mx.nd.save(str(tmp_path / "model.params"), {**with_kind, "aux:mean": mx.nd.ones(2)})
    assert_same(read(tmp_path / "model.params"), {**arrays, "mean": np.ones(2, "float32")})
    with mx.util.np_shape(True), mx.util.np_array(True):
        scalar = np.array(1.5)
        in_np = {name: mx.np.array(array, dtype=array.dtype) for name, array in {**arrays, "scalar": scalar}.items()}
        mx.npx.save(str(tmp_path / "np.params"), in_np)
    assert_same(read(tmp_path / "np.params"), {**arrays, "scalar": scalar})
    layer = mx.gluon.nn.Dense(3, in_units=2)
    layer.initialize()
    layer.save_parameters(str(tmp_path / "gluon.params"))
    wanted = {"weight": layer.weight.data().asnumpy(), "bias": layer.bias.data().asnumpy()}
    assert_same(read(tmp_path / "gluon.params"), wanted)

    found = mx.nd.load(str(write(tmp_path / "ours.params", arrays)))
    assert_same({name: array.asnumpy() for name, array in found.items()}, arrays)
    layer.load_parameters(str(write(tmp_path / "layer.params", {name: array + 1 for name, array in wanted.items()})))
    np.testing.assert_array_equal(layer.weight.data().asnumpy(), wanted["weight"] + 1)


def params_with(*, magic=0xF993FAC9, storage=0, shape=(2,), dtype=0, numbers_=b"\0" * 8, count=1):
    array = struct.pack("<Ii", magic, storage) + struct.pack(f"<i{len(shape)}q", len(shape), *shape)
    array += struct.pack("<iii", 1, 0, dtype) + numbers_
    return struct.pack("<QQQ", 0x112, 0, count) + array + struct.pack("<QQ", 1, 1) + b"w"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"magic": 7}, "at byte 24 there must be an array. Got 0x7."),
        ({"storage": 1}, "there must be a dense array. Got storage type 1."),
        ({"shape": (2**40, 2**40)}, "goes beyond the file's"),
        ({"shape": (-2,)}, "there must be a shape and a dtype. Got (-2,) and 0."),
        ({"dtype": 12}, "there must be a shape and a dtype. Got (2,) and 12."),
        ({"count": 2**60}, "it can't hold 1152921504606846976 arrays"),
        ({"numbers_": b"\0" * 4}, "it ends early|it holds 1 arrays and|a name can't be"),
    ],
)
def test_damaged_mxnet_files_say_where(damage, message, tmp_path):
    path = tmp_path / "file.params"
    path.write_bytes(params_with())
    assert_same(read(path), {"w": np.zeros(2, "float32")})
    path.write_bytes(params_with(**damage))
    with pytest.raises(SpecError, match="is not a whole MXNet params file") as caught:
        read(path)
    assert any(part in str(caught.value) for part in message.split("|"))


def test_damaged_bytes_of_an_mxnet_file_never_raise_anything_else(tmp_path):
    whole = bytearray(write(tmp_path / "whole.params", some_arrays()).read_bytes())
    path = tmp_path / "file.params"
    rng = np.random.default_rng(3)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        with contextlib.suppress(SpecError):
            read(path)


def test_keras_2_files_are_refused_in_words(tmp_path):
    with h5py.File(tmp_path / "file.weights.h5", "w") as file:
        file.attrs["layer_names"] = ["attn"]
    with pytest.raises(SpecError, match="it holds no variables of layers as Keras 3 keeps them"):
        read(tmp_path / "file.weights.h5")


# Keras itself converts TensorFlow's variables so while it saves, which NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_keras_files_and_models_are_read(tmp_path):
    keras = pytest.importorskip("backends.tf.ops.framework").keras
    inputs = keras.Input((3, 8))
    layers = [keras.layers.MultiHeadAttention(2, 4), keras.layers.GroupQueryAttention(4, 2, 2)]
    dense, norm = keras.layers.Dense(8), keras.layers.LayerNormalization()
    attended = layers[1](layers[0](inputs, inputs), inputs)
    model = keras.Model(inputs, norm(dense(attended)))
    model.save_weights(tmp_path / "model.weights.h5")
    model.save(tmp_path / "model.keras")
    names = {"multi_head_attention": layers[0], "grouped_query_attention": layers[1]}
    wanted = {
        f"layers/{prefix}/{'/'.join(variable.path.split('/')[-2:])}": np.asarray(variable)
        for prefix, layer in names.items()
        for variable in layer.variables
        if "seed" not in variable.path
    }
    wanted |= {"layers/dense/kernel": np.asarray(dense.kernel), "layers/dense/bias": np.asarray(dense.bias)}
    wanted |= {f"layers/layer_normalization/vars/{i}": np.asarray(v) for i, v in enumerate(norm.variables)}
    for name in ("model.weights.h5", "model.keras"):
        assert_same(read(tmp_path / name), wanted)


@pytest.mark.parametrize("kind", ["MultiHeadAttention", "GroupQueryAttention"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keras_loads_what_we_write_into_a_layer(kind, dtype, tmp_path):
    keras = pytest.importorskip("backends.tf.ops.framework").keras
    options = (2, 4) if kind == "MultiHeadAttention" else (4, 2, 2)
    layer = getattr(keras.layers, kind)(*options, dtype=dtype)
    layer.build((None, 3, 8), (None, 3, 8))
    weights = [variable for variable in layer.variables if "seed" not in variable.path]
    arrays = {
        "/".join(variable.path.split("/")[-2:]): numbers(*variable.shape, dtype=dtype, seed=seed)
        for seed, variable in enumerate(weights)
    }
    path = write(tmp_path / "layer.weights.h5", arrays, {"MultiHeadAttention": "keras"}.get(kind, "keras-gqa"))
    keras.saving.load_weights(layer, path)
    for variable, array in zip(weights, arrays.values(), strict=True):
        assert np.asarray(variable).astype(array.dtype).tobytes() == array.tobytes(), variable.path
