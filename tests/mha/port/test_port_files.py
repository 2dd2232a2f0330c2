"""`mha port` and the files of a model: everything that is judged comes from them, and what they say is kept to."""

import json
import shutil

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from mha.cli.porter.port import port as command  # noqa: E402
from mha.port.model import load_trained  # noqa: E402
from mha_core import SpecError  # noqa: E402
from tests.mha.recipes.hf_models import save_encoder  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there

TEXT = "the cat sleeps ."
ATTENTION = "encoder.layer.1.attention"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model")


def change_arrays(folder, change):
    """The weights of the folder as `change` makes them."""
    file = folder / "model.safetensors"
    arrays = {name: array.contiguous().clone() for name, array in change(load_file(file)).items()}
    save_file(arrays, file, metadata={"format": "pt"})


def change_json(folder, name="config.json", **values):
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def mha_port(folder, *arguments):
    return CliRunner().invoke(command, [str(folder), "--backend", "torch", "--text", TEXT, *map(str, arguments)])


def without(part):
    return lambda arrays: {name: array for name, array in arrays.items() if part not in name}


def with_one(name, array=None):
    return lambda arrays: {**arrays, name: torch.full((2, 3), 0.5) if array is None else array}


def beneath(prefix):
    return lambda arrays: {prefix + name: array for name, array in arrays.items()}


def cut(name, rows):
    return lambda arrays: {**arrays, name: arrays[name][:rows]}


WORDS = "embeddings.word_embeddings.weight"
REFUSED = {
    "one layer's attention is missing": (without(ATTENTION), f"lacks {ATTENTION}.self.query.weight, "),
    "one bias is missing": (without(f"{ATTENTION}.self.key.bias"), f"lacks {ATTENTION}.self.key.bias; transformers"),
    "every name under an unknown prefix": (beneath("mine."), f"lacks {WORDS}, "),
    "names of both kinds": (lambda arrays: {**arrays, **beneath("bert.")(arrays)}, f"holds {WORDS} more than once"),
    "an adapter": (with_one("encoder.layer.0.attention.self.query.lora_A"), "lora_A, for which BertModel has no place"),
    "positions relative to each other": (
        with_one("encoder.layer.0.attention.self.distance_embedding.weight"),
        "distance_embedding.weight, for which BertModel has no place",
    ),
    "other position numbers": (
        with_one("embeddings.position_ids", torch.tensor([[1, 2, 3]])),
        "holds embeddings.position_ids, for which",
    ),
    "another shape": (cut(WORDS, 21), f"{WORDS} must have shape (23, 12), by the config.json beside it. Got (21, 12)."),
    "numbers that are none": (
        lambda arrays: {**arrays, WORDS: torch.full((23, 12), torch.nan)},
        f"{WORDS} is NaN or infinite in 276 of 276 elements",
    ),
    "integers": (
        lambda arrays: {**arrays, WORDS: torch.zeros(23, 12, dtype=torch.int32)},
        f"{WORDS} must hold floating-point numbers. Got torch.int32.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arrays_that_transformers_would_draw_or_pass_over_are_refused(name, folder):
    change, message = REFUSED[name]
    change_arrays(folder, change)
    result = mha_port(folder)
    assert result.exit_code == 2, result.output
    assert message in result.output


@pytest.mark.parametrize(("layers", "word"), [(1, "holds encoder.layer.1."), (3, "lacks encoder.layer.2.")])
def test_a_config_with_another_number_of_layers_is_refused(layers, word, folder):
    change_json(folder, num_hidden_layers=layers)
    result = mha_port(folder)
    assert result.exit_code == 2
    assert word in result.output
    assert f"config.json says num_hidden_layers={layers}; the file has layers 0, 1." in result.output


def test_what_the_embeddings_do_not_depend_on_may_be_there_or_not(folder, tmp_path):
    change_arrays(folder, beneath("bert."))
    change_arrays(folder, with_one("cls.predictions.bias"))
    change_arrays(folder, without("pooler.dense.weight"))
    change_arrays(folder, with_one("bert.embeddings.position_ids", torch.arange(512)[None]))
    result = mha_port(folder, "--json", tmp_path / "port.json")
    assert result.exit_code == 0, result.output
    assert "All 37 arrays that the embeddings depend on are those of the file, bit for bit" in result.output
    arrays = json.loads((tmp_path / "port.json").read_text())["arrays"]
    assert arrays["held"][f"{ATTENTION}.self.query.weight"] == f"bert.{ATTENTION}.self.query.weight"
    assert set(arrays["unused"]) == {"bert.embeddings.position_ids", "bert.pooler.dense.bias", "cls.predictions.bias"}
    assert arrays["drawn"] == ["pooler.dense.weight"]


def test_old_names_and_a_file_in_half_precision_are_read(folder):
    def old(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    change_arrays(folder, lambda arrays: {old(name): array.half() for name, array in arrays.items()})
    held = load_trained(str(folder)).arrays.held
    assert held[f"{ATTENTION}.output.LayerNorm.weight"] == f"{ATTENTION}.output.LayerNorm.gamma"


def test_the_weights_may_be_a_pickle_which_is_not_run(folder):
    arrays = load_file(folder / "model.safetensors")
    numbers = {"embeddings.position_ids": torch.arange(512)[None]}
    (folder / "model.safetensors").unlink()
    torch.save({**{name: array.bfloat16() for name, array in arrays.items()}, **numbers}, folder / "pytorch_model.bin")
    encoder = load_trained(str(folder))
    assert len(encoder.arrays.held) == 37
    assert torch.equal(encoder.model.embeddings.word_embeddings.weight, arrays[WORDS].bfloat16().float())
    torch.save({**arrays, WORDS: arrays[WORDS][:21]}, folder / "pytorch_model.bin")
    with pytest.raises(
        SpecError, match=rf"{folder}/pytorch_model.bin: {WORDS} must have shape \(23, 12\), by the config"
    ):
        load_trained(str(folder))
    torch.save({**arrays, "run": print}, folder / "pytorch_model.bin")
    with pytest.raises(SpecError, match="pytorch_model.bin"):
        load_trained(str(folder))


def test_a_file_beside_the_model_is_left_at_the_users_word(folder):
    (folder / "run.yaml").write_text("alibi: true")
    assert "run.yaml beside it may say that the model computes something else" in mha_port(folder).output
    result = mha_port(folder, "--leave", "run.yaml")
    assert result.exit_code == 0, result.output
    assert "left out at your word that the encoder does not read them: run.yaml" in result.output
    assert "leave 'walk.yaml' fits no array" in mha_port(folder, "--leave", "run.yaml", "--leave", "walk.yaml").output


def test_the_limit_is_the_tokenizers_if_it_has_one(folder):
    assert load_trained(str(folder)).limit == 9
    change_json(folder, "tokenizer_config.json", model_max_length=int(1e30))  # as transformers writes it
    assert load_trained(str(folder)).limit == 512


def test_a_parameter_that_is_not_the_files_is_found_out(folder, monkeypatch):
    right = hf.AutoModel.from_pretrained

    def moved(*args, **kwargs):
        model, loading = right(*args, **kwargs)
        with torch.no_grad():
            model.encoder.layer[1].attention.self.key.bias[0] += 1.0
        return model, loading

    monkeypatch.setattr(hf.AutoModel, "from_pretrained", moved)
    with pytest.raises(SpecError, match=f"{ATTENTION}.self.key.bias of the loaded model does not hold the numbers of"):
        load_trained(str(folder))


def test_shards_are_read_and_checked(tmp_path):
    folder = save_encoder(tmp_path / "shards", max_shard_size="3KB")
    index = folder / "model.safetensors.index.json"
    where = json.loads(index.read_text())["weight_map"]
    assert len(set(where.values())) > 2
    assert mha_port(folder).exit_code == 0
    name = f"{ATTENTION}.self.query.weight"
    index.write_text(json.dumps({"weight_map": {key: shard for key, shard in where.items() if key != name}}))
    assert f"holds {name}, which model.safetensors.index.json has nowhere" in mha_port(folder).output
    index.write_text(json.dumps({"weight_map": {**where, "absent": where[name]}}))
    assert f"says that {where[name]} holds absent, and it does not" in mha_port(folder).output
    index.write_text(json.dumps({"weight_map": {**where, "absent": "../elsewhere.safetensors"}}))
    assert "names the shard '../elsewhere.safetensors', which is not in the folder" in mha_port(folder).output
    index.write_text(json.dumps({"weight_map": where}))
    (folder / where[name]).unlink()
    result = mha_port(folder)
    assert result.exit_code == 2
    assert f"names the shard {where[name]!r}, which is not in the folder" in result.output


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"position_embedding_type": "alibi"}, "only 'absolute' leaves the scores alone"),
        ({"num_attention_heads": None, "n_head": 3}, "must say num_attention_heads; without it, transformers takes"),
        ({"n_head": 6}, "num_attention_heads=3 and n_head=6 contradict each other"),
    ],
)
def test_a_config_that_says_another_arithmetic_is_refused_before_anything_is_loaded(values, message, folder):
    change_json(folder, **values)
    (folder / "model.safetensors").unlink()
    result = mha_port(folder)
    assert result.exit_code == 2
    assert message in result.output


