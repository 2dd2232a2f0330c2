"""Small models of Hugging Face transformers with random weights, and calls of them; one for each family.

Sizes are pairwise different where the model allows it. Weights are large enough that attention is far from
uniform, and biases are not 0.
"""

from typing import Any

import torch
import transformers as hf

BATCH, LENGTH, DECODED, VOCABULARY = 2, 7, 5, 23
SMALL = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIDES = {
    "d_model": 12,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 10,
    "decoder_ffn_dim": 11,
    "decoder_start_token_id": 1,
}
BERT = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 10}
GPT2 = {"n_embd": 15, "n_head": 3, "n_layer": 2, "n_positions": 16}


def config_of(name: str) -> Any:
    """The config of the model called `name`."""
    return {
        "bert": lambda: hf.BertConfig(**SMALL, **BERT),
        "bert-cross": lambda: hf.BertConfig(**SMALL, **BERT, is_decoder=True, add_cross_attention=True),
        "roberta": lambda: hf.RobertaConfig(**SMALL, **BERT),
        "gpt2": lambda: hf.GPT2Config(**SMALL, **GPT2),
        "gpt2-cross": lambda: hf.GPT2Config(**SMALL, **GPT2, add_cross_attention=True),
        "gpt2-scaled": lambda: hf.GPT2Config(**SMALL, **GPT2, scale_attn_by_inverse_layer_idx=True),
        "gpt2-unscaled": lambda: hf.GPT2Config(**SMALL, **GPT2, scale_attn_weights=False),
        "vit": lambda: hf.ViTConfig(**BERT, image_size=6, patch_size=2),
        "vit-no-bias": lambda: hf.ViTConfig(**BERT, image_size=6, patch_size=2, qkv_bias=False),
        "bart": lambda: hf.BartConfig(**SMALL, **SIDES, max_position_embeddings=16),
        "whisper": lambda: hf.WhisperConfig(
            **SMALL, **SIDES, num_mel_bins=4, max_source_positions=LENGTH, max_target_positions=9
        ),
    }[name]()


CLASSES = {
    "bert": hf.BertModel,
    "roberta": hf.RobertaModel,
    "gpt2": hf.GPT2Model,
    "vit": hf.ViTModel,
    "bart": hf.BartModel,
    "whisper": hf.WhisperModel,
}
NAMES = (
    *("bert", "bert-cross", "roberta", "gpt2", "gpt2-cross", "gpt2-scaled", "gpt2-unscaled"),
    *("vit", "vit-no-bias", "bart", "whisper"),
)


def model_of(name: str, implementation: str = "sdpa", dtype: str = "float32", seed: int = 0) -> Any:
    """The model called `name`, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        kind = CLASSES[name.split("-")[0]]
        model = kind._from_config(config_of(name), attn_implementation=implementation).to(getattr(torch, dtype)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.4)
    return model


def batch_of(name: str, dtype: str = "float32") -> dict[str, Any]:
    """The arguments of a call, with one padded text."""
    random = torch.Generator().manual_seed(1)
    floats = {"generator": random, "dtype": getattr(torch, dtype)}
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=random)
    mask = torch.tensor([[1] * LENGTH, [1] * 4 + [0] * 3])
    texts = {"input_ids": ids, "attention_mask": mask}
    family = name.split("-")[0]
    if family == "vit":
        return {"pixel_values": torch.randn(BATCH, 3, 6, 6, **floats)}
    if family == "whisper":
        sounds = torch.randn(BATCH, 4, 2 * LENGTH, **floats)
        return {"input_features": sounds, "decoder_input_ids": ids[:, :DECODED], "use_cache": False}
    if family == "bart":
        return {**texts, "decoder_input_ids": ids[:, :DECODED], "use_cache": False}
    if name.endswith("-cross"):
        width = config_of(name).hidden_size
        states = torch.randn(BATCH, 4, width, **floats)
        other = {"encoder_hidden_states": states, "encoder_attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])}
        return {**texts, **other, "use_cache": False}
    return {**texts, "use_cache": False} if family == "gpt2" else texts


WORDS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "the", "cat", "sleeps", ".", "a", "train")


def save_encoder(folder: Any, name: str = "bert", **options: Any) -> Any:
    """Write a model of the BERT family and its tokenizer as save_pretrained does; returns the folder."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    hf.BertTokenizer(vocab=vocabulary, model_max_length=9).save_pretrained(folder)
    model_of(name).save_pretrained(folder, **options)
    return folder


EXPECTED_LAYERS = {
    "bert": ["encoder.layer.0.attention", "encoder.layer.1.attention"],
    "bert-cross": [f"encoder.layer.{n}.{kind}" for n in (0, 1) for kind in ("attention", "crossattention")],
    "roberta": ["encoder.layer.0.attention", "encoder.layer.1.attention"],
    "gpt2": ["h.0.attn", "h.1.attn"],
    "gpt2-cross": ["h.0.attn", "h.0.crossattention", "h.1.attn", "h.1.crossattention"],
    "gpt2-scaled": ["h.0.attn", "h.1.attn"],
    "gpt2-unscaled": ["h.0.attn", "h.1.attn"],
    "vit": ["layers.0.attention", "layers.1.attention"],
    "vit-no-bias": ["layers.0.attention", "layers.1.attention"],
    "bart": ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"],
    "whisper": ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"],
}
"""Name of a model -> the names of its attention layers, in order."""
