"""Recipes: the attention layers of Hugging Face transformers in terms of the definition, in a live model.

Importing this imports neither PyTorch nor transformers.

    layers = attention_layers(model)                # of a live model: config, weights, put
    output, calls = record(layers, lambda: model(**batch))
"""

from mha.recipes.live import record
from mha.recipes.recipe import Recipe
from mha.recipes.registry import attention_layers, families, recipe_for, survey
from mha.recipes.rows import RECIPES
from mha.recipes.site import Site

__all__ = [
    "RECIPES",
    "Recipe",
    "Site",
    "attention_layers",
    "families",
    "recipe_for",
    "record",
    "survey",
]
