"""The families as a table: what each is, what it adds, and whether its layers can be expressed."""

from __future__ import annotations

from dataclasses import dataclass

from mha.recipes.recipe import Recipe
from mha.recipes.rows import RECIPES, REFUSED, Refused


@dataclass(frozen=True)
class Row:
    """A row of the table: one family.

    Attributes:
        family: its name.
        state: "expressed" or "refused".
        model_types: the `model_type` of the configs of its models.
        models: published models with such layers.
        layouts: the layouts of its modules; empty if it is refused.
        rotary: which channels are a pair, and how much of a head turns; "" without rotary positions.
        norm: the query-key norm; "" for none.
        softcap: the setting with the softcap; "" for none.
        scale: the settings that replace the scale 1 / sqrt(d); "" for none.
        says: what is special about it, or the reason why it is refused.
    """

    family: str
    state: str
    model_types: tuple[str, ...]
    models: tuple[str, ...]
    layouts: tuple[str, ...]
    rotary: str
    norm: str
    softcap: str
    scale: str
    says: str

    @property
    def adds(self) -> str:
        """Return what the family adds to plain attention: rotary positions, norm, softcap, scale; "-" for nothing."""
        parts = {"rotary": self.rotary, "norm": self.norm, "softcap": self.softcap, "scale": self.scale}
        return "; ".join(f"{name}: {text}" for name, text in parts.items() if text) or "-"

    @property
    def words(self) -> str:
        """Return the family's particulars, or why it is refused."""
        return self.says if self.state == "expressed" else f"refused: {self.says}"


def rows() -> list[Row]:
    """Return a row for every family; first the families that have a recipe, then the refused ones.

    >>> [row.family for row in rows() if row.softcap], [row.rotary for row in rows() if row.family == "gptj"]
    (['gemma2'], ['interleaved, rotary_dim'])
    """
    return [*map(_expressed, RECIPES.values()), *map(_refused, REFUSED)]


def counts() -> dict[str, int]:
    """Return "expressed" or "refused" -> how many published models belong to such families."""
    found = {"expressed": 0, "refused": 0}
    for row in rows():
        found[row.state] += len(row.models)
    return found


def _expressed(recipe: Recipe) -> Row:
    return Row(
        recipe.family,
        "expressed",
        recipe.model_types,
        recipe.models,
        recipe.layouts,
        _rotary(recipe),
        _norm(recipe),
        recipe.softcap,
        recipe.scale,
        recipe.summary,
    )


def _rotary(recipe: Recipe) -> str:
    if recipe.turn is None:
        return ""
    return f"{'interleaved' if recipe.turn.interleaved else 'half'}, {recipe.turn.share or 'whole head'}"


def _norm(recipe: Recipe) -> str:
    if recipe.norms is None:
        return ""
    own = recipe.norms.settings
    scope = "whole projection" if own.scope == "all" else "each head"
    weight = {"none": "no weight", "per_head": "a weight of its own for each head"}.get(own.weight, "one weight")
    weight = "weight" if own.scope == "all" else weight
    parts = (own.kind, scope, f"{own.order} the rotation", weight, recipe.norms.on and f"if {recipe.norms.on}")
    return ", ".join(filter(None, parts))


def _refused(row: Refused) -> Row:
    return Row(row.family, "refused", row.model_types, row.models, (), "", "", "", "", row.reason)