def test_code_of_the_tokenizer_and_an_adapter_are_refused(folder):
    change_json(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Slow", "mine.Fast"]})
    assert "tokenizer_config.json: auto_map says that code of its own" in mha_port(folder).output
    change_json(folder, "tokenizer_config.json", auto_map=None)
    (folder / "adapter_config.json").write_text("{}")
    result = mha_port(folder)
    assert result.exit_code == 2
    assert "an adapter_config.json beside it says that an adapter" in result.output


def test_a_tokenizer_that_is_not_there_or_another_models_is_refused(folder):
    result = mha_port(folder, "--text", "ein Zug")
    assert result.exit_code == 2
    assert "makes every word of text 2 [UNK]: it is not the model's" in result.output
    change_json(folder, vocab_size=7)
    change_arrays(folder, cut(WORDS, 7))
    assert "gives id 8, and the model has 7 tokens: it belongs to another model" in mha_port(folder).output
    for file in folder.glob("tokenizer*"):
        file.unlink()
    result = mha_port(folder)
    assert result.exit_code == 2
    assert "has no tokenizer: none of tokenizer.json, vocab.txt is there" in result.output


def test_positions_that_begin_after_the_padding_are_counted(tmp_path):
    folder = save_encoder(tmp_path / "roberta", "roberta")
    change_json(folder, max_position_embeddings=7)
    change_arrays(folder, cut("embeddings.position_embeddings.weight", 7))
    encoder = load_trained(str(folder))
    assert encoder.limit == 6  # position 0 is the padding's
    assert encoder.run(encoder.batch([TEXT])).shape == (1, 12)
    result = mha_port(folder, "--text", f"a {TEXT}")
    assert result.exit_code == 2
    assert "text 2 has 7 tokens; " in result.output
    assert "takes at most 6" in result.output
    encoder.model.embeddings.position_embeddings = torch.nn.Embedding(3, 12)  # not what its config says
    with pytest.raises(SpecError, match="can't be run on the texts: IndexError"):
        encoder.run(encoder.batch([TEXT]))
