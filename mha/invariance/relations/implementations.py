"""Whichever implementation answers, and wherever relative positions begin, the output is the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.invariance.given import Given
from mha.invariance.relations.hiding import no_keys, plain_and_padded
from mha.invariance.relations.row import Known, Pair, Relation, worst
from mha.invariance.trial import Arguments, Trial


def _switchable(known: Known) -> str | None:
    model = known.live.asked
    if known.live.config is None or not hasattr(model, "set_attn_implementation"):
        return "its library has no switch of implementations"
    if not getattr(model, "_supports_sdpa", False):
        return "its library has it eager alone"
    return None


def _eager(trial: Trial, known: Known) -> Pair:
    """Return the pair without a mask, or with one that hides padding."""
    calls = plain_and_padded(trial, known)
    return worst(trial, known, *(partial(_implementations, trial, *one) for one in calls))


def _eager_padded(trial: Trial, known: Known) -> Pair:
    """The same of an item without any key."""
    mask = next(one for one in known.masks if one.form == "keys")
    real = np.ones((trial.size.batch, 1, trial.size.length), bool)
    real[0] = False
    return _implementations(trial, {mask.name: mask.of(real)})


def _implementations(trial: Trial, more: Arguments, counted: NDArray | None = None) -> Pair:
    """Return what eager and sdpa give, the model's own first if it is one of them."""
    model = trial.live.asked
    before = model.config._attn_implementation
    names = sorted(("eager", "sdpa"), key=lambda one: one != before)
    found = []
    try:
        for name in names:
            if name != before:
                model.set_attn_implementation(name)
            trial.lines.append(f"model.set_attn_implementation({name!r})")
            found.append((trial.once if name == before else trial.call)(trial.x(), more).out)
    finally:
        model.set_attn_implementation(before)
    return Pair(found[0], found[1], counted)


def _not_fast(known: Known) -> str | None:
    live = known.live
    if live.framework != "torch" or live.hooks is None:
        return "only PyTorch has a fast path of its own"
    import torch

    kinds = (torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder, torch.nn.MultiheadAttention)
    found = any(isinstance(one, kinds) for one in live.asked.modules())
    return None if found else "it holds no layer with a fast path"


def _fast(trial: Trial, known: Known) -> Pair:
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    more: dict[str, Any] = {}
    real = np.ones((trial.size.batch, trial.size.length), bool)
    for mask in known.masks:
        if mask.form == "keys":
            real[0, -1] = False
            more = {mask.name: mask.of(real[:, None])}
    found = []
    try:
        for on in (True, False):
            torch.backends.mha.set_fastpath_enabled(on)
            trial.lines.append(f"torch.backends.mha.set_fastpath_enabled({on})")
            found.append(trial.call(trial.x(), more).out)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    return Pair(found[0], found[1], real)


def _compiled(trial: Trial, known: Known) -> Pair:
    first = trial.call(trial.x()).out
    compiled: Any = known.live.compiled
    trial.lines.append("# the next call of what torch.compile made of it")

    def run(*args: Any, **kwargs: Any) -> Any:
        native = trial.live._as_native(args, trial.dtype), trial.live._as_native(kwargs, trial.dtype)
        return compiled(*native[0], **native[1])

    trial.run = run
    return Pair(first, trial.call(trial.x()).out)


def _not_both_dtypes(known: Known) -> str | None:
    if known.live.native is None:
        return "a function has no dtype of its own"
    return None if known.live.dtype == "float32" else f"it is in {known.live.dtype}"


def _precision(trial: Trial, known: Known) -> Pair:
    def way(more: Arguments, counted: NDArray | None) -> Pair:
        first = trial.once(trial.x(), more).out
        trial.lines.append("# the next call in float64")
        with trial.live.running("float64", cast=True) as run:
            other = Trial(trial.live, run, trial.template, trial.size, "float64")
            other.lines = trial.lines
            return Pair(first, other.call(other.x(), more).out, counted)

    # Not on the left of what is causal: a query without a key is NaN in transformers' eager attention in float64.
    calls = plain_and_padded(trial, known)[: 1 if known.causal else None]
    return worst(trial, known, *(partial(way, *one) for one in calls))


def _not_relative(known: Known) -> str | None:
    config = known.live.config
    if "position_ids" not in known.live.signature:
        return "its call does not say positions (position_ids)"
    if config is None:
        return "it has no config, which would say that its positions are relative"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if rope is None and getattr(config, "rope_theta", None) is None:
        return "nothing says that its positions are relative"
    if any(word in name for name in known.live.parameters for word in ("position_emb", "embed_positions", "wpe")):
        return "it has a table of positions, which are not relative"
    if getattr(config, "block_types", None) or getattr(config, "layers_block_type", None):
        return "it has layers of other kinds, which may look at positions too"
    kind = rope.get("rope_type", "default") if isinstance(rope, dict) else "default"
    return None if kind == "default" else f"its positions are of kind {kind}, which depends on how far they go"


def _moved(trial: Trial, known: Known) -> Pair:
    """The positions that are its own, and those moved on, in each item by another number."""
    batch, length = trial.size.batch, trial.size.length
    moved = np.arange(length) + (7 + 3 * np.arange(batch))[:, None]
    made = Given(moved, f"np.arange({length}) + (7 + 3 * np.arange({batch}))[:, None]")
    return Pair(trial.once(trial.x()).out, trial.call(trial.x(), {"position_ids": made}).out)


ROWS = (
    Relation(
        "implementation-eager", "implementations", "Eager and sdpa give the same.", _eager, _switchable, rounds=True
    ),
    Relation(
        "implementation-eager-padded",
        "implementations",
        "Eager and sdpa give the same of an item of padding alone.",
        _eager_padded,
        lambda known: _switchable(known) or no_keys(known),
        rounds=True,
    ),
    Relation(
        "implementation-fast",
        "implementations",
        "With the fast path and without, the same.",
        _fast,
        _not_fast,
        length=3,
        rounds=True,
    ),
    Relation(
        "implementation-fast-padded",
        "implementations",
        "With the fast path and without, the same in padding too.",
        lambda trial, known: replace(_fast(trial, known), counted=None),
        lambda known: _not_fast(known) or no_keys(known),
        length=3,
        rounds=True,
    ),
    Relation(
        "implementation-compiled",
        "implementations",
        "Compiled, it gives what it gives otherwise.",
        _compiled,
        lambda known: None if known.live.compiled is not None else "it is not given compiled",
        rounds=True,
    ),
    Relation(
        "implementation-float32",
        "implementations",
        "float32 gives what float64 gives, rounded.",
        _precision,
        _not_both_dtypes,
        rounds=True,
    ),
    Relation(
        "positions-moved",
        "positions",
        "Relative positions: all moved together give the same.",
        _moved,
        _not_relative,
        rounds=True,
    ),
)
"""The relations of implementations and positions."""
