"""The query scale of a problem that is drawn: by a rule, or by factors that the call gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mha_core import AttentionInputs, RotaryInputs
from mha_core.call.sizes import CallSizes
from mha_core.parts.query_scale import QueryScale

Made = Mapping[str, Any]
"""As in `conformance.cases.choices`."""


def scales_of(made: Made) -> Sequence[str | None]:
    """The query scales that a call may have: a rule needs positions, of one axis, which tables don't tell.

    Positions are given, or counted from an offset that is not negative.
    """
    if not made.get("rotary"):
        offsets = [value for name, value in made.items() if name.startswith("query_offset")]
        is_counted = not any(value != "per item" and value < 0 for value in offsets)
    else:
        is_counted = not made["rotary.given"].startswith("tables") and not made.get("rotary.sections")
    return (None, "llama4", "ministral3", "given") if is_counted else (None, "given")


CHOICES: Mapping[str, Sequence[Any] | Callable[[Made], Sequence[Any]]] = {
    "query scale": scales_of,
    "query scale.beta": (0.5, 2.0, -0.3),
    "query scale.length": (3, 1, 16),
}
END = "-parts2"


def chosen(ask: Callable[[str], Any]) -> dict[str, QueryScale | None]:
    """The settings that are chosen."""
    name = ask("query scale")
    if name is None:
        return {"query_scale": None}
    rule = () if name == "given" else (name, ask("query scale.beta"), ask("query scale.length"))
    return {"query_scale": QueryScale(*rule)}


def given(inputs: AttentionInputs, made: Made, sizes: CallSizes) -> AttentionInputs:
    """The call with factors (Lq,) or (B, Lq), if it is chosen that it gives them."""
    if made.get("query scale") != "given":
        return inputs
    rng = np.random.default_rng([made["seed"], 3])
    shape = (sizes.batch, sizes.query_len) if rng.random() < 0.5 else (sizes.query_len,)
    factors = rng.choice([-1.0, 1.0, 1.0], size=shape) * rng.uniform(0.25, 2.0, size=shape)
    return replace(inputs, rotary=replace(inputs.rotary or RotaryInputs(), query_scale=factors))
