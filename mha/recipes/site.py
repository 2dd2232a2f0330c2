"""Site: one attention layer of a live model, and the recipe that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from mha.recipes.recipe import Recipe
from mha_core import AttentionConfig
from mha_core.weights import Weights


@dataclass(frozen=True, eq=False)
class Site:
    """One attention layer of a live model.

    Attributes:
        name: the module's name within the model, such as "encoder.layer.0.attention".
        module: the module.
        recipe: the recipe that reads it.
    """

    name: str
    module: Any
    recipe: Recipe

    @property
    def config(self) -> AttentionConfig:
        """Its sizes and choices."""
        return self.recipe.config(self.module)

    @property
    def weights(self) -> Weights:
        """Its canonical weights, copied."""
        return self.recipe.weights(self.module)

    def put(self, weights: Mapping[str, NDArray]) -> None:
        """Write canonical weights into it."""
        self.recipe.put(self.module, weights)

    @property
    def core(self) -> Any:
        """The module that is called with the hidden states and the mask."""
        return self.recipe.core(self.module)

    @property
    def out(self) -> Any:
        """The output projection."""
        return self.recipe.out(self.module)

    @property
    def out_is_separate(self) -> bool:
        """Whether the output projection is applied by another module than `core`."""
        return all(part is not self.out for part in self.core.modules())
