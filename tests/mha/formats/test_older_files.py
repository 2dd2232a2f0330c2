"""tf_model.h5 and flax_model.msgpack: every attention layer of four families is read and is PyTorch's to the bit."""

import json

import numpy as np
import pytest

from mha.convert.convert import convert
from mha.formats import open_checkpoint
from mha.formats.layer import read_layer
from mha.formats.survey import survey_file
from mha_core import SpecError
from mha_core.layouts import get
from tests.mha.convert.weight_files import verify_in_numpy
from tests.mha.formats.older_files import write_flax, write_tf

FORMS = {"tf_model.h5": (write_tf, "h5py"), "flax_model.msgpack": (write_flax, "flax")}
E, H, LAYERS = 12, 3, 11


def conv(rng, name, into, out):
    """PyTorch's Conv1D: (in, out)."""
    arrays = {"weight": rng.normal(size=(into, out)), "bias": rng.normal(size=out)}
    return {f"{name}.{part}": array.astype("float32") for part, array in arrays.items()}


def linear(rng, name, out, into):
    return {part: array.T.copy() for part, array in conv(rng, name, into, out).items()}


def bert(rng, layer, parts=("attention.self", "attention.output.dense"), start="encoder.layer"):
    at = f"{start}.{layer}"
    arrays = {}
    for name in ("query", "key", "value"):
        arrays |= linear(rng, f"{at}.{parts[0]}.{name}", E, E)
    arrays |= linear(rng, f"{at}.{parts[1]}", E, E) | linear(rng, f"{at}.intermediate.dense", 20, E)
    return arrays | linear(rng, f"{at}.output.dense", E, 20) | {f"{at}.output.LayerNorm.weight": np.ones(E, "float32")}


def vit(rng, layer):
    return bert(rng, layer, ("attention.attention", "attention.output.dense"))


def gpt2(rng, layer):
    at = f"h.{layer}"
    arrays = conv(rng, f"{at}.attn.c_attn", E, 3 * E) | conv(rng, f"{at}.attn.c_proj", E, E)
    arrays |= conv(rng, f"{at}.crossattention.c_attn", E, 2 * E) | conv(rng, f"{at}.crossattention.q_attn", E, E)
    arrays |= conv(rng, f"{at}.crossattention.c_proj", E, E)
    return arrays | conv(rng, f"{at}.mlp.c_fc", E, 20) | conv(rng, f"{at}.mlp.c_proj", 20, E)


def bart(rng, layer):
    arrays = {}
    for part in ("self_attn", "encoder_attn"):
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            arrays |= linear(rng, f"decoder.layers.{layer}.{part}.{name}", E, E)
    return arrays | linear(rng, f"decoder.layers.{layer}.fc1", 20, E)


GPT2 = ("gpt2", "gpt2-tf", "gpt2-flax")
KERNELS = ("canonical", "bart-kernel", "bart-kernel")
MODELS = {
    "bert": (bert, {"attention": ("bert", "bert-kernel", "bert-kernel")}),
    "vit": (vit, {"attention": ("vit", "vit-kernel", "vit-kernel")}),
    "gpt2": (gpt2, {"attn": GPT2, "crossattention": tuple(name.replace("gpt2", "gpt2-cross") for name in GPT2)}),
    "bart": (bart, {"self_attn": KERNELS, "encoder_attn": KERNELS}),
}
"""Family -> its arrays by PyTorch's names, and the layouts of its layers in PyTorch, TensorFlow and Flax."""


def model(family):
    rng = np.random.default_rng(0)
    arrays = {"embeddings.word_embeddings.weight": rng.normal(size=(7, E)).astype("float32")}
    for layer in range(LAYERS):
        arrays |= MODELS[family][0](rng, layer)
    return arrays


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("family", MODELS)
def test_every_layer_of_an_older_file_is_the_same_as_in_pytorch(family, name, tmp_path):
    write, package = FORMS[name]
    pytest.importorskip(package)
    arrays = model(family)
    write(tmp_path / name, family, arrays)
    (tmp_path / "config.json").write_text("{}")
    seen = survey_file(tmp_path)  # the folder finds the file
    kinds = MODELS[family][1]
    assert len(seen.layers) == LAYERS * len(kinds)
    assert (seen.incomplete, seen.unseen) == ((), ())
    start = {"bert": "encoder.layer", "vit": "encoder.layer", "gpt2": "h", "bart": "decoder.layers"}[family]
    wanted = [(number, kind) for number in range(LAYERS) for kind in kinds]
    with open_checkpoint(tmp_path) as checkpoint:
        for (number, kind), layer in zip(wanted, seen.layers, strict=True):
            layout, own = kinds[kind][0], kinds[kind][1 if name == "tf_model.h5" else 2]
            assert layer.layouts == (own,)
            assert layer.prefix.endswith(f"{number}/{kind}")
            prefix = f"{start}.{number}.{kind}"
            full = get(layout).names_of(prefix, arrays)
            config, weights = get(layout).read({part: arrays[one] for part, one in full.items()}, num_heads=H)
            found, held, _ = read_layer(checkpoint, get(own), layer.prefix, num_heads=H)
            assert found == config
            for part, array in weights.items():
                assert held[part].tobytes() == array.tobytes()


