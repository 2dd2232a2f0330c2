"""Layers that a framework differentiates, to be measured: a plain one with a fault in its forward direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from conformance.bounds.precision import Precision
from conformance.subjects.ask import CannotExpress
from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import Run
from mha_core.weights import Weights

Tensor = torch.Tensor


class Differentiated:
    """A layer without masks in torch, float64; `scores(q, k, config)` is any function, and torch differentiates it.

    Args:
        scores: (B, H, Lq, d), (B, H, Lk, d) -> (B, H, Lq, Lk).
        gradients: changes the gradients that torch gives, by name.
    """

    name, dtype, device = "differentiated", "float64", "cpu"
    precision = Precision.of("float64")

    def __init__(
        self,
        scores: Callable[[Tensor, Tensor, AttentionConfig], Tensor] = lambda q, k, config: (
            q @ k.mT * config.softmax_scale
        ),
        gradients: Callable[[dict[str, Any]], dict[str, Any]] = lambda given: given,
    ) -> None:
        self.scores, self.gradients = scores, gradients

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        if not config.projections or config.softcap or config.score != "scaled_dot" or config.scale:
            raise CannotExpress("plain layers only")

        def run(inputs: AttentionInputs) -> Trace:
            if inputs.mask.limits != (None, None) or inputs.dropout_keep is not None or inputs.past_keys is not None:
                raise CannotExpress("no masks, dropout or past")
            if any(getattr(inputs.mask, name) is not None for name in ("valid_lens", "allowed", "bias")):
                raise CannotExpress("no masks")
            given = {**inputs.leaves(), **weights}
            leaves = {name: torch.tensor(array, requires_grad=True) for name, array in given.items()}

            def projected(name: str, x: Tensor) -> Tensor:
                bias = leaves.get(f"{name}.bias", torch.zeros(()))
                return x @ leaves[f"{name}.weight"].mT + bias

            def heads(name: str, x: Tensor, number: int) -> Tensor:
                split = projected(name, x).unflatten(-1, (number, -1)).transpose(1, 2)
                return split.repeat_interleave(config.num_heads // number, dim=1)

            q = heads("q_proj", leaves["queries"], config.num_heads)
            k, v = (heads(f"{name[0]}_proj", leaves[name], config.num_kv_heads) for name in ("keys", "values"))
            weighted = torch.softmax(self.scores(q, k, config), dim=-1) @ v
            output = projected("out_proj", weighted.transpose(1, 2).flatten(2))
            if inputs.cotangent is None:
                return Trace(output=output.detach().numpy())
            output.backward(torch.tensor(inputs.cotangent))
            gradients = {name: np.asarray(leaf.grad) for name, leaf in leaves.items()}
            return Trace(output=output.detach().numpy(), gradients=self.gradients(gradients))

        return run
