"""Native: what one framework's own attention has to say. Each file of `natives` has one, or several that are alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from mha.phrases.said import Calling, Held, Lack, Making, times
from mha_core.errors import SpecError


@dataclass
class Arguments:
    """The arguments of a call in somebody's file, by name; what nobody took is `left`.

    Attributes:
        of: the function or class.
        values: the text of each.
        assigned: what the file assigns once, by name: it may say what kind of array an argument is.

    >>> given = Arguments("Layer", {"heads": "4", "bias": "False", "gate": "True"})
    >>> given.take("heads"), given.switch("bias", True), given.take("rate", "0.0"), given.left()
    ('4', False, '0.0', ['gate=True'])
    """

    of: str
    values: dict[str, str]
    assigned: Mapping[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def take(self, name: str, default: str = "") -> str:
        """The text of an argument; the default where it is not given, or None."""
        self.taken.add(name)
        text = self.values.get(name, default)
        return default if text == "None" else text

    def switch(self, name: str, default: bool) -> bool:
        """An argument that is True or False. SpecError for one that is known only when the code runs."""
        text = self.take(name, str(default))
        if text not in ("True", "False"):
            raise SpecError(f"{name} of {self.of} must be True or False here, or it can't be carried over. Got {text}.")
        return text == "True"

    def need(self, name: str) -> str:
        """An argument that must be given. SpecError if it is not."""
        text = self.take(name)
        if not text:
            raise SpecError(f"{self.of} is given no {name}, which it needs")
        return text

    def left(self) -> list[str]:
        """What was given and not taken, but for None and False, which ask for nothing."""
        return [
            f"{name}={text}"
            for name, text in self.values.items()
            if name not in self.taken and text not in ("None", "False")
        ]


class Native(ABC):
    """One framework's attention.

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
        made_with, called_with: the names of the arguments, those by position first, in order.
        made_by_place, positional: how many of each may be given by position.
        reshaping: arguments of the construction that change the shapes of its parameters, and are not carried over.
        method: what is called after the layer's name: "" for the layer itself, "apply".
        is_function: whether it is a function of heads: the projections are the caller's.
        true_means: what True means in its masks; "" if it has none of True and False.
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
    made_with: ClassVar[tuple[str, ...]] = ()
    called_with: ClassVar[tuple[str, ...]] = ()
    made_by_place: ClassVar[int] = 4
    positional: ClassVar[int] = 3
    reshaping: ClassVar[tuple[str, ...]] = ()
    method: ClassVar[str] = ""
    is_function: ClassVar[bool] = False
    true_means: ClassVar[str] = "may attend"

    @property
    def title(self) -> str:
        """What it is called in a heading."""
        return self.path

    @abstractmethod
    def make(self, making: Making) -> list[str]:
        """The lines that make the layer; `queries`, `keys` and `values` are there."""

    @abstractmethod
    def call(self, making: Making, calling: Calling) -> list[str]:
        """The lines that call it and give `output`, and `weights` if they are asked for."""

    @abstractmethod
    def read(self, making: Making, old: str) -> Held:
        """How its parameters come out of the variable `old`."""

    @abstractmethod
    def write(self, making: Making, new: str) -> Held:
        """How they go into the variable `new`."""

    def read_making(self, given: Arguments) -> tuple[Making, list[str]]:
        """What a construction says, and notes. SpecError if it can't be carried over."""
        raise SpecError(f"{self.path} is a function: it is called, not made")

    @abstractmethod
    def read_calling(self, given: Arguments, making: Making) -> tuple[Calling, list[str]]:
        """What a call says, and notes. SpecError if it can't be carried over."""

    def expressible(self, making: Making, calling: Calling) -> tuple[Making, Calling]:
        """The same without what it has not."""
        nothing: dict[str, object] = {"padding": None, "allowed": None, "added": None, "causal": False}
        changed = {name: value for name, value in nothing.items() if name in self.lacks}
        if ("weights" if calling.weights == "heads" else "mean") in self.lacks:
            changed["weights"] = ""
        making = replace(making, kv_heads="") if "grouped" in self.lacks else making
        return making, replace(calling, **changed)  # type: ignore[arg-type]  # each value is of its field's type


def width_of(heads: str, head_width: str) -> tuple[str, str]:
    """The width of a layer that does not say it, and the note on it."""
    width = times(heads, head_width)
    return width, f"the width of the queries is taken for heads * width of a head, {width}: it comes from the arrays"
