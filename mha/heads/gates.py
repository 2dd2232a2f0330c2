"""Gates: a number for each head that its part of the merged heads is multiplied by, before the output projection.

A gate of 0 is the head masked everywhere (`allowed[:, head] = False`), whose row has the weights 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.heads.subject import Live


@contextmanager
def gated(live: Live, gates: Sequence[Any]) -> Iterator[None]:
    """A context in which layer i's heads are multiplied by gates[i], a tensor (H,), or (B, H) for each text."""
    with ExitStack() as hooks:
        for site, gate in zip(live.sites, gates, strict=True):
            hooks.callback(site.out.register_forward_pre_hook(_multiplying(gate)).remove)
        yield


def _multiplying(gate: Any) -> Callable[[Any, Any], Any]:
    def hook(_module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        merged, *rest = arguments
        heads = merged.unflatten(-1, (gate.shape[-1], -1))  # (B, L, H, dv)
        return ((heads * gate[..., None, :, None]).flatten(-2), *rest)

    return hook


def without(live: Live, removed: NDArray[np.bool_]) -> AbstractContextManager[None]:
    """A context without the heads that are True in `removed`, bool (layers, heads)."""
    import torch

    kept = [~row[: site.config.num_heads] for site, row in zip(live.sites, removed, strict=True)]
    return gated(live, [torch.from_numpy(own).to(site.out.weight) for own, site in zip(kept, live.sites, strict=True)])


def embed(live: Live, batches: Sequence[Any], removed: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    """Embeddings (N, E) of length 1, of all texts of these batches in their order, without some heads."""
    gates = nullcontext() if removed is None or not removed.any() else without(live, removed)
    with gates:
        return np.concatenate([live.encoder.embed(batch) for batch in batches])


def squared_gradients(live: Live, batch: Any, directions: NDArray[np.float64]) -> NDArray[np.float64]:
    """How fast each head's gate moves the embeddings: sums over texts of squares, (layers, heads).

    Args:
        live: the model.
        batch: B texts.
        directions: (D, B, E). For each, the derivative of direction . embedding by each text's own gates is squared.
    """
    import torch

    heads = [site.config.num_heads for site in live.sites]
    gates = [torch.ones(directions.shape[1], count, dtype=live.sites[0].out.weight.dtype) for count in heads]
    for gate in gates:
        gate.requires_grad_()
    with torch.enable_grad(), gated(live, gates):
        states = live.encoder.model(**batch).last_hidden_state
        tokens = batch["attention_mask"][..., None].to(states)
        means = (states * tokens).sum(1) / tokens.sum(1)
        embeddings = means / means.norm(dim=-1, keepdim=True)
    found = np.zeros((len(heads), max(heads)))
    for number, direction in enumerate(torch.from_numpy(directions).to(embeddings), start=1):
        moved = (embeddings * direction).sum()
        slopes = torch.autograd.grad(moved, gates, retain_graph=number < len(directions))
        for row, count, slope in zip(found, heads, slopes, strict=True):
            row[:count] += (slope.double() ** 2).sum(0).numpy()
    return found
