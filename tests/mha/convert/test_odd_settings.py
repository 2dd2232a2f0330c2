"""Configs of listed families with settings that few models have: what is known or proved gives the model's numbers.

Those that were once taken wrongly are asked by day: test_settings_once_wrong.py.
"""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.mha.convert.odd_settings import BASE, check_decoder, check_encoder
from tests.mha.recipes.test_decoders import DBRX, FAMILIES, LLAMA3, LONG, OWN_TABLES, WIDE, share

pytestmark = [
    pytest.mark.nightly("each family is read as it computes"),
    pytest.mark.same_on_newest,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning"),  # what is read at the seam alone is said
]

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
    "codegen": ("codegen", {**OWN_TABLES, "num_attention_heads": 4, "max_position_embeddings": 30}),
    "nanochat": ("nanochat", WIDE),
    "opt": ("opt", {"ffn_dim": 20, "word_embed_proj_dim": 36, "dropout": 0.0, "enable_bias": False}),
    "gpt-bigcode": ("gpt_bigcode", {"n_inner": 20, "multi_query": True, "scale_attn_weights": False}),
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
    "distilbert": ("distilbert", {"sinusoidal_pos_embds": True, "n_heads": 6}),
}


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_with_odd_settings(name, tmp_path):
    check_decoder(name, *DECODERS[name], tmp_path)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_with_odd_settings(name, tmp_path):
    check_encoder(name, *ENCODERS[name], tmp_path)
