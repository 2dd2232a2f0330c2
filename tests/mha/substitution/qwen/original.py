"""A small random Qwen3 of transformers, and its batch: two items padded on the left, one not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

VOCABULARY, WIDTH, INNER, HEADS, GROUPS, SIZE, DEPTH = 53, 32, 44, 4, 2, 8, 3
BASE, EPSILON = 10000.0, 1e-6

Inputs = dict[str, NDArray[np.int64]]
State = dict[str, NDArray[np.float32]]


def original() -> tuple[Any, Inputs, State]:
    """The model, what it is called with, and its parameters by name."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": SIZE,
        "rms_norm_eps": EPSILON,
        "max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
        "attn_implementation": "sdpa",
        "tie_word_embeddings": True,
        "use_cache": False,
        "pad_token_id": 0,
    }
    torch.manual_seed(11)
    model: Any = Qwen3ForCausalLM(Qwen3Config(**sizes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn_like(parameter)
            if parameter.ndim == 1:
                parameter.add_(0.3 * drawn)
            else:
                parameter.copy_(drawn * (1.0 if "embed" in name else parameter.shape[1] ** -0.5))
    mask = np.ones((3, 8), np.int64)
    mask[0, :3] = mask[1, :1] = 0
    ids = np.random.default_rng(7).integers(1, VOCABULARY, mask.shape) * mask
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    state = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    return model.eval(), inputs, state
