"""The families as a table: what each is, what it adds, and whether its layers can be expressed."""

from typing import NamedTuple

from mha.recipes.recipe import Recipe
from mha.recipes.rows import RECIPES, REFUSED


class Row(NamedTuple):
    """One row in a table of supported model families.

    Args:
        family: its name.
        model_types: the `model_type` of the configs of its models.
        models: published models with such layers.
        adds: additions to plain attention: rotary positions, norm, softcap, scale; "-" for none.
        words: what is special about the family, or why its layers can't be read.
    """

    family: str
    model_types: tuple[str, ...]
    models: tuple[str, ...]
    adds: str
    words: str


def rows() -> list[Row]:
    """Return a Row for each family of models: first the readable ones, then those that are refused.

    >>> [row.adds for row in rows() if row.family in ("bert", "gptj")]
    ['-', 'rotary: interleaved, rotary_dim']
    """
    read = [Row(one.family, one.model_types, one.models, _added(one), one.summary) for one in RECIPES.values()]
    return [*read, *(Row(one.family, one.model_types, one.models, "-", f"refused: {one.reason}") for one in REFUSED)]


def counts() -> dict[str, int]:
    """Return how many published models are known: {"expressed": in readable families, "refused": in others}."""
    found = {"expressed": 0, "refused": 0}
    for row in rows():
        found["expressed" if row.family in RECIPES else "refused"] += len(row.models)
    return found


def _added(recipe: Recipe) -> str:
    turn = recipe.turn
    rotary = turn and f"{'interleaved' if turn.interleaved else 'half'}, {turn.share or 'whole head'}"
    parts = {"rotary": rotary, "norm": _norm(recipe), "softcap": recipe.softcap, "scale": recipe.scale}
    return "; ".join(f"{name}: {text}" for name, text in parts.items() if text) or "-"


def _norm(recipe: Recipe) -> str:
    if recipe.norms is None:
        return ""
    own = recipe.norms.settings
    scope = "whole projection" if own.scope == "all" else "each head"
    weight = {"none": "no weight", "per_head": "a weight of its own for each head"}.get(own.weight, "one weight")
    weight = "weight" if own.scope == "all" else weight
    parts = (own.kind, scope, f"{own.order} the rotation", weight, recipe.norms.on and f"if {recipe.norms.on}")
    return ", ".join(filter(None, parts))
