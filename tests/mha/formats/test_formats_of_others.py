"""Files of weights that other programs write are read, and ours are read by them."""

import io
import struct
import zipfile

import h5py
import numpy as np
import pytest

from tests.mha.formats.refused_files import refusal
from tests.mha.formats.some_files import BFLOAT16, assert_same, numbers, read, write


def test_npz_of_other_byte_order_is_read_and_a_member_shorter_than_its_shape_refused(tmp_path):
    array = numbers(3, 2)
    np.savez_compressed(tmp_path / "file.npz", w=array.astype(">f4"))
    assert_same(read(tmp_path / "file.npz"), {"w": array})
    buffer = io.BytesIO()
    np.save(buffer, numbers(3, 2))
    with zipfile.ZipFile(tmp_path / "file.npz", "w") as archive:
        archive.writestr("w.npy", buffer.getvalue()[:-4])
    assert "w.npy is not as long as its shape says" in refusal(tmp_path / "file.npz")


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


def params_with(
    *, magic=0xF993FAC9, storage=0, shape=(2,), ndim=1, dtype=0, numbers_=b"\0" * 8, count=1, name=b"w", length=1
):
    array = struct.pack("<Ii", magic, storage) + struct.pack(f"<i{len(shape)}q", ndim * len(shape), *shape)
    array += struct.pack("<iii", 1, 0, dtype) + numbers_
    return struct.pack("<QQQ", 0x112, 0, count) + array + struct.pack("<QQ", 1, length) + name


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"magic": 7}, "at byte 24 there must be an array. Got 0x7."),
        ({"storage": 1}, "there must be a dense array. Got storage type 1."),
        ({"shape": (2**40, 2**40)}, "goes beyond the file's"),
        ({"shape": (-2,)}, "there must be a shape and a dtype. Got (-2,) and 0."),
        ({"dtype": 12}, "there must be a shape and a dtype. Got (2,) and 12."),
        ({"count": 2**60}, "it can't hold 1152921504606846976 arrays"),
        ({"ndim": 40}, "there must be a number of axes. Got 40."),
        ({"name": b"\xff"}, "a name is not text: "),
        ({"length": 2}, "it ends early"),
        ({"length": 2**40}, "a name can't be 1099511627776 bytes long"),
        ({"numbers_": b"\0" * 4}, "it ends early|it holds 1 arrays and|a name can't be"),
    ],
)
def test_damaged_mxnet_files_say_where(damage, message, tmp_path):
    path = tmp_path / "file.params"
    path.write_bytes(params_with())
    assert_same(read(path), {"w": np.zeros(2, "float32")})
    path.write_bytes(params_with(**damage))
    said = refusal(path)
    assert "is not a whole MXNet params file" in said
    assert any(part in said for part in message.split("|"))


def test_keras_2_files_are_refused_in_words(tmp_path):
    with h5py.File(tmp_path / "file.weights.h5", "w") as file:
        file.attrs["layer_names"] = ["attn"]
    assert "it holds no variables of layers as Keras 3 keeps them" in refusal(tmp_path / "file.weights.h5")


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
