"""Recipes of decoders: models of random weights that see every part, padded on the left, with a cache."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from conformance.bounds.precision import Precision  # noqa: E402
from conformance.judging.expected import answer  # noqa: E402
from mha.recipes import attention_layers, recipe_for, record  # noqa: E402
from mha.recipes.judge import judge_original, judge_trace  # noqa: E402
from mha_core import QueryKeyNorm, Rotary, SpecError, backend  # noqa: E402

SIZES = {
    **{"vocab_size": 31, "hidden_size": 36, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 6},
    **{"num_key_value_heads": 2, "max_position_embeddings": 64},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
WIDE = {"head_dim": 8}
LLAMA3 = {
    "rope_type": "llama3",
    **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 50.0},
    "original_max_position_embeddings": 32,
}
LONG = {
    "rope_type": "longrope",
    **{"rope_theta": 50.0, "short_factor": [1.0, 1.1, 1.2], "long_factor": [1.5, 2.0, 3.0], "factor": 4.0},
    "original_max_position_embeddings": 6,
}
OWN_TABLES = {"max_position_embeddings": 512, "n_inner": 20, "rotary_dim": 4}  # longer than the longest probe
AXES = {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "mrope_section": [1, 1, 2]}}
DBRX = {
    "d_model": 36,  # by its own name, or the experts have another width
    "attn_config": {"clip_qkv": math.inf, "kv_n_heads": 2, "rope_theta": 1e4},
    "ffn_config": {"ffn_hidden_size": 20, "moe_num_experts": 2},
}
GPT_NEO = {
    "max_position_embeddings": 512,
    **{"num_hidden_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 3},
}


def share(turning):
    """The rotary parameters with which this share of each head turns."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": turning}}


FAMILIES = {
    "llama": {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}},
    "mistral": WIDE,
    "mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "ministral": WIDE,
    "qwen2": {},
    "qwen2_moe": {"num_experts": 2, "num_experts_per_tok": 1},
    "starcoder2": {},
    "granite": {"attention_multiplier": 0.3},
    "granitemoe": {"attention_multiplier": 0.3, "num_local_experts": 2, "num_experts_per_tok": 1},
    "arcee": {},
    "seed_oss": WIDE,
    "gemma": WIDE,
    "nemotron": {"head_dim": 12},
    "gemma2": {**WIDE, "query_pre_attn_scalar": 11},
    "gemma3_text": {**WIDE, "query_pre_attn_scalar": 11},
    "smollm3": {"num_hidden_layers": 4},
    "qwen3": WIDE,
    "qwen3_moe": {**WIDE, "num_experts": 2, "num_experts_per_tok": 1},
    "exaone4": {"num_hidden_layers": 4, "sliding_window": 4, "sliding_window_pattern": 4},
    "hunyuan_v1_dense": WIDE,
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "stablelm": {"qk_layernorm": True, "hidden_size": 48},
    "cohere": {"use_qk_norm": True},
    "cohere2": {"num_hidden_layers": 4},
    "glm": WIDE,
    "glm4": WIDE,
    "helium": {"head_dim": 6},
    "ernie4_5": WIDE,
    "dots1": {
        **WIDE,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
        "n_shared_experts": 1,
    },
    "olmoe": {"num_experts": 2, "num_experts_per_tok": 1},
    "minimax_m2": {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, **share(0.5)},
    "minimax": {**WIDE, "num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": ["full_attention"]},
    "llama:3": {"rope_parameters": LLAMA3},
    "phi": {"qk_layernorm": True, **share(0.67)},
    "phi3": share(0.67),
    "phi3:long": {"rope_parameters": LONG, "original_max_position_embeddings": 6},
    "dbrx": DBRX,
    "gpt_neox": share(0.67),
    "persimmon": {"qk_layernorm": True, **share(0.67)},
    "falcon:one": {"multi_query": True, "new_decoder_architecture": False, "num_kv_heads": 6, "bias": True},
    "falcon:some": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon:all": {"multi_query": False, "new_decoder_architecture": False, "num_kv_heads": 6},
    "gptj": OWN_TABLES,
    "codegen": {**OWN_TABLES, "num_attention_heads": 4},
    "nanochat": WIDE,
    "qwen2_vl_text": {**AXES, "hidden_size": 48},
    "qwen2_5_vl_text": {**AXES, "hidden_size": 48},
    "qwen3_vl_text": AXES,
    "qwen3_vl_moe_text": {
        **AXES,
        "hidden_size": 32,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
    },
    "gpt_bigcode:one": {"n_inner": 20, "multi_query": True},
    "gpt_bigcode:all": {"n_inner": 20, "multi_query": False},
    "gpt_neo": GPT_NEO,
    "opt": {"ffn_dim": 20, "word_embed_proj_dim": 36, "dropout": 0.0},
}
"""model_type, a colon and a variant -> what of its config differs from SIZES; many layers where they differ."""

