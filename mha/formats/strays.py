"""Strays: arrays whose names are nearly those of arrays that a layer lacks.

Biases are optional, so a layer whose bias is misspelt or damaged in its name would be read as one without a bias.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from operator import ne

from mha.formats.checkpoint import Checkpoint
from mha.formats.find import FoundLayer
from mha_core.errors import shown
from mha_core.layouts import get

NUMBER = re.compile(r"\d+")
SEPARATOR = re.compile(r"[./]")


@dataclass(frozen=True)
class Stray:
    """An array that a layer seems to have lost: its name is misspelt in the file, or only similar layers have it.

    Attributes:
        prefix: the layer's prefix.
        name: the full name of an array in the file: the misspelt array, or the array that the similar layer has.
        meant: the full name of the optional array that the layer lacks.
        neighbour: the prefix of the similar layer; None if `name` is a misspelling of `meant`.
    """

    prefix: str
    name: str
    meant: str
    neighbour: str | None = None

    def words(self) -> str:
        """Return the finding as part of a sentence.

        >>> Stray("attn", "attn.q_prpj.bias", "attn.q_proj.bias").words()
        "the layer at prefix 'attn' lacks attn.q_proj.bias, and there is 'attn.q_prpj.bias'"
        """
        if self.neighbour is not None:
            there = f"its neighbour at {shown(repr(self.neighbour))} has {shown(self.name)}"
            return f"the layer at prefix {shown(repr(self.prefix))} lacks {shown(self.meant)}, and {there}"
        there = f"there is {shown(repr(self.name))}" if self.name != self.meant else "what has that name is no array"
        return f"the layer at prefix {shown(repr(self.prefix))} lacks {shown(self.meant)}, and {there}"


def find_strays(checkpoint: Checkpoint, layers: Iterable[FoundLayer], read: Collection[str]) -> list[Stray]:
    """Return a Stray for each misspelt array: no layer reads it, and a layer lacks an array of nearly the same name.

    Args:
        layers: the layers in the file that have all required arrays.
        read: the names of these layers' arrays.
    """
    lacking: dict[str, str] = {}
    for layer in layers:
        for layout in map(get, layer.layouts):
            start = layer.prefix + layout.separator if layer.prefix else ""
            for own in (*layout.required, *layout.optional):
                if start + own not in checkpoint.entries:
                    lacking.setdefault(start + own, layer.prefix)
    if not lacking:
        return []
    by_trace: dict[int, str] = {}
    by_form: dict[tuple[str | int, ...], list[str]] = {}
    for name in lacking:
        by_form.setdefault(_form(name), []).append(name)
        for trace in _traces(name):
            by_trace.setdefault(trace, name)
    found = []
    for name in (*checkpoint.entries, *checkpoint.others):
        if name not in read:
            traced = [by_trace[trace] for trace in _traces(name) if trace in by_trace]
            alike = sorted(by_form.get(_form(name), ()), key=lambda meant: sum(map(ne, name, meant)))
            meant = next((one for one in (*traced, *alike) if is_near(name, one)), None)
            if meant is not None:
                found.append(Stray(lacking[meant], name, meant))
    return found


def find_uneven(checkpoint: Checkpoint, layers: Iterable[FoundLayer]) -> list[Stray]:
    """Return a Stray for each optional array that a layer lacks and a similar layer has.

    The prefixes of similar layers differ only in numbers ("layers.0" and "layers.1").
    """
    alike: dict[tuple[str, tuple[str, ...]], list[FoundLayer]] = {}
    for layer in layers:
        alike.setdefault((NUMBER.sub("#", layer.prefix), layer.layouts), []).append(layer)
    found = []
    for (_, layouts), group in alike.items():
        layout = get(layouts[0])
        own = {layer.prefix: layout.names_of(layer.prefix, checkpoint.entries) for layer in group}
        having = {name: prefix for prefix, names in own.items() for name in names}
        for prefix, names in own.items():
            start = prefix + layout.separator if prefix else ""
            for name, other in having.items():
                if name not in names:
                    found.append(Stray(prefix, own[other][name], start + name, other))
    return found


def is_near(one: str, other: str) -> bool:
    """Return whether one name may be a misspelling of the other.

    A misspelling has one letter changed, missing or surplus, or two adjacent letters exchanged. It may have more
    changed letters if they are fewer than half of the letters in each word: "norm" is no misspelling of "proj".

    >>> is_near("q_proj.bias", "q_porj.bias"), is_near("q_proj.bias", "q_prj.bias"), is_near("q.bias", "k.bais")
    (True, True, False)
    >>> is_near("q_proj.bias", "q_prxj.bibs"), is_near("q_proj.bias", "q_norm.bias")
    (True, False)
    """
    words = list(zip(SEPARATOR.split(one), SEPARATOR.split(other), strict=False))
    if _form(one) == _form(other) and all(2 * sum(map(ne, a, b)) < len(a) for a, b in words):
        return True
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    one, other = one[start:], other[start:]
    exchanged = one[:2] == other[:2][::-1] and one[2:] == other[2:]
    return exchanged or one[1:] == other[1:] or one[1:] == other or one == other[1:]


def _form(name: str) -> tuple[str | int, ...]:
    """The lengths of the words of a name, and its numbers as they are."""
    return tuple(word if word.isdecimal() else len(word) for word in SEPARATOR.split(name))


def _traces(name: str) -> Iterator[int]:
    """Hashes of the name and of the name without each letter; names that are near (`is_near`) share one of them."""
    yield hash(name)
    for index in range(len(name)):
        yield hash(name[:index] + name[index + 1 :])
