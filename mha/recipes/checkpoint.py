"""Reads attention layers of a checkpoint from its arrays and the model's config, without making the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from mha.recipes.recipe import completed
from mha.recipes.registry import recipe_for_config
from mha_core import AttentionConfig, SpecError, layouts
from mha_core.layouts import Layout
from mha_core.weights import Weights


def checkpoint_layers(names: Iterable[str], model_config: Mapping[str, Any]) -> list[str]:
    """Return the attention layers among a checkpoint's names, as prefixes, in the order of the names.

    Args:
        names: of all arrays.
        model_config: the content of the model's config.json.

    Raises:
        SpecError: the model's family has no recipe.

    >>> names = [f"encoder.layer.{n}.attention.{part}.weight" for n in (0, 1) for part in
    ...          ("self.query", "self.key", "self.value", "output.dense")]
    >>> checkpoint_layers(names, {"model_type": "bert", "num_attention_heads": 2})
    ['encoder.layer.0.attention', 'encoder.layer.1.attention']
    """
    return list(_found(names, model_config))


def read_layer(
    arrays: Mapping[str, NDArray], prefix: str, model_config: Mapping[str, Any]
) -> tuple[AttentionConfig, Weights]:
    """Return config and canonical weights of the layer at `prefix`, bit for bit.

    Only the arrays of that layer are looked up, so `arrays` may load them from a file as they are asked for.

    Raises:
        SpecError: there is no such layer, or its arrays do not fit the model's config.
    """
    recipe = recipe_for_config(model_config)
    found = _found(arrays, model_config)
    if prefix not in found:
        raise SpecError(f"there is no attention layer {prefix!r} (there are: {', '.join(found) or 'none'})")
    layout = found[prefix]
    own = {name: arrays[full] for name, full in layout.names_of(prefix, arrays).items()}
    try:
        heads = recipe.heads_in(model_config, prefix)
    except KeyError as error:
        raise SpecError(f"the model's config lacks {error}, which {prefix!r} needs") from error
    config, weights = layout.read(own, num_heads=heads)
    scale = recipe.scale_in(model_config, prefix, config.head_dim)
    return completed(config, scale, model_config.get(recipe.dropout_key, 0.0)), weights


def _found(names: Iterable[str], model_config: Mapping[str, Any]) -> dict[str, Layout]:
    """Prefix -> layout; where two fit, the first."""
    recipe = recipe_for_config(model_config)
    every = list(names)
    layout_of: dict[str, Layout] = {}
    for name in recipe.checkpoint_layouts:
        for prefix in layouts.get(name).find(every):
            layout_of.setdefault(prefix, layouts.get(name))

    def first(prefix: str) -> int:
        return next(index for index, name in enumerate(every) if name.startswith(prefix))

    return {prefix: layout_of[prefix] for prefix in sorted(layout_of, key=first)}
