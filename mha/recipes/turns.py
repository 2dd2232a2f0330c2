"""How modules of a family turn queries and keys, and where the tables of a call are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core import Rotary, RotaryInputs, SpecError
from mha_core.parts.frequencies import RULES, LongRope


@dataclass(frozen=True)
class Turn:
    """A rule of rotary positions, for layers that get tables (cos, sin) as the argument `position_embeddings`.

    Attributes:
        interleaved: True if channels (2 k, 2 k + 1) are a pair; False for (k, k + r / 2).
        doubled: how the tables' last axis holds each number (a, b) twice: "halves" (a b a b) or "pairs" (a a b b).
        acts: module -> whether it has rotary positions; some layers of a model may not.
        backwards: whether a module rotates by the negative angles.
        patches_alone: whether only image patches rotate: tables of n positions then apply to the last n tokens.
        share: the setting with the fraction of a head's channels that rotate; "" if all do.
        in_config: True if the config gives the angles; False if they are read from the tables of each call.
        ends: whether positions are limited, because the module itself holds the tables.
    """

    interleaved: bool = False
    doubled: str = "halves"
    acts: Callable[[Any], bool] = lambda module: True
    backwards: bool = False
    patches_alone: bool = False
    share: str = "partial_rotary_factor"
    in_config: bool = True
    ends: bool = False

    def settings(self, core: Any, head_dim: int) -> Rotary:
        """Return the rotary settings of a module. They lack base and scaling rule if the config's form is unknown.

        The model may compute other tables for a call: `mha_core.parts.rotary` compares them with these settings.
        """
        layout = Rotary(self._width(core, head_dim), self.interleaved)
        own = {**_parameters(core)}
        if not self.in_config or "rope_theta" not in own or "mrope_section" in own:  # several axes of positions
            return layout
        kind = RULES.get(own.get("rope_type", "default"))
        rule = None
        if kind is not None:
            most = core.config.max_position_embeddings
            known = {"max_position_embeddings": most, **own}
            if kind is LongRope:  # where no factor is given, the ratio of both lengths
                known.setdefault("factor", most / own.get("original_max_position_embeddings", most))
            rule = {field.name: known[field.name] for field in fields(kind) if known.get(field.name) is not None}
        try:
            return replace(layout, base=float(own["rope_theta"]), rule=rule)
        except SpecError:  # a rule without its numbers, or one whose base is none
            return layout

    def _width(self, core: Any, head_dim: int) -> int:
        """How many channels of a head a module turns, by its config."""
        own = _parameters(core)
        proportional = own.get("rope_type") == "proportional"  # whose share is of the pairs that do turn
        share = own.get(self.share, getattr(core.config, self.share, None)) if self.share and not proportional else None
        return int(head_dim * (1.0 if share is None else float(share)))

    def take(self, core: Any, given: dict[str, Any], length: int) -> RotaryInputs | None:
        """Remove `position_embeddings` from `given`. Return its tables, or None if the module has no rotary positions.

        Args:
            core: the module.
            given: the arguments of the call.
            length: Lq, the number of queries of the call.

        Raises:
            SpecError: the tables are not (cos, sin), or differ between the two channels of a pair.
        """
        tables = given.pop("position_embeddings", None)
        if not self.acts(core):
            return None
        if not (isinstance(tables, tuple) and len(tables) == 2):
            raise SpecError(f"position_embeddings must be a tuple (cos, sin). Got {type(tables).__name__}.")
        cos, sin = map(self._once, tables)
        if self.patches_alone and cos.shape[-2] < length:
            first = [(0, 0)] * (cos.ndim - 2) + [(length - cos.shape[-2], 0), (0, 0)]
            cos, sin = np.pad(cos, first, constant_values=1.0), np.pad(sin, first)
        return RotaryInputs(None, None, cos, -sin if self.backwards else sin)

    def _once(self, table: Any) -> NDArray:
        """A table with each number once; SpecError if the channels of a pair have two."""
        from mha.recipes.torch_arrays import to_array

        whole = to_array(table)
        once, again = np.split(whole, 2, axis=-1)
        if self.doubled == "pairs":
            once, again = whole[..., ::2], whole[..., 1::2]
        if not np.array_equal(once, again):
            raise SpecError("position_embeddings turn the two channels of a pair by different angles")
        return once

    def give(self, core: Any, cos: NDArray, sin: NDArray) -> Mapping[str, Any]:
        """Return the keyword arguments that rotate positions 0, 1, ... of a call by these tables (B, L, r / 2)."""
        if self.doubled == "halves":
            return {"position_embeddings": tuple(np.concatenate([table] * 2, axis=-1) for table in (cos, sin))}
        return {"position_embeddings": tuple(np.repeat(table, 2, axis=-1) for table in (cos, sin))}


def _parameters(core: Any) -> Mapping[str, Any]:
    """The `rope_parameters` of a module's config; some models have some for each kind of layer."""
    model = getattr(core, "config", None)
    given, types = getattr(model, "rope_parameters", None) or {}, getattr(model, "layer_types", None)
    own: Mapping[str, Any] = given.get(types[core.layer_idx], given) if types else given
    return own


@dataclass(frozen=True)
class SinusoidalTurn(Turn):
    """A rule of rotary positions, for layers that get one table `sinusoidal_pos` (1, 1, L, d): sines, then cosines."""

    interleaved: bool = True
    share: str = ""

    def take(self, core: Any, given: dict[str, Any], length: int) -> RotaryInputs | None:
        """See `Turn.take`."""
        from mha.recipes.torch_arrays import to_array

        sin, cos = np.split(to_array(given.pop("sinusoidal_pos", None))[:, 0], 2, axis=-1)
        return RotaryInputs(None, None, cos, sin)

    def give(self, core: Any, cos: NDArray, sin: NDArray) -> Mapping[str, Any]:
        """See `Turn.give`."""
        return {"sinusoidal_pos": np.concatenate([sin, cos], axis=-1)[:, None]}


@dataclass(frozen=True)
class OwnTables(Turn):
    """A rule of rotary positions, for layers that look up `position_ids` in their own table: sines, then cosines."""

    interleaved: bool = True
    share: str = "rotary_dim"
    ends: bool = True

    def _width(self, core: Any, head_dim: int) -> int:
        return int(core.rotary_dim or head_dim)

    def take(self, core: Any, given: dict[str, Any], length: int) -> RotaryInputs | None:
        """See `Turn.take`."""
        from mha.recipes.torch_arrays import to_array

        rows = to_array(core.embed_positions)[to_array(given.pop("position_ids", None))]
        sin, cos = np.split(rows, 2, axis=-1)
        return RotaryInputs(None, None, cos, sin)

    def give(self, core: Any, cos: NDArray, sin: NDArray) -> Mapping[str, Any]:
        """See `Turn.give`; the tables are its own."""
        return {"position_ids": np.arange(cos.shape[-2])[None]}