def test_a_keras_layer_in_a_file_of_keras_2_and_its_damage(tmp_path):
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    shapes = {"query": (E, H, 4), "key": (E, H, 4), "value": (E, H, 4), "attention_output": (H, 4, E)}
    names = [f"mha/{part}/kernel:0" for part in shapes]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("model_weights/mha")
        for name, shape in zip(names, shapes.values(), strict=True):
            group.create_dataset(name, data=rng.normal(size=shape))
        group.attrs["weight_names"] = [name.encode() for name in names]
        file["model_weights"].attrs["layer_names"] = [b"mha"]
        file.create_dataset("optimizer_weights/Adam/mha/query/kernel/m:0", data=np.ones((3, 5)))
    (layer,) = survey_file(tmp_path / "a.h5").layers
    assert (layer.prefix, layer.layouts, layer.num_heads) == ("mha/mha", ("keras", "keras-gqa"), H)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["model_weights/mha/mha/key/kernel:0"]
    with pytest.raises(SpecError, match=r"lacks model_weights/mha/mha/key/kernel:0, which its own list has \(1 of 4"):
        survey_file(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("layers/mha/query_dense/vars/0", data=np.ones((3, 5)))
    with pytest.raises(SpecError, match="no variables as Keras 2 names them, which end in :0"):
        survey_file(tmp_path / "b.h5")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["a:0"] = h5py.ExternalLink("a.h5", "/")
    with pytest.raises(SpecError, match="is refused: a:0 is a link into another file"):
        survey_file(tmp_path / "c.h5")
    (tmp_path / "d.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:900])
    with pytest.raises(SpecError, match="is not a whole Keras 2 weights file"):
        survey_file(tmp_path / "d.h5")


def test_a_shard_of_a_tensorflow_model_lists_its_arrays_without_groups(tmp_path):
    """tf_model-00001-of-00002.h5: variables below the root, named by the file's own list."""
    h5py = pytest.importorskip("h5py")
    arrays = {
        f"bert/encoder/layer_._{n}/attention/self/{p}/kernel:0": np.ones((E, E), "float32") * n
        for n in (2, 10)
        for p in ("query", "key", "value")
    }
    with h5py.File(tmp_path / "tf_model-00001-of-00002.h5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
        file.attrs["layer_names"] = [name.encode() for name in arrays]
    seen = survey_file(tmp_path / "tf_model-00001-of-00002.h5")
    assert [layer.prefix for layer in seen.incomplete] == [f"bert/encoder/layer_._{n}/attention" for n in (2, 10)]


@pytest.mark.parametrize("name", FORMS)
def test_the_folder_of_an_older_model_is_known_by_its_config_and_converted(name, tmp_path, monkeypatch):
    write, package = FORMS[name]
    pytest.importorskip(package)
    verify_in_numpy(monkeypatch)
    write(tmp_path / name, "bert", model("bert"))
    config = {"model_type": "bert", "num_attention_heads": H, "hidden_size": E, "num_hidden_layers": LAYERS}
    (tmp_path / "config.json").write_text(json.dumps(config))
    out = tmp_path / "out.npz"
    done = convert(tmp_path, to_layout="bert", out=out, every=True, to_prefix="{index}")
    assert {layer.standing.word for layer in done.layers} == {"known"}
    with np.load(out) as file:
        for number in range(LAYERS):
            for part in get("bert").required:
                wanted = model("bert")[f"encoder.layer.{number}.attention.{part}"]
                assert file[f"{number}.{part}"].tobytes() == wanted.tobytes()
