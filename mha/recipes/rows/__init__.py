"""The recipes, a row a family."""

from collections.abc import Mapping

from mha.recipes.recipe import Recipe
from mha.recipes.rows.decoders import DECODERS
from mha.recipes.rows.plain import PLAIN
from mha.recipes.rows.refused import REFUSED, Refused
from mha.recipes.rows.rotary import OTHERS

__all__ = ["RECIPES", "REFUSED", "Refused"]

RECIPES: Mapping[str, Recipe] = {recipe.family: recipe for recipe in (*PLAIN, *DECODERS, *OTHERS)}
"""Every recipe by family."""
