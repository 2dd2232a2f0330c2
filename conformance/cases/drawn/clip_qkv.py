"""The limit of projections of a problem that is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

CHOICES: Mapping[str, Sequence[float | None]] = {"clip": (None, 1.0, 0.3, 4.0)}
"""As a `conformance.cases.choices.Space` has them."""


def chosen(ask: Callable[[str], Any]) -> float | None:
    """The limit that is chosen."""
    limit: float | None = ask("clip")
    return limit
