"""Pairs: which module of a port stands for which of its original.

Pairs are found in this order, until none is left: by the user's map; by name, if most modules of one name have equal
numbers; by equal numbers in all parameters (also transposed, reshaped or packed); by submodules, if these are paired
with each other; by one parameter with equal numbers, if no other unpaired module has it; by name, whatever the numbers;
and by order and shape, among the unpaired submodules of a pair.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from mha.recordings.modules.numbers import NONE, Numbers, is_constant
from mha.substitution.pairing.order import in_order
from mha_core import SpecError

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Module:
    """A module of the original or of the port, with the data by which modules are paired.

    Attributes:
        name, kind: its name in the model, and its class.
        numbers: the Numbers (element count and hash) of all its parameters together.
        each: the Numbers of each parameter, as a set.
        within: positions of the modules around it, the nearest first.
        shapes: the shapes of the floating-point outputs of its first call.
    """

    name: str
    kind: str
    numbers: Numbers
    each: frozenset[Numbers]
    within: tuple[int, ...]
    shapes: Shapes

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Return `sizes_of` of the shapes."""
        return sizes_of(self.shapes)


@dataclass
class Pairs:
    """A pairing of two models' modules. `found`: position in the original -> position in the port.

    `how`: position in the original -> rule for its pair. `inside_ports`: position in the port -> submodules' positions.

    Args:
        originals, ports: the modules of the two models.
        named: name of a module of the original -> name of the port's, from the user.
        ordered: pairs to make by the order of calls, not by parameters: see `exchanged`.

    Raises:
        SpecError: two pairs in `named` contradict each other.
    """

    originals: Sequence[Module]
    ports: Sequence[Module]
    named: Mapping[str, str] = field(default_factory=dict)
    ordered: Mapping[int, int] = field(default_factory=dict)
    found: dict[int, int] = field(default_factory=dict)
    how: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._back: dict[int, int] = {}
        self._inside_originals, self.inside_ports = _inside(self.originals), _inside(self.ports)
        self._by_map()
        self._pair(0, 0, "the models themselves")
        for original, port in self.ordered.items():
            self._pair(original, port, "order and shape")
        if self._names_agree():
            self._by_key("name", lambda module: _plain(module.name) or None)
        while True:
            before = len(self.found)
            self._by_key("the same numbers", lambda module: module.numbers if module.numbers.known else None)
            self._by_parts()
            self._by_one_parameter()
            if len(self.found) == before:
                self._by_key("name", lambda module: _plain(module.name) or None)
            if len(self.found) == before:
                self._by_order()
                if len(self.found) == before:
                    return

    def others_for(self, port: int) -> list[int]:
        """Return positions of unpaired modules of the original that the port's module at `port` could be paired with.

        Each contains the present partner or is inside it, and equals the port's module in parameters and output shapes.
        """
        own, pair = self.ports[port], self._back[port]
        related = sorted((*self.originals[pair].within, *self._inside_originals[pair]))
        alike = own.numbers, own.shapes
        return [
            one
            for one in related
            if one not in self.found and (self.originals[one].numbers, self.originals[one].shapes) == alike
        ]

    def exchange(self, port: int, original: int) -> None:
        """Pair the port's module at `port` with the original's at `original`, in place of its earlier partner."""
        before = self._back[port]
        self.found[original], self.how[original] = port, self.how.pop(before)
        del self.found[before]
        self._back[port] = original

    def exchanged(self) -> dict[int, int]:
        """Return new pairs (original -> port) for modules with equal shapes that the models call in different orders.

        If one model calls a, b, the other b, a, the new pairs are a with b, b with a. These are not exchanged: modules
        with submodules, modules inside a pair found by parameters, and names that are paired in other layers too.
        """
        groups: dict[object, list[tuple[int, int]]] = defaultdict(list)
        for original, port in sorted(self.found.items()):
            around = self.ports[port].within
            inside_known = any(one and self.how.get(self._back.get(one, 0)) == "the same numbers" for one in around)
            if self.how[original] == "the same numbers" and not self.inside_ports[port] and not inside_known:
                groups[self.originals[original].numbers.size, self.originals[original].sizes].append((original, port))
        found: dict[int, int] = {}
        for pairs in groups.values():
            ordered = zip([own for own, _ in pairs], sorted(port for _, port in pairs), strict=True)
            moved = {own: port for own, port in ordered if self.found[own] != port}
            if not all(self.named_elsewhere(own, self.found[own]) for own in moved):
                found |= moved
        return found

    def out_of_order(self, port: int) -> list[dict[int, int]]:
        """Return new pairs for submodules that the models call in different orders: a dict original -> port per group.

        A group consists of direct submodules of `port` that have no submodules, and have equal parameter counts and
        output sizes.
        """
        groups: dict[object, list[tuple[int, int]]] = defaultdict(list)
        for part in self.inside_ports[port]:
            original = self._back.get(part)
            around = next((one for one in self.ports[part].within if one in self._back), None)
            if original is None or around != port or self.inside_ports[part]:
                continue
            own = self.originals[original]
            if own.numbers.known and own.numbers == self.ports[part].numbers and own.within[:1] == self._of(port):
                groups[own.numbers.size, own.sizes].append((original, part))
        found = []
        for pairs in groups.values():
            ordered = dict(zip(sorted(own for own, _ in pairs), sorted(part for _, part in pairs), strict=True))
            moved = {own: part for own, part in ordered.items() if self.found[own] != part}
            if moved:
                found.append(moved)
        return found

    def named_elsewhere(self, original: int, port: int) -> bool:
        """Return whether modules of these two names are also paired in most other layers of the same call order."""
        own, theirs = (_in_any_layer(side[one].name) for side, one in ((self.originals, original), (self.ports, port)))
        like = []
        for one, other in self.found.items():
            if one == original or _in_any_layer(self.originals[one].name) != own:
                continue
            around = next((outer for outer in self.ports[other].within if outer in self._back), 0)
            if not any(one in group for group in self.out_of_order(around)):
                like.append(_in_any_layer(self.ports[other].name))
        return like.count(theirs) * 2 > len(like)

    def called_otherwise(self, port: int) -> dict[int, int]:
        """Return pairs (original -> port) of direct submodules, except leaves, that the models call in other orders."""
        parts = [
            one for one in self.inside_ports[port] if self.ports[one].within[:1] == (port,) and self.inside_ports[one]
        ]
        pairs = {self._back[one]: one for one in parts if one in self._back}
        same = {own: one for own, one in pairs.items() if self.originals[own].numbers == self.ports[one].numbers}
        moved = zip(sorted(same), sorted(same.values()), strict=True)
        return {own: same[own] for own, one in moved if same[own] != one and self.originals[own].numbers.known}

    def _of(self, port: int) -> tuple[int, ...]:
        return () if (original := self._back.get(port)) is None else (original,)

    def state(self) -> tuple[dict[int, int], dict[int, int], dict[int, str]]:
        """Return the state of the pairs, for `restore`."""
        return dict(self.found), dict(self._back), dict(self.how)

    def restore(self, state: tuple[dict[int, int], dict[int, int], dict[int, str]]) -> None:
        """Undo what was done since `state`."""
        self.found, self._back, self.how = (dict(one) for one in state)  # type: ignore[assignment]

    def put(self, pairs: Mapping[int, int], how: str) -> None:
        """Add or replace pairs: position in the original -> position in the port. `how`: the rule that found them."""
        for original, port in pairs.items():
            self.found[original], self._back[port], self.how[original] = port, original, how

    def original_of(self, port: int) -> int | None:
        """Return the position of the original's module that is paired with the port's at `port`; None if none is."""
        return self._back.get(port)

    def _pair(self, original: int, port: int, how: str) -> bool:
        """Pair two modules, unless one is paired or a pair around or inside them contradicts it."""
        if original in self.found or port in self._back or not self._fits(original, port):
            return False
        self.found[original], self._back[port], self.how[original] = port, original, how
        return True

    def _fits(self, original: int, port: int) -> bool:
        for mine, theirs in (
            (self.originals[original].within, self.ports[port].within),
            (self._inside_originals[original], self.inside_ports[port]),
        ):
            if {self.found[one] for one in mine if one in self.found} != {one for one in theirs if one in self._back}:
                return False
        return True

    def _by_map(self) -> None:
        own = [{module.name: position for position, module in enumerate(side)} for side in (self.originals, self.ports)]
        for original, port in self.named.items():
            for name, known, what in ((original, own[0], "original"), (port, own[1], "port")):
                if name not in known:
                    raise SpecError(
                        f"the map names {name!r}, and no module of the {what} that was called has that name"
                    )
            if not self._pair(own[0][original], own[1][port], "the map"):
                raise SpecError(f"the map pairs {original!r} with {port!r}, which contradicts another of its pairs")

    def _names_agree(self) -> bool:
        """Whether most modules of equal names hold the same numbers: layers may be counted from 1 in one of the two."""
        own, theirs = (
            {_plain(module.name): module.numbers for module in side} for side in (self.originals, self.ports)
        )
        both = [name for name in own if name and name in theirs and own[name].known and theirs[name].known]
        return sum(own[name] == theirs[name] for name in both) * 2 >= len(both)

    def _by_key(self, how: str, key: Callable[[Module], object]) -> None:
        """Pair modules whose keys are equal; where several are, in order if there are equally many on both sides."""
        groups: dict[object, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for side, modules, paired in ((0, self.originals, self.found), (1, self.ports, self._back)):
            for position, module in enumerate(modules):
                if position not in paired and key(module) is not None:
                    groups[key(module)][side].append(position)
        for left, right in groups.values():
            if len(left) != len(right):  # a module and its only part have the same numbers: the inner ones are alike
                left, right = _innermost(left, self.originals), _innermost(right, self.ports)
            if len(left) == len(right):
                for original, port in zip(left, right, strict=True):
                    self._pair(original, port, how)

    def _by_one_parameter(self) -> None:
        """Pair modules without parts that hold one parameter of the same numbers, which no other module left has."""
        owners: dict[Numbers, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for side, modules, paired in ((0, self.originals, self.found), (1, self.ports, self._back)):
            holding = [position for position, module in enumerate(modules) if module.numbers != NONE]
            for position in _innermost(holding, modules):
                for numbers in modules[position].each if position not in paired else ():
                    owners[numbers][side].append(position)
        for numbers, (left, right) in owners.items():
            if len(left) == len(right) == 1 and numbers.known and not is_constant(numbers):
                self._pair(left[0], right[0], "a parameter of the same numbers")

    def _by_parts(self) -> None:
        """Pair modules whose paired parts are each other's, and of which each or none has others."""
        parts = [_leaves(side) for side in (self.originals, self.ports)]
        by_paired: dict[tuple[frozenset[int], bool], list[int]] = defaultdict(list)
        for original, leaves in parts[0].items():
            inside = frozenset(leaf for leaf in leaves if leaf in self.found)
            by_paired[inside, leaves == inside].append(original)
        for port in reversed(range(len(self.ports))):
            own = parts[1].get(port, frozenset())
            paired = frozenset(self._back[leaf] for leaf in own if leaf in self._back)
            if port in self._back or not paired:
                continue
            fitting = [one for one in by_paired[paired, len(own) == len(paired)] if one not in self.found]
            same = [one for one in fitting if self.originals[one].sizes == self.ports[port].sizes]
            if len(same) == 1:
                self._pair(same[0], port, "its parts")

    def _by_order(self) -> None:
        """Pair what is left in a paired module in its order, where shapes agree, and whether there are parameters."""
        left: dict[tuple[int, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for side, modules, paired in ((0, self.originals, self.found), (1, self.ports, self._back)):
            for position, module in enumerate(modules):
                if position in paired:
                    continue
                around = next((one for one in module.within if one in paired), None)
                if around is not None:
                    left[(around if side == 0 else self._back[around],)][side].append(position)
        for originals, ports in left.values():
            for key in (self._with_size, self._with_shape):
                for original, port in in_order(
                    [(one, key(self.originals[one])) for one in originals if one not in self.found],
                    [(one, key(self.ports[one])) for one in ports if one not in self._back],
                ):
                    self._pair(original, port, "order and shape")

    @staticmethod
    def _with_size(module: Module) -> object:
        kind = plain_kind(module.kind) if module.numbers == NONE else ""
        return module.numbers.size, module.sizes, kind

    @staticmethod
    def _with_shape(module: Module) -> object:
        return module.sizes if module.numbers != NONE else None


def sizes_of(shapes: Shapes) -> tuple[tuple[int, int], ...]:
    """Return (number of elements, size of the last axis) for each shape. Transposing other axes changes neither."""
    return tuple((prod(shape), shape[-1] if shape else 0) for shape in shapes)


def _plain(name: str) -> str:
    """A name without what frameworks write differently: "encoder.layer.0" is "encoder/layer_0"."""
    return "/".join(part for part in re.split(r"[./_#]|(?<=[a-z])(?=[0-9])", name.lower()) if part)


def _in_any_layer(name: str) -> str:
    """A name without the numbers of the modules around it."""
    *around, own = re.split(r"[./]", name)
    return "/".join((*(re.sub(r"[0-9]+", "", one) for one in around), own))


def plain_kind(kind: str) -> str:
    """Return a class's name in a form common to all frameworks: "GELUActivation" becomes "gelu"."""
    return re.sub(r"(activation|layer|module|function|block)$", "", kind.rpartition(".")[2].lower().replace("_", ""))


def _innermost(positions: list[int], modules: Sequence[Module]) -> list[int]:
    """Those of the modules in which none of the others stands."""
    around = {outer for position in positions for outer in modules[position].within}
    return [position for position in positions if position not in around]


def _inside(modules: Sequence[Module]) -> dict[int, list[int]]:
    """Position of each module -> positions of the modules inside it."""
    found: dict[int, list[int]] = defaultdict(list)
    for position, module in enumerate(modules):
        for around in module.within:
            found[around].append(position)
    return found


def _leaves(modules: Sequence[Module]) -> dict[int, frozenset[int]]:
    """Position of each module with parts -> its parts that have parameters and no such parts of their own."""
    holding = [position for position, module in enumerate(modules) if module.numbers != NONE]
    outer = {around for position in holding for around in modules[position].within}
    found: dict[int, set[int]] = defaultdict(set)
    for position in holding:
        if position not in outer:
            for around in modules[position].within:
                found[around].add(position)
    return {position: frozenset(parts) for position, parts in found.items()}