WITHOUT_SDPA = ("codegen", "gemma2", "gpt_neo", "gptj")


def model_of(model_type, implementation="eager", dtype="float32"):
    """A model whose weights are large, and whose norms are not 1."""
    config = hf.AutoConfig.for_model(model_type.split(":")[0], **{**SIZES, **FAMILIES[model_type]})
    kind = hf.AutoModel if model_type.endswith("_text") and "vl_" in model_type else hf.AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(len(model_type))
        config._experts_implementation = "eager"  # the other one asks for sizes that are multiples of 8
        model = kind.from_config(config, attn_implementation=implementation).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(torch.randn_like(parameter) * (0.4 if "norm" in name else 0.2))
    return model.to(getattr(torch, dtype))


def calls_of(model, layers):
    """The calls of each layer for two texts, padded left and right, and for one more token with a cache."""
    random = torch.Generator().manual_seed(3)
    ids, more = (torch.randint(3, 31, (2, length), generator=random) for length in (7, 1))
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, :3] = 0
    mask[1, 5:7] = 0
    here, there = {}, {}
    if "mrope_section" in (getattr(model.config, "rope_parameters", None) or {}):  # positions in time, rows and columns
        places = torch.randint(0, 40, (3, 2, 8), generator=random)
        here, there = {"position_ids": places[..., :7]}, {"position_ids": places[..., 7:]}

    def run():
        first = model(ids, attention_mask=mask[:, :7], use_cache=True, **here)
        model(more, attention_mask=mask, past_key_values=first.past_key_values, use_cache=True, **there)

    with torch.no_grad():
        return record(layers, run)[1]


@pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there
@pytest.mark.parametrize("model_type", FAMILIES)
def test_what_a_decoder_computes_is_the_definition(model_type):
    for implementation in ("eager", "sdpa") if model_type not in WITHOUT_SDPA else ("eager",):
        model = model_of(model_type, implementation)
        layers = attention_layers(model)
        assert (layers[0].config.rotary is None) == (layers[0].recipe.turn is None)
        check_calls(model, layers, "float32")
    model.to(torch.bfloat16)  # by the tables that it is given, which are then others
    check_calls(model, ends(attention_layers(model)), "bfloat16")


def ends(layers):
    """The first layer, and the last of several, which may do something else."""
    return layers[:: max(1, len(layers) - 1)]


def check_calls(model, layers, dtype):
    """Judge what layers compute for texts and for one more token."""
    calls = calls_of(model, layers)
    for site in layers:
        first, decoded = calls[site.name]
        assert decoded.sizes.past_len == 7 or type(site.module).__name__ == "Exaone4Attention"
        for problem in (first, decoded):
            found = judge_original(problem, site.precision(dtype))
            assert found.equal, (site.implementation, site.name, found.mismatches)
            assert found.rows_without_key in (0, 3 * site.config.num_heads)  # the rows of padding


@cache  # every backend is given the same calls
def answers_of(model_type):
    """The first layer and the last: config, weights, and the answer of each of its calls."""
    model = model_of(model_type)
    layers = ends(attention_layers(model, probe=False))  # they are probed above
    calls = calls_of(model, layers)
    precision = Precision.of("float32")
    return [(site.config, site.weights, [answer(one, precision) for one in calls[site.name]]) for site in layers]


