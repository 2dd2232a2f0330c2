"""A small model of every model type that `mha convert` knows, its file, and a recorded run of it."""

from typing import Any

import torch
import transformers as hf

import mha
from tests.mha.recipes.hf_models import BATCH, BERT, GPT2, LENGTH, SIDES, SMALL, VOCABULARY

PIXELS = {"image_size": 6, "patch_size": 2}
MORE: dict[str, dict[str, Any]] = {
    "distilbert": {"dim": 12, "n_heads": 3, "n_layers": 2, "hidden_dim": 10, "max_position_embeddings": 16},
    "opt": {**BERT, "ffn_dim": 10, "word_embed_proj_dim": 12, "max_position_embeddings": 16},
    "whisper": {**SIDES, "num_mel_bins": 4, "max_source_positions": LENGTH, "max_target_positions": 9},
    "gpt2": GPT2,
    "vivit": {**BERT, **PIXELS, "num_frames": 2, "tubelet_size": [1, 2, 2]},
    "audio-spectrogram-transformer": {
        **BERT,
        **{"patch_size": 2, "num_mel_bins": 6, "max_length": 8, "time_stride": 2, "frequency_stride": 2},
    },
}
EMBEDDED = {"electra": {"embedding_size": 12}, "vit_mae": {"mask_ratio": 0.0}, "roc_bert": {"shape_vocab_size": 23}}
"""What two of them need besides."""


def model_of(model_type: str, **changes: Any) -> Any:
    """A model with large random weights, in evaluation mode, eager."""
    base = hf.AutoConfig.for_model(model_type).to_dict()
    sides = SIDES | {"max_position_embeddings": 16} if "encoder_attention_heads" in base else BERT | PIXELS
    sizes = {**sides, **MORE.get(model_type, {}), **EMBEDDED.get(model_type, {})}
    known = {key: value for key, value in {**SMALL, "max_position_embeddings": 16, **sizes}.items() if key in base}
    config = hf.AutoConfig.for_model(model_type, **{**known, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = hf.AutoModel.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.3)
    return model


def batch_of(model_type: str, model: Any) -> dict[str, Any]:
    """The arguments of a call."""
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=random)
    texts = {"input_ids": ids, "attention_mask": torch.tensor([[1] * LENGTH, [1] * 4 + [0] * 3])}
    name = model.main_input_name
    if name == "input_features":
        return {name: torch.randn(BATCH, 4, 2 * LENGTH, generator=random), "decoder_input_ids": ids[:, :5]}
    if name == "input_values":
        return {name: torch.randn(BATCH, 8, 6, generator=random)}
    if name == "pixel_values":
        frames = (2,) if model_type == "vivit" else ()
        return {name: torch.randn(BATCH, *frames, 3, 6, 6, generator=random)}
    if model.config.is_encoder_decoder:
        return {**texts, "decoder_input_ids": ids[:, :5]}
    return texts


def run(model_type: str, model: Any, path: Any) -> Any:
    """Run the model once and record its attention at `path`."""
    batch = {**batch_of(model_type, model), **({"use_cache": False} if hasattr(model.config, "use_cache") else {})}
    with torch.no_grad(), mha.capture(model, path):
        model(**batch)
    return path
