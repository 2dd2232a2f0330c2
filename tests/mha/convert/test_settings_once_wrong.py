"""Odd settings that were said to be right and were wrong, or were refused and are right."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.mha.convert.odd_settings import BASE, check_decoder, check_encoder
from tests.mha.recipes.test_decoders import FAMILIES, GPT_NEO, OWN_TABLES, WIDE

pytestmark = [
    pytest.mark.same_on_newest,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning"),  # what is read at the seam alone is said
]

DECODERS = {
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
    "gptj, 40 positions": ("gptj", {**OWN_TABLES, "max_position_embeddings": 40, "rotary_dim": 6}),
    "gpt-neo, 24 positions": ("gpt_neo", {**GPT_NEO, "max_position_embeddings": 24, "window_size": 5}),
    "nanochat base": ("nanochat", {**WIDE, "rope_parameters": BASE}),
    "qwen2-vl text": ("qwen2_vl_text", {**FAMILIES["qwen2_vl_text"]}),
}
"""Name -> (model_type, what of its config differs from SIZES)."""


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder(name, tmp_path):
    check_decoder(name, *DECODERS[name], tmp_path)


def test_dinov3(tmp_path):
    check_encoder("dinov3", "dinov3_vit", {"num_attention_heads": 3, "hidden_size": 24}, tmp_path)
