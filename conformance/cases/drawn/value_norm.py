"""Value norm and value scale of a problem that is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

CHOICES: Mapping[str, Sequence[float | None]] = {
    "value norm": (None, 1e-6, 1e-2, 1.0),
    "value scale": (None, 0.7, -2.0),
}
"""The norm by its eps."""

END = "-parts2"


def chosen(ask: Callable[[str], Any]) -> dict[str, float | None]:
    """The fields of a config that are chosen."""
    return {"value_norm_eps": ask("value norm"), "value_scale": ask("value scale")}
