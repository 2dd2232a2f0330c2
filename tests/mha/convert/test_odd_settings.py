"""Configs of listed families with settings that few models have: what is known or proved gives the model's numbers.

The canonical file counts positions by itself: no table of the model's is used.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

import mha  # noqa: E402
from mha.convert.convert import convert  # noqa: E402
from mha.convert.verify import VerificationFailed  # noqa: E402
from mha.formats import open_checkpoint  # noqa: E402
from mha.formats.layer import read_layer  # noqa: E402
from mha.recipes import recipe_for  # noqa: E402
from mha_core import AttentionInputs, AttentionMask, RotaryInputs, SpecError  # noqa: E402
from mha_core.layouts import get  # noqa: E402
from mha_core.reference import pipeline as reference  # noqa: E402
from tests.mha.convert import known_models  # noqa: E402
from tests.mha.recipes.test_decoders import DBRX, FAMILIES, GPT_NEO, LLAMA3, LONG, OWN_TABLES, SIZES, WIDE, share  # noqa: E402

pytestmark = [
    pytest.mark.same_on_newest,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning"),  # what is read at the seam alone is said
]

DAILY = ("nanochat base", "qwen2-vl text", "gemma3 two bases", "gptj, 40 positions", "gpt-neo, 24 positions", "dinov3")
"""Those that were said to be right and were wrong, or were refused and are right; the others are asked at night."""

REFUSED = {
    "known": (
        *("llama of a share", "hunyuan dynamic", "olmo clipped", "dbrx", "falcon alibi", "nanochat", "nanochat base"),
        *("qwen2-vl text", "qwen3-vl text", "bert relative", "modernbert", "dinov3"),
    ),
    "proved": (
        *("llama of a share", "hunyuan dynamic", "olmo clipped", "dbrx", "falcon alibi", "nanochat", "nanochat base"),
        *("qwen2-vl text", "qwen3-vl text", "bert relative", "dinov3"),
    ),
}
"""How it is asked -> those that are refused."""

BASE = {"rope_type": "default", "rope_theta": 700.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 50.0, "original_max_position_embeddings": 16}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 50.0}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
FEWER = {"num_key_value_heads": 1}

DECODERS = {
    "llama wide": ("llama", {**WIDE, "attention_bias": True}),
    "llama dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 10}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama yarn, its factor": ("llama", {"rope_parameters": {**YARN, "attention_factor": 0.7}}),
    "llama yarn, mscale": ("llama", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}}),
    "llama yarn, betas": (
        "llama",
        {"rope_parameters": {**YARN, "beta_fast": 9.0, "beta_slow": 2.0, "truncate": False}},
    ),
    "llama 3": ("llama", {"rope_parameters": LLAMA3, **FEWER}),
    "llama long": ("llama", {"rope_parameters": LONG}),
    "llama of a share": ("llama", {**WIDE, **share(0.5)}),
    "llama, no rule by name": ("llama", {"rope_parameters": {"rope_theta": 33.0}}),
    "llama, 20 positions": ("llama", {"max_position_embeddings": 20}),
    "mistral window": ("mistral", {**WIDE, "sliding_window": 3, "rope_parameters": BASE}),
    "mistral narrow heads": ("mistral", {"head_dim": 4, **FEWER}),
    "mixtral window": ("mixtral", {**EXPERTS, "head_dim": 6, "sliding_window": 4, "rope_parameters": YARN}),
    "qwen2 windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1, "num_hidden_layers": 2},
    ),
    "qwen2 dynamic": ("qwen2", {"rope_parameters": DYNAMIC, "max_position_embeddings": 10}),
    "starcoder2 bias": ("starcoder2", {"use_bias": False, "sliding_window": 4}),
    "granite": ("granite", {"attention_multiplier": 1.7, "attention_bias": True, "rope_parameters": BASE}),
    "granite moe": ("granitemoe", {"attention_multiplier": 0.05, **EXPERTS}),
    "arcee": ("arcee", {"attention_bias": True, "head_dim": 10, "rope_parameters": YARN}),
    "seed": ("seed_oss", {**WIDE, "attention_bias": False, "attention_out_bias": True}),
    "gemma": ("gemma", {"head_dim": 10, "attention_bias": True, **FEWER}),
    "nemotron": ("nemotron", {"head_dim": 12, "partial_rotary_factor": 1.0}),
    "gemma2": (
        "gemma2",
        {
            **WIDE,
            "attn_logit_softcapping": 1.5,
            "query_pre_attn_scalar": 3,
            "sliding_window": 3,
            "num_hidden_layers": 2,
        },
    ),
    "gemma2, no softcap": ("gemma2", {**WIDE, "attn_logit_softcapping": None, "attention_bias": True}),
    "gemma3": (
        "gemma3_text",
        {
            **WIDE,
            "query_pre_attn_scalar": 300,
            "sliding_window": 3,
            "num_hidden_layers": 6,
            "attn_logit_softcapping": 2.0,
        },
    ),
    "gemma3 two bases": (
        "gemma3_text",
        {
            **WIDE,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        },
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "no_rope_layers": [0, 1, 1, 0], "attention_bias": True}),
    "smollm3 window": ("smollm3", {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 3}),
    "qwen3": ("qwen3", {"head_dim": 6, "attention_bias": True, "rope_parameters": YARN}),
    "qwen3 moe": ("qwen3_moe", {**WIDE, "num_experts": 2, "num_experts_per_tok": 1, "rms_norm_eps": 0.3}),
    "exaone4": (
        "exaone4",
        {
            "num_hidden_layers": 3,
            "sliding_window": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    "exaone4, no window": (
        "exaone4",
        {"num_hidden_layers": 2, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "hunyuan": ("hunyuan_v1_dense", {**WIDE, "attention_bias": True, "rms_norm_eps": 0.2}),
    "hunyuan dynamic": (
        "hunyuan_v1_dense",
        {**WIDE, "rope_parameters": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 50.0}},
    ),
    "olmo": ("olmo", {"attention_bias": True, "rope_parameters": DYNAMIC, "max_position_embeddings": 9}),
    "olmo clipped": ("olmo", {"clip_qkv": 0.4}),
    "olmo2": ("olmo2", {"attention_bias": True, "rms_norm_eps": 0.4, "rope_parameters": LLAMA3}),
    "olmo3": ("olmo3", {"sliding_window": 3, "num_hidden_layers": 4, "rope_parameters": YARN}),
    "stablelm": ("stablelm", {"qk_layernorm": True, "use_qkv_bias": True, "hidden_size": 48, **share(0.5)}),
    "stablelm, no norm": ("stablelm", {"use_qkv_bias": True, "use_parallel_residual": True, "hidden_size": 48}),
    "cohere": ("cohere", {"use_qk_norm": True, "attention_bias": True, "layer_norm_eps": 0.3}),
    "cohere2": (
        "cohere2",
        {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3},
    ),
    "glm": ("glm", {**WIDE, "attention_bias": True, **share(0.75)}),
    "glm4": ("glm4", {**WIDE, "attention_bias": True, **share(0.25)}),
    "helium": ("helium", {"head_dim": 6, "attention_bias": True}),
    "ernie": ("ernie4_5", {**WIDE, "use_bias": True, "rope_parameters": YARN}),
    "dots1": (
        "dots1",
        {**FAMILIES["dots1"], "attention_bias": True, "sliding_window": 3, "layer_types": ["sliding_attention"]},
    ),
    "olmoe": ("olmoe", {**FAMILIES["olmoe"], "attention_bias": True, "clip_qkv": None, "rope_parameters": BASE}),
    "minimax m2": ("minimax_m2", {**FAMILIES["minimax_m2"], **share(0.25)}),
    "phi": ("phi", {"qk_layernorm": True, **share(0.34), "layer_norm_eps": 0.2}),
    "phi3": ("phi3", {"sliding_window": 3, **share(0.34)}),
    "phi3 long": (
        "phi3",
        {"rope_parameters": {**LONG, "attention_factor": 1.7}, "original_max_position_embeddings": 6},
    ),
    "dbrx": ("dbrx", {**DBRX, "attn_config": {**DBRX["attn_config"], "clip_qkv": 0.5}}),
    "gpt-neox": ("gpt_neox", {**share(0.34), "attention_bias": False}),
    "gpt-neox linear": (
        "gpt_neox",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 50.0, "partial_rotary_factor": 1.0}},
    ),
    "persimmon": ("persimmon", {"qk_layernorm": False, **share(0.34)}),
    "falcon alibi": ("falcon", {"alibi": True, "num_kv_heads": 6}),
    "falcon bias": (
        "falcon",
        {"bias": True, "new_decoder_architecture": True, "num_kv_heads": 3, "rope_parameters": BASE},
    ),
    "gptj": ("gptj", {**OWN_TABLES, "rotary_dim": 2}),
    "gptj, 40 positions": ("gptj", {**OWN_TABLES, "max_position_embeddings": 40, "rotary_dim": 6}),
    "codegen": ("codegen", {**OWN_TABLES, "num_attention_heads": 4, "max_position_embeddings": 30}),
    "gpt-neo, 24 positions": ("gpt_neo", {**GPT_NEO, "max_position_embeddings": 24, "window_size": 5}),
    "nanochat": ("nanochat", WIDE),
    "nanochat base": ("nanochat", {**WIDE, "rope_parameters": BASE}),
    "opt": ("opt", {"ffn_dim": 20, "word_embed_proj_dim": 36, "dropout": 0.0, "enable_bias": False}),
    "gpt-bigcode": ("gpt_bigcode", {"n_inner": 20, "multi_query": True, "scale_attn_weights": False}),
    "qwen2-vl text": ("qwen2_vl_text", {**FAMILIES["qwen2_vl_text"]}),
    "qwen3-vl text": ("qwen3_vl_text", {**FAMILIES["qwen3_vl_text"]}),
}
"""Name -> (model_type, what of its config differs from SIZES)."""

ENCODERS = {
    "bert causal": ("bert", {"is_decoder": True}),
    "bert relative": ("bert", {"position_embedding_type": "relative_key"}),
    "electra": ("electra", {"num_attention_heads": 2}),
    "gpt2 by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2 unscaled": ("gpt2", {"scale_attn_weights": False, "reorder_and_upcast_attn": True}),
    "vit no bias": ("vit", {"qkv_bias": False}),
    "bart": ("bart", {"decoder_attention_heads": 2, "encoder_attention_heads": 6}),
    "modernbert": ("modernbert", {"num_hidden_layers": 3, "local_attention": 4, "hidden_size": 12}),
    "dinov3": ("dinov3_vit", {"num_attention_heads": 3, "hidden_size": 24}),
    "distilbert": ("distilbert", {"sinusoidal_pos_embds": True, "n_heads": 6}),
}


def decoder_of(model_type, changes):
    said = {**SIZES, **changes}
    config = hf.AutoConfig.for_model(model_type, **said)
    kind = hf.AutoModel if model_type.endswith("_text") and "vl_" in model_type else hf.AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(len(str(changes)))
        config._experts_implementation = "eager"
        model = kind.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(torch.randn_like(parameter) * (0.4 if "norm" in name else 0.2))
    return model


def written(model, folder):
    """The model in a folder, and a config of keys that its class declares."""
    model.save_pretrained(folder)
    declared = type(model.config)().to_dict()
    said = json.loads((folder / "config.json").read_text())
    foreign = ("num_key_value_heads", "intermediate_size")
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in said.items() if k not in foreign or k in declared})
    )


def calls(model, batch):
    """Name of each attention module -> what it was given, its mask, and what its output projection gave."""
    found, handles = {}, []
    for name, module in model.named_modules():
        recipe = recipe_for(module)
        if recipe is None:
            continue
        out = module.get_submodule(recipe.out) if recipe.out else module
        core = module.get_submodule(recipe.core) if recipe.core else module

        def given(_module, args, kwargs, name=name, recipe=recipe):
            states = args[0] if args else kwargs["hidden_states"]
            others = kwargs.get(recipe.other_states)
            found.setdefault(name, {})["states"] = states.numpy(), (states if others is None else others).numpy()
            mask = kwargs.get("attention_mask" if others is None else recipe.other_mask)
            found[name]["mask"] = None if mask is None else mask.numpy()
            if recipe.sees is not None:
                found[name]["sees"] = recipe.sees(_module, states.shape[1], states.shape[1])

        def gave(_module, _args, output, name=name):
            found[name]["output"] = output.numpy()

        handles += [core.register_forward_pre_hook(given, with_kwargs=True), out.register_forward_hook(gave)]
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    return found


def off(config, weights, call):
    """How far a canonical layer that counts positions is from what the module gave, over its largest number."""
    states, others = call["states"]
    allowed = np.ones((len(states), 1, states.shape[1], others.shape[1]), bool)
    if call["mask"] is not None:
        mask = call["mask"]
        allowed &= mask if mask.dtype == bool else mask > -1e30
    elif call.get("causal"):
        allowed &= np.tri(*allowed.shape[2:], dtype=bool)
    allowed &= call.get("sees", True)
    rotary = None if config.rotary is None else RotaryInputs(positions=np.arange(states.shape[1]))
    states, others = states.astype(np.float64), others.astype(np.float64)
    inputs = AttentionInputs(states, others, others, AttentionMask(allowed=allowed), rotary=rotary)
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    output = reference.run(config, wide, inputs).output
    has_key = allowed.any(axis=(1, 3))
    return float(np.abs(output - call["output"])[has_key].max() / np.abs(call["output"]).max())


def marked(names):
    return [pytest.param(name, marks=() if name in DAILY else pytest.mark.nightly) for name in names]


def said_of(folder, recorded=None):
    """The word for each layer of a folder and its canonical layer; or why it is refused."""
    out = folder.parent / "canonical.safetensors"
    try:
        done = convert(folder, to_layout="canonical", out=out, every=True, force=True, recorded=recorded or ())
    except (SpecError, VerificationFailed) as error:
        return str(error)
    with open_checkpoint(out) as checkpoint:
        return {
            one.to_prefix: (one.standing.word, *read_layer(checkpoint, get("canonical"), one.to_prefix)[:2])
            for one in done.layers
        }


def check(name, model, batch, folder, causal):
    """Every layer that is known or proved gives what its module gave; no more are refused than are listed."""
    written(model, folder)
    found = calls(model, batch)
    recording, refused = folder.parent / "calls.safetensors", {}
    try:
        with torch.no_grad(), mha.capture(model, recording, overwrite=True):
            model(**batch)
    except SpecError as error:
        refused["proved"] = str(error)
    for way, recorded in (("known", None), ("proved", recording)):
        if way in refused:
            continue
        said = said_of(folder, recorded)
        if isinstance(said, str):
            refused[way] = said
            continue
        for index, (prefix, (word, config, weights)) in enumerate(said.items()):
            assert word == way
            call = found.get(prefix) or list(found.values())[index]  # some are renamed when they are saved
            assert off(config, weights, {**call, "causal": causal}) < 1e-4, (way, prefix, config)
    assert {way for way in REFUSED if name in REFUSED[way]} == set(refused), refused


@pytest.mark.parametrize("name", marked(DECODERS))
def test_a_decoder_with_odd_settings(name, tmp_path):
    model = decoder_of(*DECODERS[name])
    batch = {"input_ids": torch.arange(2 * 18).reshape(2, 18) * 7 % 29 + 1, "use_cache": False}
    check(name, model, batch, tmp_path / "model", causal=True)


@pytest.mark.parametrize("name", marked(ENCODERS))
def test_an_encoder_with_odd_settings(name, tmp_path):
    model_type, changes = ENCODERS[name]
    model = known_models.model_of(model_type, **changes)
    batch = known_models.batch_of(model_type, model)
    batch |= {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    check(name, model, batch, tmp_path / "model", causal=model_type == "gpt2")
