"""Recipes as adapters of `mha.capture`: it then records the attention layers of models of transformers.

from mha.recipes.adapter import ADAPTERS
for adapter in ADAPTERS:
    mha.recordings.capture.register(adapter)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from conformance.cases.problem import Problem
from mha.recipes.live import dtype_of, record, watched
from mha.recipes.live_probe import check_site
from mha.recipes.recipe import Recipe
from mha.recipes.rows import RECIPES
from mha.recipes.site import Site
from mha.recipes.torch_arrays import to_array
from mha_core import SpecError
from mha_core.capture import ReadCall


class RecipeAdapter:
    """A recipe with the interface of `mha.recordings.capture.Adapter`."""

    has_seam = True
    """What can't be read by a recipe is recorded at its attention function, if it calls one."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.kind = f"transformers {recipe.family} attention"

    def matches(self, layer: Any) -> bool:
        """Return whether the recipe is for this module."""
        return self.recipe.matches(layer)

    def check(self, layer: Any) -> None:
        """Raise SpecError if the module can't be read, or runs an implementation that is not understood."""
        site = Site("", layer, self.recipe)
        _ = site.config, site.implementation

    def probe(self, layer: Any) -> None:
        """Raise SpecError if the module does not compute what the recipe reads."""
        check_site(Site("", layer, self.recipe))

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        """Read one call; where the output projection is hidden inside a block, the block is run once more to see it."""
        return self._read(layer, arguments, output, None)

    @contextmanager
    def watching(self, layer: Any) -> Iterator[RecipeAdapter]:
        """Return the adapter of one layer, which need not run a block once more: it sees inside meanwhile."""
        site = Site("", layer, self.recipe)
        if not site.out_is_separate:
            yield self
            return
        own = _Watching(self.recipe)
        with watched(site, own.seen.append, own.seen.append):
            yield own

    def _read(self, layer: Any, arguments: Mapping[str, Any], output: Any, seen: Problem | None) -> ReadCall:
        if layer.training:
            raise SpecError(f"{type(layer).__name__} is in training mode; call model.eval()")
        given = {name: value for name, value in arguments.items() if name != "kwargs"}
        given.update(arguments.get("kwargs", {}))
        site = Site("", layer, self.recipe).still()
        if site.out_is_separate:
            seen = seen or _seen_inside(site, given)
            inputs, outputs = seen.inputs, {name: one for name, one in seen.recorded.items() if name != "heads"}
        else:
            inputs = site.inputs((), given, ran=True)
            result, weights = output[:2]
            outputs = {"output": to_array(result)}
            if weights is not None:
                outputs["weights"] = to_array(weights)
        tensors = [value for value in (*given.values(), *output) if hasattr(value, "is_floating_point")]
        dtype = dtype_of(site, *(tensor for tensor in tensors if tensor.is_floating_point()))
        own = seen or site
        return ReadCall(own.config, own.weights, inputs, outputs, dtype)


class _Watching(RecipeAdapter):
    """The adapter of one layer while it is watched: what was seen in its calls since the last one that was read."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.seen: list[Problem | SpecError] = []

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        last = self.seen[-1] if self.seen else None
        self.seen.clear()
        if isinstance(last, SpecError):
            raise last
        return self._read(layer, arguments, output, last)


def _seen_inside(site: Site, given: Mapping[str, Any]) -> Problem:
    """The attention inside a block, from a second run of the block that is not captured."""
    import torch

    with torch.no_grad():
        _, calls = record([site], lambda: site.module.forward(**given))
    (problem,) = calls[site.name]
    return problem


ADAPTERS = tuple(RecipeAdapter(recipe) for recipe in RECIPES.values())
"""An adapter for each family."""
