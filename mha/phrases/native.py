"""Native: what one framework's own attention has to say. Each file of `natives` has one, or several that are alike."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from mha.phrases.said import Calling, Held, Lack, Making


class Native(ABC):
    """A framework's attention layer or function, with the code that makes it, calls it, and moves its parameters.

    Attributes:
        id: its name on the page and in the terminal.
        path: its name in its framework.
        framework: the backend whose framework has it.
        others: further names that a user may give for it.
        imports: the import lines that its code needs.
        holder: the variable that holds the parameters after `make`.
        dtypes: the dtypes in which it computes on a CPU.
        layers: patterns of its names in the tables of known deviations.
        lacks: concept (a topic, such as "padding") that it lacks -> what is missing.
        words: concept -> a sentence or two in addition to the code.
        state: code for the concept "state" (state and randomness). It may use variables of `make`; it sets `output`.
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
        """Return the name that a heading gives to this attention."""
        return self.path

    @abstractmethod
    def make(self, making: Making) -> list[str]:
        """Return lines of code that make the layer; they may use `queries`, `keys` and `values`."""

    @abstractmethod
    def call(self, making: Making, calling: Calling) -> list[str]:
        """Return lines of code that call the layer and set `output`, and `weights` if `calling` asks for them."""

    @abstractmethod
    def read(self, making: Making, old: str) -> Held:
        """Return the code that reads the layer's parameters from the variable named `old` into NumPy arrays."""

    @abstractmethod
    def write(self, making: Making, new: str) -> Held:
        """Return the code that writes NumPy arrays into the parameters of the variable named `new`."""
