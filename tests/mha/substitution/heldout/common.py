"""What all models of this folder share: rows of the tables, random parameters, and arrays."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Row:
    """A planted fault: `fault` in layer `layer` makes `true` wrong, and `parent` is the module around it."""

    fault: str
    layer: int
    true: tuple[str, ...]  # paths in the port, "" is the model
    parent: str
    kind: str  # "code", "parameters" or "glue"
    done: str
    also: tuple[str, ...] = ()  # no false names, though not the place: modules that are given less than the original's


@dataclass(frozen=True)
class Way:
    """A right port written otherwise."""

    way: str
    done: str


def randomize(module, seed):
    """Gives every parameter of a torch module random numbers, such that none is trivial."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        with torch.no_grad():
            if value.ndim > 1:
                value.copy_(noise / max(1, value[0].numel()) ** 0.5)
            else:
                value.copy_(0.3 * noise + (1.0 if "norm" in name and "weight" in name else 0.0))
    return module.eval().requires_grad_(False)


def arrays(module):
    """The parameters of a torch module as NumPy arrays of their own."""
    return {name: value.detach().numpy().copy() for name, value in module.named_parameters()}


def lengths(*each, size):
    """Which positions of each item are no padding: (B, size)."""
    return np.arange(size) < np.array(each)[:, None]


def permuted_heads(heads, width):
    """Indices of (heads * width) channels with the heads in another order."""
    order = np.roll(np.arange(heads), 1)
    return np.arange(heads * width).reshape(heads, width)[order].reshape(-1)
