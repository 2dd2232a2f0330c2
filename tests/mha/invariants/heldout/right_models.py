"""Right models with random weights: none contradicts itself. A row is a function without arguments."""

import numpy as np


def draw(*shape, seed=71):
    """Return normal numbers in float32."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def family(name, config=None, attn="eager", **options):
    """Return a model of transformers from a small config, in evaluation."""
    import torch
    import transformers as hf

    torch.manual_seed(72)
    config = getattr(hf, config or name.replace("ForCausalLM", "").replace("LMHeadModel", "") + "Config")
    return getattr(hf, name)(config(attn_implementation=attn, **options)).eval()


LLAMA = {
    "vocab_size": 59,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 70,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT = {
    "vocab_size": 59,
    "hidden_size": 30,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 70,
}
GPT2 = {
    "vocab_size": 59,
    "n_embd": 30,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 70,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def h_llama_eager():
    return family("LlamaForCausalLM", **LLAMA)


def h_llama_sdpa():
    return family("LlamaForCausalLM", attn="sdpa", **LLAMA)


def h_gpt2_eager():
    return family("GPT2LMHeadModel", **GPT2)


def h_gpt2_sdpa():
    return family("GPT2LMHeadModel", attn="sdpa", **GPT2)


def h_bert_eager():
    return family("BertModel", "BertConfig", **BERT)


def h_bert_sdpa():
    return family("BertModel", "BertConfig", attn="sdpa", **BERT)


def h_mistral_eager():
    return family("MistralForCausalLM", sliding_window=5, **LLAMA)


def h_mistral_sdpa():
    return family("MistralForCausalLM", attn="sdpa", sliding_window=5, **LLAMA)


def h_qwen2_sdpa():
    return family("Qwen2ForCausalLM", attn="sdpa", **LLAMA)


def h_qwen3_eager():
    return family("Qwen3ForCausalLM", head_dim=6, **LLAMA)


def h_gemma_eager():
    return family("GemmaForCausalLM", head_dim=10, **LLAMA)


def h_gemma2_eager():
    return family("Gemma2ForCausalLM", head_dim=10, sliding_window=5, **LLAMA)


def h_phi_sdpa():
    return family("PhiForCausalLM", attn="sdpa", **LLAMA)


def h_neox_sdpa():
    return family("GPTNeoXForCausalLM", attn="sdpa", **{k: v for k, v in LLAMA.items() if k != "num_key_value_heads"})


def h_opt_eager():
    return family(
        "OPTForCausalLM",
        vocab_size=59,
        hidden_size=30,
        ffn_dim=44,
        num_hidden_layers=2,
        num_attention_heads=3,
        max_position_embeddings=70,
        word_embed_proj_dim=30,
    )


def h_bloom_eager():
    return family("BloomForCausalLM", vocab_size=59, hidden_size=30, n_layer=2, n_head=3)


def h_olmo2_sdpa():
    return family("Olmo2ForCausalLM", attn="sdpa", **LLAMA)


def h_mixtral_eager():
    return family("MixtralForCausalLM", num_local_experts=3, num_experts_per_tok=2, **LLAMA)


def h_distilbert_sdpa():
    return family(
        "DistilBertModel",
        "DistilBertConfig",
        attn="sdpa",
        vocab_size=59,
        dim=30,
        hidden_dim=44,
        n_layers=2,
        n_heads=3,
        max_position_embeddings=70,
    )


def h_roberta_sdpa():
    return family("RobertaModel", "RobertaConfig", attn="sdpa", **BERT)


def h_electra_eager():
    return family("ElectraModel", "ElectraConfig", embedding_size=22, **BERT)


IDS = {
    "input_ids": np.random.default_rng(78).integers(3, 59, (2, 9)),
    "decoder_input_ids": np.random.default_rng(79).integers(3, 59, (2, 6)),
}


def h_t5_eager():
    return (
        family(
            "T5ForConditionalGeneration",
            "T5Config",
            vocab_size=59,
            d_model=30,
            d_kv=7,
            d_ff=44,
            num_layers=2,
            num_heads=3,
            decoder_start_token_id=0,
        ),
        IDS,
    )


def h_t5encoder_eager():
    return family("T5EncoderModel", "T5Config", vocab_size=59, d_model=30, d_kv=7, d_ff=44, num_layers=2, num_heads=3)


def h_bart_sdpa():
    return (
        family(
            "BartModel",
            "BartConfig",
            attn="sdpa",
            vocab_size=59,
            d_model=30,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=3,
            decoder_attention_heads=5,
            encoder_ffn_dim=44,
            decoder_ffn_dim=46,
            max_position_embeddings=70,
        ),
        IDS,
    )


def h_whisper_sdpa():
    return (
        family(
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            attn="sdpa",
            vocab_size=59,
            d_model=30,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=3,
            decoder_attention_heads=5,
            encoder_ffn_dim=44,
            decoder_ffn_dim=46,
            num_mel_bins=9,
            max_source_positions=14,
            max_target_positions=40,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            begin_suppress_tokens=None,
            suppress_tokens=None,
        ),
        {"decoder_input_ids": IDS["decoder_input_ids"], "input_features": draw(2, 9, 28)},
    )


def h_vit_sdpa():
    """A ViT, with its picture."""
    model = family(
        "ViTModel",
        "ViTConfig",
        attn="sdpa",
        hidden_size=30,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=3,
        image_size=12,
        patch_size=4,
    )
    return model, {"pixel_values": draw(2, 3, 12, 12)}


def seeded(make):
    """Return what `make()` gives after torch's seed, in evaluation."""
    import torch

    torch.manual_seed(73)
    return make().eval()


