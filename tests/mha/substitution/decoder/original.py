"""Small random decoders of transformers, and their batch: padded on the left, or on the right."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

VOCABULARY, WIDTH, INNER, HEADS, GROUPS, DEPTH, WINDOW = 61, 32, 48, 4, 2, 3, 3
SIZE = {"llama": 8, "gemma2": 16}
"""Of a head."""
SCALE = {"llama": 8**-0.5, "gemma2": 24**-0.5}
BASE, EPSILON, CAP, SCORE_CAP = 10000.0, 1e-6, 3.0, 2.0

Inputs = dict[str, NDArray[np.int64]]
State = dict[str, NDArray[np.float32]]


def original(kind: str, left: bool) -> tuple[Any, Inputs, State]:
    """The model, what it is called with, and its parameters by name."""
    from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": SIZE[kind],
        "rms_norm_eps": EPSILON,
        "max_position_embeddings": 32,
        "attn_implementation": "sdpa" if kind == "llama" else "eager",  # sdpa has no softcap
        "use_cache": False,
        "pad_token_id": 0,
    }
    torch.manual_seed(5)
    if kind == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        cap: dict[str, Any] = {"final_logit_softcapping": CAP, "attn_logit_softcapping": SCORE_CAP}
        model = Gemma2ForCausalLM(Gemma2Config(**sizes, **cap, query_pre_attn_scalar=24, sliding_window=WINDOW))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn_like(parameter)
            if parameter.ndim == 1:
                parameter.add_(0.2 * drawn)
            else:
                parameter.copy_(drawn * (1.0 if "embed" in name else parameter.shape[1] ** -0.5))
    mask = np.ones((3, 7), np.int64)
    if left:
        mask[0, :3] = mask[2, :1] = 0
    else:  # no more than what leaves each query of WINDOW keys one that counts
        mask[0, 5:] = mask[2, 6:] = 0
    ids = np.random.default_rng(3).integers(1, VOCABULARY, mask.shape) * mask
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    state = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    return model.eval(), inputs, state
