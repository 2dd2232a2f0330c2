"""Decoders from files: `mha convert` reads them as transformers makes them of their config, and refuses the rest."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402

from conformance.cases.problem import Problem  # noqa: E402
from mha.convert.convert import convert, list_layers  # noqa: E402
from mha.convert.verify import VerificationFailed  # noqa: E402
from mha.formats import open_checkpoint  # noqa: E402
from mha.formats.layer import read_layer  # noqa: E402
from mha.models.decoders import DecoderLayers, read_config  # noqa: E402
from mha.recipes import attention_layers  # noqa: E402
from mha.recipes.judge import judge_original  # noqa: E402
from mha_core import RotaryInputs, SpecError  # noqa: E402
from mha_core.layouts import get  # noqa: E402
from tests.mha.recipes.test_decoders import FAMILIES, SIZES, calls_of, model_of  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there

FOREIGN = ("num_key_value_heads", "intermediate_size", "head_dim")
"""Keys of SIZES that some classes do not have: their configs are written without."""

NO_FILES = ("nanochat", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "dbrx")
"""Models that are not read from files; DBRX's runs with an infinite limit alone, which JSON has no number for."""


def saved(model_type, folder, **options):
    """The model, written to the folder as save_pretrained does, with a config of keys that its class has."""
    model = model_of(model_type)
    model.save_pretrained(folder, **options)
    declared = type(model.config)().to_dict()
    said = json.loads((folder / "config.json").read_text())
    said = {key: value for key, value in said.items() if key not in FOREIGN or key in declared or key == "head_dim"}
    (folder / "config.json").write_text(json.dumps(said))
    return model


def converted(folder, out):
    """Every layer of a folder, by its prefix: config and weights, from the file that is written."""
    done = convert(folder, to_layout="canonical", out=out, every=True)
    with open_checkpoint(out) as checkpoint:
        read = {one.to_prefix: read_layer(checkpoint, get("canonical"), one.to_prefix)[:2] for one in done.layers}
    return done, read


@pytest.mark.parametrize("model_type", [name for name in FAMILIES if name not in NO_FILES])
def test_a_decoder_s_layer_from_its_file_computes_what_the_model_does(model_type, tmp_path):
    """By positions, and not by the tables that the model makes: so base and rule are those of the file."""
    model = saved(model_type, tmp_path)
    done, read = converted(tmp_path, tmp_path / "out.safetensors")
    assert {one.standing.word for one in done.layers} == {"known"}
    sites = attention_layers(model, probe=False)
    assert list(read) == [site.name for site in sites]
    site = sites[0]
    config, weights = read[site.name]
    assert (config, list(weights)) == (site.config, list(site.weights))
    assert all(np.array_equal(weights[name], array) for name, array in site.weights.items())
    if config.rotary is None:
        return
    for call, offset in zip(calls_of(model, [site])[site.name], (0, 7), strict=True):
        places = RotaryInputs(positions=np.arange(offset, offset + call.sizes.query_len))
        counted = Problem(config, weights, replace(call.inputs, rotary=places), call.recorded)
        assert judge_original(counted, site.precision("float32")).equal
        wrong = replace(config, rotary=replace(config.rotary, base=3 * config.rotary.base))
        found = judge_original(replace(counted, config=wrong), site.precision("float32"))
        assert found.equal == (config.rotary.width == 2)  # whose one pair turns by a radian whatever the base is


