"""Cut heads out of a live model of the BERT family: numbers of heads, and the four Linear modules of each layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.heads.prune import cut
from mha.recipes import Site
from mha_core import SpecError

LINEARS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
"""Part of such a module -> projection."""


@contextmanager
def cut_live(sites: Sequence[Site], kept: Sequence[Collection[int]]) -> Iterator[None]:
    """A context in which each layer has its kept heads alone; afterwards the model is what it was.

    Raises:
        SpecError: a layer is of another family, or can't be cut so; the model is left as it was.
    """
    with ExitStack() as undo:
        for site, heads in zip(sites, kept, strict=True):
            _cut(site, heads, undo)
        yield


def prune_live(sites: Sequence[Site], kept: Sequence[Collection[int]]) -> None:
    """Cut heads out of a live model for good. SpecError as `cut_live`; then nothing is cut."""
    with ExitStack() as undo:
        for site, heads in zip(sites, kept, strict=True):
            _cut(site, heads, undo)
        undo.pop_all()


def _cut(site: Site, heads: Collection[int], undo: ExitStack) -> None:
    core = site.core
    needed = (*LINEARS, "num_attention_heads", "all_head_size", "attention_head_size")
    lacking = [name for name in needed if not hasattr(core, name)]
    if lacking or site.recipe.family != "bert":
        raise SpecError(
            f"heads can be cut out of live models of the BERT family alone; {site.name} is a {type(core).__name__}"
        )
    config, weights = cut(site.config, site.weights, heads)
    size = config.num_heads * config.head_dim
    changes: list[tuple[Any, str, Any]] = [
        (core, "num_attention_heads", config.num_heads),
        (core, "all_head_size", size),
    ]
    changes += [
        (core, part, _linear(getattr(core, part), weights[f"{name}.weight"], weights.get(f"{name}.bias")))
        for part, name in LINEARS.items()
    ]
    out = site.module.output
    changes.append((out, "dense", _linear(out.dense, weights["out_proj.weight"], weights.get("out_proj.bias"))))
    for owner, name, value in changes:
        undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)


def _linear(old: Any, weight: NDArray, bias: NDArray | None) -> Any:
    """A Linear with these numbers, in the place and dtype of another."""
    import torch

    rows, columns = weight.shape
    made = torch.nn.utils.skip_init(torch.nn.Linear, columns, rows, bias=bias is not None)  # draws no numbers
    made = made.to(device=old.weight.device, dtype=old.weight.dtype).train(old.training)
    with torch.no_grad():
        made.weight.copy_(torch.from_numpy(np.array(weight)))
        if bias is not None:
            made.bias.copy_(torch.from_numpy(np.array(bias)))
    made.requires_grad_(old.weight.requires_grad)
    return made
