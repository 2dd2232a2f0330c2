"""Recipe: what the attention modules of one family of transformers have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from mha.recipes.turns import Turn
from mha_core import AttentionConfig, QueryKeyNorm, layouts
from mha_core.layouts import Layout


@dataclass(frozen=True)
class Norms:
    """The query-key norm in a family of models.

    Attributes:
        settings: the settings of the norm; its eps is replaced by that of each module.
        queries, keys: the names of the modules that norm queries and keys.
        eps: the name of these modules' attribute that holds eps.
        on: the attribute of an attention module or its config that switches the norm on; "" if it is always on.
    """

    settings: QueryKeyNorm
    queries: str = "q_norm"
    keys: str = "k_norm"
    eps: str = "variance_epsilon"
    on: str = ""


@dataclass(frozen=True)
class Recipe:
    """A description of the attention modules of one family of models in transformers: how to read, call and write them.

    Attributes:
        family: the family's name.
        summary: what is special about the family, in a line.
        classes: the class names of its attention modules; their code is the same except for names.
        model_types: the `model_type` of configs of models that have such layers.
        layouts: names of layouts (how arrays are packed), one for all modules, or two if cross-attention differs.
        heads: the attribute with the number of heads, in the submodule at `core`.
        dropout_key: the key of a model's config for the dropout of the attention weights.
        out: the path of the output projection in a module.
        core: the path of the submodule that gets the hidden states and the mask; "" for the module itself.
        other_states: the argument that holds the inputs of keys and values of a cross-attention.
        other_mask: the argument that holds the mask of a cross-attention.
        cache: the argument that holds the cache.
        place: the attribute, in the submodule at `core`, with the layer's index in the cache.
        repeated: a function: module -> whether the module's cache holds a copy of a key head for every query head.
        only: the attention implementation that a module always runs; "" if its config says which one.
        needs_mask: whether the implementation "eager" can't be called without a mask.
        scales_mask: whether a mask is added before the scores are scaled, so that a bias is scaled too.
        sees: (core, Lq, Lk) -> bool (Lq, Lk), the module's own mask: True at keys that it allows; the call's mask is
            applied too. None: no mask of its own.
        softmax_in_float32: whether "eager" computes its softmax in float32 in every dtype.
        turn: the rule of rotary positions; None without them.
        norms: the query-key norm; None without one.
        softcap: the attribute of `core` with the softcap of the scores; "" if it has no softcap, or does not use it.
        refused: setting of a module or of the model's config -> the value that it must have. A layer with another value
            is refused.
        scale: names of the settings that replace the factor 1 / sqrt(d) of the scores; "" for none.
        scale_of: live module -> the factor of its scores.
        models: published models of the family.
    """

    family: str
    summary: str
    classes: tuple[str, ...]
    model_types: tuple[str, ...]
    layouts: tuple[str, ...]
    heads: str
    dropout_key: str
    out: str
    core: str = ""
    other_states: str = "encoder_hidden_states"
    other_mask: str = "attention_mask"
    cache: str = "past_key_values"
    place: str = "layer_idx"
    repeated: Callable[[Any], bool] = lambda core: False
    only: str = ""
    needs_mask: bool = False
    scales_mask: bool = False
    sees: Callable[[Any, int, int], NDArray] | None = None
    softmax_in_float32: bool = False
    turn: Turn | None = None
    norms: Norms | None = None
    softcap: str = ""
    refused: Mapping[str, Any] = field(default_factory=dict)
    scale: str = ""
    scale_of: Callable[[Any], float] = lambda core: float(core.scaling)
    models: tuple[str, ...] = ()

    def matches(self, module: Any) -> bool:
        """Return whether this recipe is for `module`. The exact class decides: a subclass may compute anything."""
        kind = type(part(module, self.core))
        known = kind.__name__ in self.classes and kind.__module__.startswith("transformers.models.")
        return known and part(module, self.out) is not None

    def layout(self, module: Any) -> Layout:
        """Return the layout of a live module: how its arrays are named and packed."""
        is_cross = len(self.layouts) > 1 and module.is_cross_attention
        return layouts.get(self.layouts[is_cross])

    def positions(self, core: Any) -> int | None:
        """Return the largest number of positions that the module's tables or masks allow; None without a limit."""
        if self.turn is not None and self.turn.ends:
            return len(core.embed_positions)
        return None if self.sees is None else int(core.config.max_position_embeddings)


def part(module: Any, path: str) -> Any:
    """Return the submodule at a path such as "output.dense" (None if it is not there); `module` itself for ""."""
    for name in path.split(".") if path else ():
        module = getattr(module, name, None)
    return module


def setting(core: Any, name: str, default: Any = None) -> Any:
    """Return the attribute `name` of an attention module or, if it is missing, of its config; else the default."""
    return getattr(core, name, getattr(getattr(core, "config", None), name, default))


def completed(config: AttentionConfig, scale: float, dropout: float) -> AttentionConfig:
    """Return the config with this scale and dropout; its scale is None where it is 1 / sqrt(head_dim).

    >>> completed(AttentionConfig(8, 2), 0.5, 0.1).scale is None, completed(AttentionConfig(8, 2), 1.0, 0.1).scale
    (True, 1.0)
    """
    usual = config.head_dim**-0.5
    return replace(config, scale=None if scale == usual else scale, dropout=dropout)