SHORT_AND_LONG = {"short_factor": [1.0, 1.1, 1.2], "long_factor": [1.5, 2.0, 3.0]}
OLD_LLAMA = {"rope_theta": 700.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
OLD = {
    "llama": (OLD_LLAMA, (700.0, "linear")),
    "mistral": ({"rope_theta": 700.0}, (700.0, None)),
    "qwen2": ({"rope_theta": 700.0, "rope_scaling": None}, (700.0, None)),
    "gpt_neox": ({"rotary_emb_base": 700, "rotary_pct": 0.67}, (700.0, None)),
    "phi": ({"rope_theta": 700.0, "partial_rotary_factor": 0.67}, (700.0, None)),
    "stablelm": ({"rope_theta": 700, "partial_rotary_factor": 0.25}, (700.0, None)),
    "gemma3_text": ({"rope_theta": 900.0, "rope_local_base_freq": 700.0}, (700.0, None)),
    "phi3:long": (
        {"rope_theta": 700.0, "rope_scaling": {"type": "su", "original_max_position_embeddings": 6, **SHORT_AND_LONG}},
        (700.0, "longrope"),
    ),
}
"""Model type -> what configs of earlier releases have in place of rope_parameters, and the base and rule they mean."""


@pytest.mark.parametrize("model_type", OLD)
def test_a_config_of_an_earlier_release_is_read_by_its_own_keys(model_type, tmp_path):
    saved(model_type, tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    del said["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps({**said, **OLD[model_type][0]}))
    _, read = converted(tmp_path, tmp_path / "out.safetensors")
    rotary = next(iter(read.values()))[0].rotary
    assert (rotary.base, getattr(rotary.rule, "rope_type", None)) == OLD[model_type][1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_theta": 1e4}, "rope_theta=10000.0 contradicts what else the config says"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_parameters: factor=8.0 is not what LlamaConfig reads",
        ),
        ({"soft_cap": 30.0}, "soft_cap=30.0 is no setting of LlamaConfig in transformers"),
        ({"sliding_window": 64}, "sliding_window=64 is no setting of LlamaConfig in transformers"),
        ({"attention_bias": True}, "lacks model.layers.0.self_attn.q_proj.bias, which the config asks for"),
        ({"num_key_value_heads": 3}, "k_proj.weight has shape (12, 36), and the config says (18, 36)"),
        ({"head_dim": 4}, "q_proj.weight has shape (36, 36), and the config says (24, 36)"),
        ({"partial_rotary_factor": 0.67}, "can't be run to see whether it computes what its weights say"),
        ({"auto_map": {"AutoModel": "own.Model"}}, "auto_map="),
        ({"quantization_config": {"bits": 4}}, "quantization_config="),
        ({"architectures": ["OwnForCausalLM"]}, "architectures names OwnForCausalLM, which is no class of LlamaConfig"),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused_by_its_key(llama, changes, words):
    _, said, arrays = llama
    with pytest.raises(SpecError) as refused:
        DecoderLayers.of(arrays, {**said, **changes}).read(arrays, "model.layers.0.self_attn")
    assert words in str(refused.value)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    saved("llama:3", folder)
    return folder, json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def test_frequencies_in_a_file_must_be_those_of_its_config(llama):
    """Earlier releases wrote them; they know the base with which the model was trained."""
    _, said, arrays = llama
    prefix = "model.layers.0.self_attn"
    plain = {**said, "rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}
    own = {base: base ** (-np.arange(0, 6, 2, dtype=np.float32) / 6) for base in (700.0, 1e4)}
    right = {**arrays, f"{prefix}.rotary_emb.inv_freq": own[700.0]}
    assert DecoderLayers.of(right, plain).read(right, prefix)[0].rotary.base == 700.0
    wrong = {**arrays, f"{prefix}.rotary_emb.inv_freq": own[1e4]}
    with pytest.raises(SpecError, match="inv_freq turns by base 10000, and the config says base 700 and no rule"):
        DecoderLayers.of(wrong, plain).read(wrong, prefix)


def test_arrays_that_the_config_has_no_place_for_are_refused(llama):
    _, said, arrays = llama
    strange = {**arrays, "model.layers.0.self_attn.q_norm.weight": np.ones(6, np.float32)}
    with pytest.raises(SpecError, match=r"self_attn\.q_norm\.weight, for which the config has no place"):
        DecoderLayers.of(strange, said)
    lacking = {name: array for name, array in arrays.items() if "k_proj" not in name}
    with pytest.raises(SpecError, match=r"lacks model\.layers\.0\.self_attn\.k_proj\.weight"):
        DecoderLayers.of(lacking, said)


def test_shards_and_pickles_in_shards_are_read_alike(llama, tmp_path):
    _, said, arrays = llama
    wanted = DecoderLayers.of(arrays, said).read(arrays, "model.layers.0.self_attn")
    names = list(arrays)
    parts = (names[::2], names[1::2])
    for start, suffix, write in (
        ("model", "safetensors", lambda held, path: save_file(held, path)),
        ("pytorch_model", "bin", lambda held, path: torch.save({k: torch.tensor(x) for k, x in held.items()}, path)),
    ):
        folder = tmp_path / start
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(said))
        where = {}
        for number, part in enumerate(parts, start=1):
            file = f"{start}-{number:05}-of-00002.{suffix}"
            write({name: arrays[name] for name in part}, folder / file)
            where |= dict.fromkeys(part, file)
        index = {"metadata": {}, "weight_map": where}
        (folder / f"{start}.{suffix}.index.json").write_text(json.dumps(index))
        _, read = converted(folder, folder / "out.safetensors")
        config, weights = read["model.layers.0.self_attn"]
        assert config == wanted[0]
        assert all(np.array_equal(weights[name], array) for name, array in wanted[1].items())


def test_a_window_is_said_and_16_bits_stay(tmp_path):
    model = saved("mistral", tmp_path)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    done, read = converted(tmp_path, tmp_path / "out.safetensors")
    (layer,) = done.layers
    assert layer.dtype == "bfloat16"
    assert any("sees 4096 keys alone: window=(4095, 0)" in note for note in layer.notes)
    (site,) = attention_layers(model, probe=False)
    assert np.array_equal(read[layer.to_prefix][1]["q_proj.weight"], site.weights["q_proj.weight"])


@pytest.mark.parametrize(
    ("model_type", "notes"),
    [
        ("gpt_neo", ["", "3 keys alone: window=(2, 0)"]),
        ("gemma3_text", ["4096 keys alone: window=(4095, 0)"]),
        ("qwen2", [""]),
    ],
)
def test_what_a_layer_sees_is_said(model_type, notes):
    model = model_of(model_type)
    layers = DecoderLayers({one.name: one for one in attention_layers(model, probe=False)}, model)
    found = [layers.sees(prefix) for prefix in layers.sites]
    assert len(found) == len(notes)
    for said, wanted in zip(found, notes, strict=True):
        assert said.startswith(wanted), found
        assert bool(said) == bool(wanted), found


def test_read_config_says_what_transformers_makes_of_it():
    config = read_config({"model_type": "qwen2", **SIZES, "rope_theta": 700.0, "use_sliding_window": False})
    assert config.rope_parameters["rope_theta"] == 700.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_theta": 5e5}, "rope_theta=500000.0 contradicts what else the config says"),  # DBRX's own, of no effect
        ({"soft_cap": 3.0}, "soft_cap=3.0 is no setting of DbrxAttentionConfig in transformers"),
        ({"clip_qkv": "8"}, "transformers can't read the config"),
    ],
)
def test_a_config_within_a_config_is_read_as_the_whole_is(changes, words):
    said = {"model_type": "dbrx", "d_model": 36, "n_heads": 6, "n_layers": 1}
    parts = {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4}, "ffn_config": FAMILIES["dbrx"]["ffn_config"]}
    assert read_config({**said, **parts}).attn_config.kv_n_heads == 2
    with pytest.raises(SpecError, match=re.escape(words)):
        read_config({**said, **parts, "attn_config": {**parts["attn_config"], **changes}})
    assert read_config({**said, **parts, "rope_theta": 1e4, "ffn_config": {"ffn_act_fn": {"name": "gelu"}}})


