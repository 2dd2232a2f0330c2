"""`mha port FOLDER` of a decoder: from safetensors, shards and pickles; and what is refused."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402

from mha.cli.main import main  # noqa: E402
from mha.port.model import load_trained  # noqa: E402
from mha_core import SpecError  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there

WORDS = ("[PAD]", "[UNK]", "[EOS]", "the", "cat", "sleeps", "on", "a", "train", "mat", ".")


def save_tokenizer(where, words):
    """Write a tokenizer of these words, the first three of them [PAD], [UNK] and [EOS], as save_pretrained does."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    own = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[EOS]"}
    hf.PreTrainedTokenizerFast(tokenizer_object=own, **named).save_pretrained(where)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small Qwen 3 whose norms are not 1, with a tokenizer of words, as save_pretrained writes them."""
    where = tmp_path_factory.mktemp("qwen3")
    save_tokenizer(where, WORDS)
    config = hf.Qwen3Config(
        **{"vocab_size": len(WORDS), "hidden_size": 20, "intermediate_size": 14, "num_hidden_layers": 2, "head_dim": 6},
        **{
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
        },
        **{"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": None},
        rope_parameters={"rope_type": "default", "rope_theta": 700.0},
    )
    with torch.random.fork_rng():
        torch.manual_seed(6)
        model = hf.Qwen3ForCausalLM(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.4 * torch.randn_like(parameter))
    model.save_pretrained(where)
    return where


def copy_of(folder, to, **changes):
    """The folder again, with other keys in its config."""
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    said = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**said, **changes}))
    return to


def test_a_decoder_in_a_folder_goes_through_a_backend(folder, backend_name, tmp_path):
    asked = ["port", str(folder), "--backend", backend_name, "--no-unseen", "--text", "the cat sleeps on a train"]
    ended = CliRunner().invoke(main, [*asked, "--text", "a mat .", "--json", str(tmp_path / "report.json")])
    assert ended.exit_code == 0, ended.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert {one["layer"] for one in report["layers"]} == {f"model.layers.{n}.self_attn" for n in (0, 1)}
    assert (report["tokens"], report["outputs"]) == ([6, 3], "logits of the last token")
    assert f"the same through {backend_name}" in ended.output


def test_shards_and_pickles_hold_the_same_model(folder, tmp_path):
    wanted = load_trained(str(folder))
    arrays = load_file(folder / "model.safetensors")
    names = list(arrays)
    for start, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
        (tmp_path / start).mkdir()
        there = copy_of(folder, tmp_path / start)
        (there / "model.safetensors").unlink()
        where = {}
        for number, part in enumerate((names[::2], names[1::2]), start=1):
            file = there / f"{start}-{number:05}-of-00002.{suffix}"
            held = {name: arrays[name] for name in part}
            save_file(held, file, metadata={"format": "pt"}) if suffix == "safetensors" else torch.save(
                {name: torch.tensor(array) for name, array in held.items()}, file
            )
            where |= dict.fromkeys(part, file.name)
        (there / f"{start}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
        found = load_trained(str(there))
        for (name, one), (_, other) in zip(
            found.model.named_parameters(), wanted.model.named_parameters(), strict=True
        ):
            assert torch.equal(one, other), name
        assert found.arrays.held == wanted.arrays.held


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_theta": 1e4}, "rope_theta=10000.0 contradicts what else the config says"),
        ({"use_sliding_window": "yes"}, "use_sliding_window"),
        ({"soft_cap": 3.0}, "soft_cap=3.0 is no setting of Qwen3Config in transformers"),
        (
            {"num_hidden_layers": 3, "layer_types": None},
            "lacks model.layers.2.input_layernorm.weight",
        ),
        ({"num_hidden_layers": 1, "layer_types": None}, "for which Qwen3ForCausalLM has no place"),
        ({"tie_word_embeddings": False}, "lacks lm_head.weight"),
    ],
)
def test_a_folder_whose_config_asks_for_something_else_is_refused(folder, changes, words, tmp_path):
    there = copy_of(folder, tmp_path, **changes)
    with pytest.raises(SpecError) as refused:
        load_trained(str(there))
    assert words in str(refused.value)


def test_arrays_without_a_place_are_refused_or_left(folder, tmp_path):
    there = copy_of(folder, tmp_path)
    arrays = load_file(folder / "model.safetensors")
    more = {**arrays, "model.gate.weight": np.ones((2, 3), np.float32)}
    save_file(more, there / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SpecError, match=r"holds model\.gate\.weight, for which Qwen3ForCausalLM has no place"):
        load_trained(str(there))
    assert load_trained(str(there), leave=["model.gate.*"]).arrays.left == ("model.gate.weight",)


def test_a_matrix_that_is_written_twice_is_one_and_another_one_is_its_own(folder, tmp_path):
    arrays, embedding = load_file(folder / "model.safetensors"), "model.embed_tokens.weight"
    for added, own in ((np.float32(0), False), (np.float32(1), True)):
        (tmp_path / str(own)).mkdir()
        there = copy_of(folder, tmp_path / str(own))
        more = {**arrays, "lm_head.weight": arrays[embedding] + added}
        save_file(more, there / "model.safetensors", metadata={"format": "pt"})
        found = load_trained(str(there))
        assert ("lm_head.weight" in found.arrays.held, found.arrays.unused) == (own, () if own else ("lm_head.weight",))
        assert np.array_equal(found.model.lm_head.weight.detach().numpy(), more["lm_head.weight"])