def p_mha():
    """torch.nn.MultiheadAttention."""
    from torch import nn

    x = draw(2, 7, 24)
    return seeded(lambda: nn.MultiheadAttention(24, 3, batch_first=True)), {"query": x, "key": x, "value": x}


def p_mha_wide():
    """torch.nn.MultiheadAttention with other widths of keys and values, and bias_kv."""
    from torch import nn

    given = {"query": draw(2, 5, 24), "key": draw(2, 7, 10, seed=1), "value": draw(2, 7, 14, seed=2)}
    return seeded(lambda: nn.MultiheadAttention(24, 4, kdim=10, vdim=14, batch_first=True)), given


def p_encoder_layer():
    """torch.nn.TransformerEncoderLayer."""
    from torch import nn

    return seeded(lambda: nn.TransformerEncoderLayer(24, 3, 40, batch_first=True)), {"src": draw(2, 7, 24)}


def p_encoder():
    """torch.nn.TransformerEncoder."""
    from torch import nn

    def make():
        one = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True, norm_first=True)
        return nn.TransformerEncoder(one, 2, enable_nested_tensor=False)

    return seeded(make), {"src": draw(2, 7, 24)}


def p_decoder_layer():
    """torch.nn.TransformerDecoderLayer."""
    from torch import nn

    return (
        seeded(lambda: nn.TransformerDecoderLayer(24, 3, 40, batch_first=True)),
        {"tgt": draw(2, 6, 24), "memory": draw(2, 9, 24, seed=3)},
    )


def p_gru():
    """torch.nn.GRU."""
    from torch import nn

    return seeded(lambda: nn.GRU(11, 13, batch_first=True)), {"input": draw(2, 7, 11)}


def p_ours():
    """This project's layer in PyTorch."""
    from backends.torch import MultiHeadAttention

    x = draw(2, 7, 24)
    layer = seeded(lambda: MultiHeadAttention(24, 3, 0.5, query_dim=24, key_dim=24, value_dim=24))
    return layer, {"queries": x, "keys": x, "values": x}


def p_compiled():
    """A plain layer that computes causal attention by a loop over heads."""
    import torch
    from torch import nn

    class Loop(nn.Module):
        """Causal attention, head by head."""

        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(14, 15) for _ in range(3))

        def forward(self, x):
            """Return the heads side by side."""
            heads = []
            for q, k, v in zip(*(one(x).chunk(3, -1) for one in (self.q, self.k, self.v)), strict=False):
                heads.append(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
            return torch.cat(heads, -1)

    return seeded(Loop), {"x": draw(2, 7, 14)}


def k_mha():
    """keras.layers.MultiHeadAttention."""
    import keras

    keras.utils.set_random_seed(74)
    layer, x = keras.layers.MultiHeadAttention(3, 5), draw(2, 6, 16)
    layer(x, x)
    return layer, {"query": x, "value": x}


def k_gqa():
    """keras.layers.GroupedQueryAttention."""
    import keras

    keras.utils.set_random_seed(75)
    layer, x = keras.layers.GroupQueryAttention(5, 4, 2), draw(2, 6, 16)
    layer(x, x)
    return layer, {"query": x, "value": x}


def k_attention():
    """keras.layers.Attention."""
    import keras

    x = draw(2, 6, 10)
    layer = keras.layers.Attention()
    layer([x, x])
    return layer, {"inputs": [x, x]}


def k_lstm():
    """keras.layers.LSTM with a sequence."""
    import keras

    keras.utils.set_random_seed(76)
    layer, x = keras.layers.LSTM(9, return_sequences=True), draw(2, 6, 10)
    layer(x)
    return layer, {"sequences": x}


def k_model():
    """A functional model of Keras: embedding, causal attention, dense."""
    import keras

    keras.utils.set_random_seed(77)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(43, 16)(ids)
    x = x + keras.layers.MultiHeadAttention(3, 5)(x, x, use_causal_mask=True)
    return keras.Model(ids, keras.layers.Dense(43)(keras.layers.LayerNormalization()(x))), {
        "inputs": np.random.default_rng(1).integers(3, 43, (2, 7))
    }


def k_ours():
    """This project's layer in Keras."""
    from backends.tf import MultiHeadAttention

    x = draw(2, 6, 20)
    layer = MultiHeadAttention(20, 4, 0.5)
    layer(x, x, x)
    return layer, {"queries": x, "keys": x, "values": x}


def f_linen():
    """flax.linen.MultiHeadDotProductAttention, bound."""
    import jax
    from flax import linen

    x = draw(2, 6, 18)
    module = linen.MultiHeadDotProductAttention(num_heads=3, deterministic=True)
    return module.bind(module.init(jax.random.key(1), x)), {"inputs_q": x}


def f_nnx():
    """flax.nnx.MultiHeadAttention."""
    from flax import nnx

    layer = nnx.MultiHeadAttention(3, 18, decode=False, deterministic=True, rngs=nnx.Rngs(2))
    return layer, {"inputs_q": draw(2, 6, 18)}


def f_ours():
    """This project's layer in Flax, bound."""
    import jax

    from backends.jax import MultiHeadAttention

    x = draw(2, 6, 20)
    layer = MultiHeadAttention(20, 4, 0.5)
    return layer.bind(layer.init(jax.random.key(3), x, x, x)), {"queries": x, "keys": x, "values": x}


def m_ours():
    """This project's layer in MXNet."""
    from backends.mxnet import MultiHeadAttention
    from backends.mxnet.ops.framework import mx

    mx.npx.set_np()
    layer = MultiHeadAttention(20, 4, 0.5)
    layer.initialize()
    x = draw(2, 6, 20)
    layer(*(mx.np.array(x) for _ in range(3)))
    return layer, {"queries": x, "keys": x, "values": x}
