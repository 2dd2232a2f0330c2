"""The layers of a model that are recorded by their projections: as somebody says, or where names are unambiguous."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mha import rotary
from mha.coverage import kind_of
from mha.projections.layer import OFTEN, Judge, Part, Parts, ProjectedLayer, around, heads_of
from mha.projections.said import Projections, fits, found_by_name
from mha_core import SpecError
from mha_core.errors import listed
from mha_core.files.mistaken import without_forward

OPEN = "..."
"""Stands in a line that is printed where nothing says which projection is meant."""


class Unlisted:
    """A search in a model for attention layers of unknown classes that can be recorded by their linear submodules.

    Args:
        hooks: the functions of the framework.
        target: the model.
        said: pattern of layer names -> the Projections of those layers, from the user.
        is_known: a function: module -> whether another adapter knows its class.
        judge: a function that compares a call with the reference.

    Attributes:
        layers: the layers that were found.
        refused: name of a layer -> why it is not recorded, although its submodules have the usual names.
        turning: name of a layer with rotary positions -> why the layer is not recorded.
    """

    def __init__(
        self,
        hooks: Parts,
        target: Any,
        said: Mapping[str, Projections],
        *,
        is_known: Callable[[Any], bool],
        judge: Judge,
    ) -> None:
        for pattern, one in said.items():
            if not isinstance(one, Projections):
                raise SpecError(f"layers[{pattern!r}] must be mha.Projections(...). Got {one!r}.")
            if not hasattr(hooks, "modules_in"):
                raise SpecError(f"layers of {type(target).__qualname__} can't be read by their projections")
        self._hooks, self._is_known, self._said, self._judge = hooks, is_known, said, judge
        self._target = target
        self._named = dict(_inside(hooks, target))
        self._found: dict[str, Projections] = {}
        self._parts: dict[int, Part] = {}
        self.layers: list[ProjectedLayer] = []
        self.refused: dict[str, str] = {}
        self.turning: dict[str, str] = {}
        # The module that turns often stands beside the layers: then it is for all that its own parent holds.
        self._turned = {name[: -len(last)]: name for name, last in _rotary_in(hooks, target)}

    def part(self, module: Any) -> Part | None:
        """Return the Part (record of calls) of `module`, if it is a projection of a layer that was found; else None."""
        return self._parts.get(id(module))

    def choose(self, name: str, module: Any) -> ProjectedLayer | None:
        """Return the adapter that records a module whose class is unknown but whose projections are known; else None.

        Raises:
            SpecError: the user named the module's projections, but the module can't be recorded by them.
        """
        said = next((one for pattern, one in self._said.items() if fits(name, pattern)), None)
        inside = _inside(self._hooks, module)
        found = said or found_by_name([own for own, part in inside if self._hooks.projects(part)])
        if found is None or (said is None and any(self._is_known(part) for _, part in inside)):
            return None
        turns = rotary.part_of(module, inside)
        turns = turns or next((own for start, own in self._turned.items() if name.startswith(start)), None)
        if turns is not None:
            self.turning[name] = rotary.refusal(f"{kind_of(module)} at {name or 'the top'}", turns)
            if said is not None:
                raise SpecError(self.turning[name])
            return None
        self._found[name] = found
        try:
            layer = ProjectedLayer(
                self._hooks, name, module, found, judge=self._judge, sure=said is not None, others=self.layers
            )
        except SpecError as error:
            if said is not None:
                raise
            self.refused[name] = str(error)
            return None
        self._parts |= {id(part.module): part for part in layer.parts.values()}
        self.layers.append(layer)
        self._found[name] = replace(found, num_heads=layer.num_heads)
        return layer

    def reasons(self, unread: tuple[str, ...]) -> str:
        """Return why nothing was recorded, and a remedy. `unread`: names of modules that look like attention."""
        if self.turning:
            return next(iter(self.turning.values()))
        why = f"{next(iter(self.refused.values())).removesuffix('.')}. " if self.refused else ""
        missing = without_forward(self._target)
        why += f"{missing}. " if missing else ""
        if OFTEN in why:
            return f"{why}Call it once for each call of the layer, and take its rows apart (docs/recordings.md)"
        if next((layer.told for layer in self.layers if layer.name in self.refused), False):
            return why.removesuffix(". ")
        if self.as_they_are:
            return f"{why}{self.as_they_are} (docs/recordings.md)"
        linear = [one for one, part in self._inside_of("") if self._hooks.projects(part)]
        if self._named and len(linear) < 2 and not (self.refused or unread):
            has = f"{linear[0]!r} alone" if linear else "none"
            return (
                f"{why}A class that is not listed is recorded by its projections, and it has {has} (docs/recordings.md)"
            )
        name = next(iter((*self.refused, *unread)), self._with_projections(linear))
        found = self._found.get(name)
        says = found is not None and found.num_heads
        with suppress(SpecError):
            says = says or self._own_heads(name, found)
        heads = "" if says else "its own number of heads"
        which = "" if found is not None else "each name where it belongs"
        if found is None and self._guessed(name).query == OPEN:
            there = listed([repr(one) for one, part in self._inside_of(name) if self._hooks.projects(part)], 8)
            which = f"each of {there} where it belongs"
        lacks = " and ".join(filter(None, (which, heads)))
        return (
            f"{why}A class that is not listed is recorded by its projections, if their names are said: "
            f"{self._line(name)}{lacks and ', with '}{lacks} (docs/recordings.md)"
        )

    def _with_projections(self, there: list[str]) -> str:
        """The name of the module that holds most of four projections; NAME, if several hold two or fewer."""
        held = Counter(one.replace("/", ".").rpartition(".")[0] for one in there)
        name = max(held, key=lambda one: min(held[one], 4), default="NAME")
        return name if len(held) == 1 or held[name] > 2 else "NAME"

    @property
    def as_they_are(self) -> str:
        """Return advice on recording a layer that was refused because the reference gave other numbers; "" if none."""
        name = next((layer.name for layer in self.layers if layer.differs and layer.name in self.refused), None)
        if name is None:
            return ""
        by_head = " and by_head=" * (len(self._found[name].names) < 4)  # of rows of several projections
        return (
            f"To record {name or 'it'} as it is, say that these are its projections: {self._line(name)}; then "
            f"`mha diagnose calls.safetensors` looks for the cause, best with causal={by_head} said too"
        )

    def _line(self, name: str) -> str:
        """The call of mha.capture that says where the projections of this layer, and its like, are."""
        found = self._found.get(name) or self._guessed(name)
        roles = ", ".join(f'{role}="{getattr(found, role)}"' for role in ("query", "key", "value", "output"))
        said = f"mha.Projections({roles}, num_heads={found.num_heads or self._some_heads(name, found)})"
        return f'mha.capture(model, "calls.safetensors", layers={{{self._alike(name)!r}: {said}}})'

    def _guessed(self, name: str) -> Projections:
        """Projections by what their names contain, or the two that a layer has; OPEN where neither tells."""
        own = [own for own, part in self._inside_of(name) if self._hooks.projects(part)]
        if not own:
            return Projections("q_proj", "k_proj", "v_proj", "out_proj")
        if len(own) == 2:
            return Projections(own[0], own[0], own[0], own[1])
        by_role = [[one for one in own if part in one.lower()] for part in ("quer", "key", "val")]
        rest = [one for one in own if not any(one in some for some in by_role)]
        if any(len(some) != 1 for some in by_role) or len(rest) != 1:
            return Projections(OPEN, OPEN, OPEN, OPEN)
        (query,), (key,), (value,) = by_role
        return Projections(query, key, value, rest[0])

    def _some_heads(self, name: str, found: Projections) -> int:
        """The layer's number of heads; where nothing says it, one that the rows of its queries have, at most 8."""
        with suppress(SpecError):
            return self._own_heads(name, found)
        inside = dict(self._inside_of(name))
        module = inside.get(found.query) or next(filter(self._hooks.projects, inside.values()), None)
        rows = 8 if module is None else int(self._hooks.matrix_of(module)[0].shape[0])
        rows //= 3 if found.query == found.key == found.value != OPEN and rows % 3 == 0 else 1
        return max(one for one in range(1, 9) if rows % one == 0)

    def _own_heads(self, name: str, found: Projections | None) -> int:
        """The number of heads that a layer, or what holds its queries' projection, says."""
        layer = self._named.get(name, self._target)
        return heads_of(layer, *around(self._inside_of(name), "" if found is None else found.query))

    def _inside_of(self, name: str) -> list[tuple[str, Any]]:
        """The modules inside that of this name; of the target, where there is none."""
        return _inside(self._hooks, self._named.get(name, self._target))

    def _alike(self, name: str) -> str:
        """A pattern for this layer and all others of its place in other blocks, if what is found holds for them all."""
        pattern = re.sub(r"\d+", "*", name)
        fitting = [other for other in self._named if fits(other, pattern)]
        alike = all(self._found.get(other) == self._found.get(name) for other in fitting)
        return pattern if alike and name in fitting and name in self._found else name

    @property
    def notes(self) -> list[str]:
        """Return lines on masks without effect, on fully masked rows that were not compared, and the note `beyond`."""
        idle = [f"{one} of {layer.name or 'the model itself'}" for layer in self.layers for one in sorted(layer.idle)]
        bare = [layer for layer in self.layers if layer.without_key]
        rows, names = sum(layer.without_key for layer in bare), [layer.name or "the model itself" for layer in bare]
        return [
            f"without effect as a mask in a recorded call: {listed(idle, 3)}" * bool(idle),
            f"NaN, and not compared, are {rows} rows of queries without a key: {listed(names, 3)}" * bool(bare),
            self.beyond,
        ]

    @property
    def beyond(self) -> str:
        """Return a note naming the layers that compute more after their output projection; "" if there are none."""
        names = [layer.name or "the model itself" for layer in self.layers if layer.beyond]
        return (
            f"recorded up to the output projection, not what the layer does with it: {', '.join(names)}"
            if names
            else ""
        )


def _inside(hooks: Parts, module: Any) -> list[tuple[str, Any]]:
    """All modules inside; none for a framework whose hooks read listed classes alone."""
    return list(hooks.modules_in(module)) if hasattr(hooks, "modules_in") else []


def _rotary_in(hooks: Parts, target: Any) -> list[tuple[str, str]]:
    """Name in the model, and last part of it, of each module whose class is called rotary."""
    found = [name for name, part in _inside(hooks, target) if rotary.is_rotary(part)]
    return [(name, name.replace("/", ".").rpartition(".")[2]) for name in found]
