"""Native: what one framework's own attention has to say. Each file of `natives` has one, or several that are alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from mha.phrases.said import Calling, Held, Lack, Making


class Native(ABC):
    """A framework's attention, in the code that makes, calls, reads and writes it.

    Attributes:
        id: its name on the page and in the terminal.
        path: its name in its framework.
        framework: the backend whose framework has it.
        others: further names that it is asked for by.
        imports: the lines above its code.
        holder: the variable that holds the parameters after `make`.
        dtypes: those in which it computes on a CPU.
        layers: patterns of the subjects in the tables of deviations that are this layer, on one path or another.
        lacks: concept -> what it has not.
        words: concept -> what to know besides the code, in a sentence or two.
        state: code for the concept "state"; it may use what `make` made, and gives `output`.
    """

    id: ClassVar[str]
    path: ClassVar[str]
    framework: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()
    imports: ClassVar[tuple[str, ...]]
    holder: ClassVar[str] = "layer"
    dtypes: ClassVar[tuple[str, ...]] = ("float64", "float32")
    layers: ClassVar[tuple[str, ...]] = ()
    lacks: ClassVar[Mapping[str, Lack]] = {}
    words: ClassVar[Mapping[str, str]]
    state: ClassVar[tuple[str, ...]]

    @property
    def title(self) -> str:
        """Return what it is called in a heading."""
        return self.path

    @abstractmethod
    def make(self, making: Making) -> list[str]:
        """Return the lines that make the layer; `queries`, `keys` and `values` are there."""

    @abstractmethod
    def call(self, making: Making, calling: Calling) -> list[str]:
        """Return the lines that call it and give `output`, and `weights` if they are asked for."""

    @abstractmethod
    def read(self, making: Making, old: str) -> Held:
        """Return how its parameters are read out of the variable `old`."""

    @abstractmethod
    def write(self, making: Making, new: str) -> Held:
        """Return how they are written into the variable `new`."""
