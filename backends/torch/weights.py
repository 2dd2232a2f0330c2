"""Canonical weights into PyTorch layers and out of them, exact to the bit."""

from collections.abc import Mapping
from dataclasses import asdict

import torch
from numpy.typing import NDArray

from backends.torch.layers import MultiHeadAttention
from backends.torch.ops.framework import TORCH_DTYPES, to_numpy, to_tensor
from mha_core.config import AttentionConfig
from mha_core.weights import Weights, check_weights, common_dtype


def from_weights(
    config: AttentionConfig,
    weights: Mapping[str, NDArray],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> MultiHeadAttention:
    """Return a layer with copies of these weights, in training mode like every new module.

    Args:
        config, weights: see `mha_core.AttentionConfig` and `mha_core.check_weights`.
        device: the device of the parameters.
        dtype: the dtype of the parameters. Default: the dtype of the arrays.

    Raises:
        SpecError: the weights do not fit the config; or no dtype is given and the arrays have several.

    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(6, 2)
    >>> weights = init_weights(config, seed=0)
    >>> layer = from_weights(config, weights)
    >>> all((to_weights(layer)[name] == weights[name]).all() for name in weights)
    True
    """
    checked = check_weights(config, weights)
    # On the meta device no parameter is drawn, so the global random state stays as it is.
    layer = MultiHeadAttention(**asdict(config), device="meta")
    device = torch.device(device)
    dtype = TORCH_DTYPES[common_dtype(checked)] if dtype is None else dtype
    state = {name: to_tensor(array, dtype, device) for name, array in checked.items()}
    layer.load_state_dict(state, assign=True)
    return layer


def to_weights(layer: MultiHeadAttention) -> Weights:
    """Return name -> weight of a layer, as read-only NumPy copies. Names are canonical, such as "q_proj.weight".

    bfloat16 parameters come out as float32, which holds each of them exactly.

    Raises:
        SpecError: the input widths are not known yet, or a parameter is not finite.
    """
    return check_weights(layer.config, {name: to_numpy(tensor).copy() for name, tensor in layer.state_dict().items()})