EVERY_PART = (
    *("llama", "qwen3", "gemma3_text", "hunyuan_v1_dense", "stablelm", "cohere", "glm"),
    *("olmo", "dbrx"),
)


@pytest.mark.parametrize("model_type", EVERY_PART)
def test_every_backend_computes_the_same_from_the_same_inputs(model_type, backend_name):
    target = backend.load(backend_name)
    for config, weights, answers in answers_of(model_type):
        run = target.prepare(config, weights, dtype="float32")
        for wanted in answers:
            found = judge_trace(run(wanted.problem.inputs), wanted, "float32")
            assert found.equal, found.mismatches
            assert found.worst > 0.0


def test_configs_say_what_is_special():
    def config(name):
        return attention_layers(model_of(name), probe=False)[0].config

    assert config("llama").rotary.layout == Rotary(6)
    assert [config(f"falcon:{kind}").num_kv_heads for kind in ("one", "some", "all")] == [1, 2, 6]
    assert [config(f"gpt_bigcode:{kind}").num_kv_heads for kind in ("one", "all")] == [1, 6]
    assert config("persimmon").query_key_norm == QueryKeyNorm("layer", eps=1e-5, bias=True)
    assert config("nanochat").query_key_norm == QueryKeyNorm("rms", eps=1e-6, order="after", weight="none")
    assert config("codegen").rotary == Rotary(4, interleaved=True)
    assert config("gpt_neo").scale == 1.0
    assert config("nemotron").rotary == Rotary(6)  # half of 12
    assert config("glm").rotary == Rotary(4, interleaved=True)
    assert config("cohere").query_key_norm == QueryKeyNorm("layer", eps=1e-5, weight="per_head")
    assert config("olmo2").query_key_norm == QueryKeyNorm("rms", "all", eps=1e-5, weight="per_head")
    assert config("hunyuan_v1_dense").query_key_norm.order == "after"
    assert config("gemma3_text").query_key_norm.offset == 1
    assert (config("gemma2").softcap, config("gemma3_text").softcap) == (50.0, None)
    assert config("gemma2").scale == 11**-0.5
    assert config("granite").scale == 0.3


def test_layers_that_do_not_turn_say_so():
    for name in ("smollm3", "cohere2", "exaone4"):
        layers = attention_layers(model_of(name), probe=False)
        assert [int(site.config.rotary is not None) for site in layers] == [1, 1, 1, 0], name


@pytest.mark.parametrize("name", ["olmo", "olmoe", "dbrx"])
def test_projections_that_are_clipped_are_refused(name, monkeypatch):
    clipped = {"attn_config": {**DBRX["attn_config"], "clip_qkv": 3.0}} if name == "dbrx" else {"clip_qkv": 3.0}
    monkeypatch.setitem(FAMILIES, name, {**FAMILIES[name], **clipped})
    with pytest.raises(SpecError, match="clip_qkv=3.0 of the model's config has no translation"):
        attention_layers(model_of(name))


def test_tables_that_are_no_rotation_are_refused():
    (site,) = attention_layers(model_of("llama"))
    assert recipe_for(site.module).family == "llama"
    states, table = torch.randn(1, 3, 36), torch.randn(1, 3, 6)
    with pytest.raises(SpecError, match="turn the two channels of a pair by different angles"):
        site.inputs((states,), {"position_embeddings": (table, table)})
    with pytest.raises(SpecError, match=r"position_embeddings must be a tuple \(cos, sin\). Got NoneType"):
        site.inputs((states,), {})


def test_the_words_of_a_cache():
    model = model_of("llama")
    (site,) = attention_layers(model)
    x = np.ones((1, 3, 36))
    assert replace(site.inputs(*_call(site, x)), rotary=None).past_keys is None
    with pytest.raises(SpecError, match="past_key_values is a object, which has no translation"):
        site.inputs(*_call(site, x, past_key_values=object()))


def _call(site, x, **more):
    table = torch.zeros(1, x.shape[1], 6)
    return (torch.tensor(x, dtype=torch.float32),), {"position_embeddings": (table, table), **more}
