"""Unit: the work that is sent to a worker process at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from conformance.workers.interpreters import Home


class Unit(ABC):
    """Items of work on one subject, which a worker process does one after the other.

    It is pickled, and so are its answers. Who sends it need not have the framework.
    """

    @property
    @abstractmethod
    def home(self) -> Home:
        """The process that it runs in: one for each framework, or somebody's own module."""

    @property
    def cost(self) -> float:
        """About how long it takes, in any measure that compares the units of one run: the longest begin first."""
        return float(len(self))

    @abstractmethod
    def __len__(self) -> int:
        """The number of items."""

    @abstractmethod
    def run(self, start: int) -> Iterator[Any]:
        """Do the items from number `start` on, in the worker process; yields one answer each."""

    @abstractmethod
    def lost(self, item: int, reason: str) -> Any:
        """The answer for an item at which the process ended, or that nobody could be asked; `reason` is one line."""
