"""The layers of a model that are recorded by their projections: as somebody says, or where names are unambiguous."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from mha import rotary
from mha.coverage import kind_of
from mha.projections.layer import Judge, Part, Parts, ProjectedLayer
from mha.projections.said import Projections, found_by_name
from mha_core import SpecError


class Unlisted:
    """Chooses these layers, and says of the others why they are not recorded.

    Args:
        hooks: the functions of the framework.
        target: the model.
        said: pattern of names -> where the projections of these layers are.
        is_known: whether a module is of a listed class.
        judge: compares a call with the reference.

    Attributes:
        refused: name -> why a layer that was found by names is not recorded.
        turning: name -> why not, of layers with rotary positions.
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
        self._parts: dict[int, Part] = {}
        self._layers: list[ProjectedLayer] = []
        self.refused: dict[str, str] = {}
        self.turning: dict[str, str] = {}
        # The module that turns often stands beside the layers: then it is for all that its own parent holds.
        self._turned = {name[: -len(last)]: name for name, last in _rotary_in(hooks, target)}

    def part(self, module: Any) -> Part | None:
        """The projection that this module is in a layer that was chosen."""
        return self._parts.get(id(module))

    def choose(self, name: str, module: Any) -> ProjectedLayer | None:
        """The adapter of a module whose class is not listed, or for which somebody said how; None for others.

        Raises:
            SpecError: somebody said how, and it can't be.
        """
        said = next((one for pattern, one in self._said.items() if fnmatchcase(name, pattern)), None)
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
        try:
            layer = ProjectedLayer(self._hooks, name, module, found, judge=self._judge, sure=said is not None)
        except SpecError as error:
            if said is not None:
                raise
            self.refused[name] = str(error)
            return None
        self._parts |= {id(part.module): part for part in layer.parts.values()}
        self._layers.append(layer)
        return layer

    def reasons(self, unread: tuple[str, ...]) -> str:
        """Why nothing was recorded, and how to say what is missing. `unread`: modules that look like attention."""
        if self.turning:
            return next(iter(self.turning.values()))
        why = f"{next(iter(self.refused.values()))}. " if self.refused else ""
        name = next(iter(self.refused), unread[0] if unread else "NAME")
        return (
            f"{why}A class that is not listed is recorded by its projections, if their names are said: "
            f'mha.capture(model, "calls.safetensors", layers={{{name!r}: mha.Projections(query="q_proj", '
            'key="k_proj", value="v_proj", output="out_proj", num_heads=8)}), with its own names and number '
            "(docs/recordings.md)"
        )

    @property
    def beyond(self) -> str:
        """What was not looked at in layers that return something else than their output projection gives."""
        names = [layer.name or "the model itself" for layer in self._layers if layer.beyond]
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
