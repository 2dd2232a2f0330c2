"""The recipe for a module, a model or a config."""

import warnings
from typing import Any

from mha.coverage import Coverage, Survey, UnreadWarning
from mha.recipes.live_probe import check_site
from mha.recipes.recipe import Recipe
from mha.recipes.rows import RECIPES
from mha.recipes.rows.refused import why_refused
from mha.recipes.site import Site
from mha_core import SpecError


def recipe_for(module: Any) -> Recipe | None:
    """Return the recipe for a live module, or None."""
    return next((recipe for recipe in RECIPES.values() if recipe.matches(module)), None)


def attention_layers(model: Any, *, strict: bool = False, probe: bool = True) -> list[Site]:
    """Return the attention layers of a live model for which there is a recipe, in the model's order.

    Modules that look like attention but have no recipe are named in a warning (`mha.coverage.UnreadWarning`).

    Args:
        model: a PyTorch module of transformers, or one that contains some; in any mode and dtype, on any device.
        strict: whether a module that looks like attention but has no recipe is an error.
        probe: whether to check, by a few small calls, that each layer computes what its recipe says. A hook, a replaced
            forward or an adapter (LoRA) can change that. The calls run hooks; the model is left as it was.

    Raises:
        SpecError: no layer has a recipe; with `strict`, some attention module has none; or, unless probe=False, a layer
            computes something else than its recipe says or can't be run (as on the meta device).
    """
    sites, found = survey(model, probe=probe)
    if strict:
        found.check()
    if found.unseen:
        warnings.warn(found.line, UnreadWarning, stacklevel=2)
    return sites


def survey(model: Any, *, probe: bool = True) -> tuple[list[Site], Coverage]:
    """Return the attention layers of a model that have a recipe, and the Coverage of all its attention modules.

    Raises:
        SpecError: no layer has a recipe; or, unless probe=False, a layer does not compute what its recipe says.
    """
    from backends.torch.native.capture import parts_of

    sites, met = [], Survey(parts_of)
    for name, module in model.named_modules():
        recipe = recipe_for(module)
        met.meet(name, module, known=recipe is not None)
        if recipe is not None:
            sites.append(Site(name, module, recipe))
    if not sites:
        for module in model.modules():
            refused = why_refused(getattr(getattr(module, "config", None), "model_type", None))
            if refused:
                raise SpecError(f"{type(module).__name__} {refused}")
        raise SpecError(f"{type(model).__name__} has no attention layer of a family with a recipe ({families()})")
    for site in sites if probe else ():
        check_site(site)
    return sites, met.coverage()


def families() -> str:
    """Return the families, for a message."""
    return f"families: {', '.join(RECIPES)}"
