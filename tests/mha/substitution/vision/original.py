"""A small random ViT of transformers, and a batch of images that are wider than high."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

HEIGHT, BREADTH, PATCH, CHANNELS = 12, 16, 4, 3
ROWS, COLUMNS = HEIGHT // PATCH, BREADTH // PATCH
WIDTH, INNER, HEADS, DEPTH = 24, 40, 3, 3
EPSILON = 1e-12

Images = dict[str, NDArray[np.float32]]
State = dict[str, NDArray[np.float32]]


def original() -> tuple[Any, Images, State]:
    """The model, what it is called with, and its parameters by name."""
    from transformers import ViTConfig, ViTModel

    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "image_size": (HEIGHT, BREADTH),
        "patch_size": PATCH,
        "num_channels": CHANNELS,
        "layer_norm_eps": EPSILON,
        "attn_implementation": "sdpa",
    }
    torch.manual_seed(13)
    model: Any = ViTModel(ViTConfig(**sizes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn_like(parameter)
            if parameter.ndim == 1:
                parameter.add_(0.3 * drawn)
            elif "token" in name or "position" in name:
                parameter.copy_(0.5 * drawn)
            else:
                parameter.copy_(drawn * parameter[0].numel() ** -0.5)
    images = np.random.default_rng(17).normal(size=(3, CHANNELS, HEIGHT, BREADTH)).astype(np.float32)
    state = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    return model.eval(), {"pixel_values": images}, state