OTHERS = {
    "gpt_neo": "GPTNeoSelfAttention",
    "gptj": "GPTJAttention",
    "stablelm": "StableLmAttention",
    "granite": "GraniteAttention",
    "gemma2": "Gemma2Attention",
}
SMALL = {
    **{"vocab_size": 23, "hidden_size": 12, "num_hidden_layers": 2, "num_layers": 2, "intermediate_size": 10},
    **{
        "num_attention_heads": 3,
        "num_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 4,
        "max_position_embeddings": 512,  # longer than the longest probe
        "n_positions": 512,
    },
    **{"n_embd": 12, "n_head": 3, "n_layer": 2, "rotary_dim": 4, "attention_types": [[["global"], 2]]},
    **{"attention_multiplier": 0.7, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}


@pytest.mark.parametrize("model_type", OTHERS)
def test_layers_of_other_arithmetic_are_known_by_their_config_alone(model_type, tmp_path):
    """They have a layout's names. What they gave is what their recipe gives, and not what the layout gives."""
    known = hf.AutoConfig.for_model(model_type).to_dict()
    own = {key: value for key, value in SMALL.items() if key in known}
    own |= {"partial_rotary_factor": 0.5} if model_type == "stablelm" else {}
    config = hf.AutoConfig.for_model(model_type, **own)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = hf.AutoModel.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.4)
    seen = {}

    def keep(_module, args, kwargs, output):
        states = args[0] if args else kwargs["hidden_states"]
        seen.update(queries=states.numpy(), output=output[0].numpy(), causal=True)

    module = next(module for module in model.modules() if type(module).__name__ == OTHERS[model_type])
    with torch.no_grad(), module.register_forward_hook(keep, with_kwargs=True):
        model(input_ids=torch.arange(3, 13).reshape(2, 5), use_cache=False)
    np.savez(tmp_path / "call.npz", **seen)
    model.save_pretrained(tmp_path)
    source, out = tmp_path / "model.safetensors", tmp_path / "o.npz"
    prefix = min(layer.prefix for layer in list_layers(source))
    kept, call = tmp_path / "o.safetensors", tmp_path / "call.npz"
    done = convert(source, to_layout="canonical", out=kept, prefix=prefix)
    assert (done.layers[0].standing.word, f"model type {model_type}" in done.layers[0].standing.why) == ("known", True)
    done = convert(source, to_layout="canonical", out=kept, prefix=prefix, recorded=call, force=True)
    assert done.layers[0].standing.word == "proved"
    (tmp_path / "config.json").unlink()
    with pytest.raises(SpecError, match="neither proved nor known: there is no config.json beside it"):
        convert(source, to_layout="canonical", out=out, prefix=prefix, num_heads=3)
    with pytest.raises(VerificationFailed, match="does not give what was recorded of it: output"):
        convert(source, to_layout="canonical", out=out, prefix=prefix, num_heads=3, recorded=call)
    assert not out.exists()
    done = convert(source, to_layout="canonical", out=out, prefix=prefix, num_heads=3, moved=True)
    assert done.layers[0].standing.word == "moved"
