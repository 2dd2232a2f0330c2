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
from mha.recipes.live import dtype_of, watched
from mha.recipes.live_probe import check_site
from mha.recipes.recipe import Recipe
from mha.recipes.rows import RECIPES
from mha.recipes.site import Site
from mha.recipes.torch_arrays import to_array
from mha_core import SpecError
from mha_core.capture import ReadCall


class RecipeAdapter:
    """An adapter (see `mha.recordings.hooks.Adapter`) that records the layers of one family in transformers."""

    has_seam = True
    """What can't be read by a recipe is recorded at its attention function, if it calls one."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.kind = f"transformers {recipe.family} attention"
        self.seen: list[Problem | SpecError] = []
        """What was seen inside of a layer in its calls since the last one that was read, while it is watched."""

    def matches(self, layer: Any) -> bool:
        """Return whether the recipe is for this module."""
        return self.recipe.matches(layer)

    def check(self, layer: Any) -> None:
        """Raise SpecError if the module can't be read, or if its attention implementation is unknown."""
        site = Site("", layer, self.recipe)
        _ = site.config, site.implementation

    def probe(self, layer: Any) -> None:
        """Run a layer on small inputs. SpecError if it does not compute attention as the recipe describes it."""
        check_site(Site("", layer, self.recipe))

    @contextmanager
    def watching(self, layer: Any) -> Iterator[RecipeAdapter]:
        """Return a context whose value is an adapter for this one layer.

        If attention and output projection are separate submodules (BERT), the context notes their calls for `read`.
        """
        site, own = Site("", layer, self.recipe), RecipeAdapter(self.recipe)
        if not site.out_is_separate:
            yield own
            return
        with watched(site, own.seen.append, own.seen.append):
            yield own

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        """Return one call of the layer as a ReadCall, from the submodules' calls if `watching` noted them."""
        seen = self.seen[-1] if self.seen else None
        self.seen.clear()
        if isinstance(seen, SpecError):
            raise seen
        if layer.training:
            raise SpecError(f"{type(layer).__name__} is in training mode; call model.eval()")
        given = {name: value for name, value in arguments.items() if name != "kwargs"}
        given.update(arguments.get("kwargs", {}))
        site = Site("", layer, self.recipe).still()
        if seen is not None:
            inputs, outputs = seen.inputs, {name: one for name, one in seen.recorded.items() if name != "heads"}
        elif site.out_is_separate:
            raise SpecError(f"the attention inside {type(layer).__name__} was not seen in this call")
        else:
            inputs = site.inputs((), given, ran=True)
            result, weights = output[:2]
            outputs = {"output": to_array(result)} | ({} if weights is None else {"weights": to_array(weights)})
        tensors = [value for value in (*given.values(), *output) if hasattr(value, "is_floating_point")]
        dtype = dtype_of(site, *(tensor for tensor in tensors if tensor.is_floating_point()))
        own = seen or site
        return ReadCall(own.config, own.weights, inputs, outputs, dtype)


ADAPTERS = tuple(RecipeAdapter(recipe) for recipe in RECIPES.values())
"""An adapter for each family."""
