"""The limit of projections of a problem that is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

CHOICES: Mapping[str, Sequence[float | None]] = {"clip": (None, 1.0, 0.3, 4.0)}
END = "-parts2"


def chosen(ask: Callable[[str], Any]) -> dict[str, float | None]:
    """The limit that is chosen."""
    return {"clip_qkv": ask("clip")}
