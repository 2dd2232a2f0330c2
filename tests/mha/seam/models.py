"""Small models of transformers with random weights, whose attention functions are looked up."""

from __future__ import annotations

import torch
import transformers as hf

SIZES = {"vocab_size": 41, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20}
DECODER = {**SIZES, "hidden_size": 24, "num_key_value_heads": 2, "head_dim": 6, "pad_token_id": 0, "eos_token_id": 1}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}


def config_of(name, **more):
    """A small config: of a decoder with grouped heads, with sinks, with a softcap, or of an encoder with a bias."""
    if name == "t5":
        sizes = {"d_model": 24, "d_kv": 6, "d_ff": 18, "num_layers": 2, "num_heads": 4, "vocab_size": 41}
        return hf.T5Config(**sizes, **more)
    if name == "gpt_oss":
        return hf.GptOssConfig(**DECODER, **EXPERTS, **more)
    return {"llama": hf.LlamaConfig, "vaultgemma": hf.VaultGemmaConfig, "diffllama": hf.DiffLlamaConfig}[name](
        **DECODER, **more
    )


def model_of(name, seed=3, dtype=torch.float32, **more):
    """A model of that config, every parameter of it random."""
    auto = hf.T5EncoderModel if name == "t5" else hf.AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = config_of(name, **more)
        model = (auto(config) if name == "t5" else auto.from_config(config)).eval().to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batch_of():
    """Two texts of 7 and 5 tokens, the second padded on the left."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        ids = torch.randint(2, 41, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}
