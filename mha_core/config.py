"""AttentionConfig: every size and choice of one multi-head attention layer, validated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypedDict, get_args

from mha_core.errors import SpecError
from mha_core.heads import HeadShapes
from mha_core.numbers import check_dropout, not_zero, positive, real
from mha_core.parts import PARTS
from mha_core.parts.chunked_mask import ChunkedMask
from mha_core.parts.query_key_norm import QueryKeyNorm
from mha_core.parts.query_scale import QueryScale
from mha_core.parts.rotary import Rotary

ScoreName = Literal["scaled_dot", "dot", "additive"]
SCORES: tuple[str, ...] = get_args(ScoreName)

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
"""The four projections, in canonical order."""


@dataclass(frozen=True)
class ProjectionBias:
    """Which of the four projections add a bias.

    >>> ProjectionBias.of(True)
    ProjectionBias(q_proj=True, k_proj=True, v_proj=True, out_proj=True)
    >>> ProjectionBias.of({"q_proj": True})
    ProjectionBias(q_proj=True, k_proj=False, v_proj=False, out_proj=False)
    """

    q_proj: bool = False
    k_proj: bool = False
    v_proj: bool = False
    out_proj: bool = False

    @classmethod
    def of(cls, choice: bool | Mapping[str, bool] | ProjectionBias) -> ProjectionBias:
        """One bool for all four, or a choice per projection. Raises SpecError on anything else."""
        if isinstance(choice, ProjectionBias):
            return choice
        if isinstance(choice, bool):
            return cls(choice, choice, choice, choice)
        if isinstance(choice, Mapping):
            unknown = sorted(set(choice) - set(PROJECTIONS))
            if unknown:
                raise SpecError(f"bias has no projection {unknown[0]!r} (known: {', '.join(PROJECTIONS)})")
            if all(isinstance(value, bool) for value in choice.values()):
                return cls(**choice)
        raise SpecError(f"bias must be a bool, or a bool for each of {', '.join(PROJECTIONS)}. Got {choice!r}.")


class ConfigOptions(TypedDict, total=False):
    """The keywords of an `AttentionConfig` that every layer takes as they are: `**options: Unpack[ConfigOptions]`.

    The others stand in the layers' own signatures: `embed_dim, num_heads, dropout=0.0, bias=False`, as in d2l.ai's.
    """

    num_kv_heads: int | None
    head_dim: int | None
    value_head_dim: int | None
    query_dim: int | None
    key_dim: int | None
    value_dim: int | None
    output_dim: int | None
    score: ScoreName
    scale: float | None
    score_dim: int | None
    softcap: float | None
    projections: bool
    rotary: Rotary | Mapping[str, Any] | bool | None
    query_key_norm: QueryKeyNorm | Mapping[str, Any] | str | None
    query_scale: QueryScale | Mapping[str, Any] | bool | None
    chunked_mask: ChunkedMask | Mapping[str, Any] | int | None
    clip_qkv: float | None
    value_norm_eps: float | None
    value_scale: float | None


@dataclass(frozen=True, init=False, repr=False)
class AttentionConfig:
    """Every size of a multi-head attention layer. Frozen; validated when it is made.

    Only `embed_dim` and `num_heads` are required. With `H = num_heads`, `G = num_kv_heads`,
    `d = head_dim` and `dv = value_head_dim`, the layer maps queries (B, Lq, query_dim), keys
    (B, Lk, key_dim) and values (B, Lk, value_dim) to an output (B, Lq, output_dim).

    Args:
        embed_dim: default of all four widths, and of `head_dim * num_heads`.
        num_heads: H, the number of query heads.
        num_kv_heads: G, the number of key and value heads; divides H. Default: H. Query head h
            reads key/value head h // (H // G) (grouped-query attention, arXiv:2305.13245).
        head_dim: d, width of a query or key head. Default: embed_dim / num_heads, which must divide.
        value_head_dim: dv, width of a value head. Default: head_dim.
        query_dim, key_dim, value_dim, output_dim: input and output widths. Default: embed_dim.
        bias: one bool for all four projections, or a choice for each (see ProjectionBias).
        score: "scaled_dot" (q.k * scale), "dot" (q.k), or "additive" (w . tanh(A q + C k),
            arXiv:1409.0473).
        scale: factor of "scaled_dot". Default: 1 / sqrt(head_dim) (arXiv:1706.03762, section 3.2.1).
        score_dim: S, width of the additive score's hidden layer. Default: head_dim. Only "additive".
        softcap: c, which bounds the scores smoothly: c * tanh(score / c), after scaling and before the
            additive bias and exclusion. Default: none.
        projections: False for a layer without the four projections, whose queries, keys and values are
            the heads already, merged (B, L, H * d) or split (B, H, L, d), and whose output is the heads
            merged. It has no biases, and its widths are those of the heads.
        rotary: how queries and keys turn with their positions: `mha_core.Rotary`, a mapping of its fields, or True
            for its defaults. Default: not at all.
        query_key_norm: how they are normed: `mha_core.QueryKeyNorm`, a mapping of its fields, or a kind. Default:
            not at all.
        query_scale: how queries are scaled by their positions: `mha_core.QueryScale`, a mapping of its fields, or
            True where calls give the factors. Default: not at all.
        chunked_mask: queries attend within their own chunk of positions: `mha_core.ChunkedMask`, a mapping of its
            fields, or its size. Default: everywhere.
        clip_qkv: c, beyond which no channel of projected queries, keys and values goes: they are cut off at +-c.
            Default: not at all.
        value_norm_eps: eps, with which each value is divided by sqrt(mean(x ** 2) + eps) of its channels. Default:
            not at all.
        value_scale: a number by which values are multiplied, behind their norm. Default: none.
        dropout: probability that an attention weight is dropped in training, 0 <= dropout < 1.

    Raises:
        SpecError: a size is not a positive integer, does not divide, or contradicts another.

    >>> config = AttentionConfig(embed_dim=100, num_heads=5)
    >>> config.head_dim, config.num_kv_heads, config.softmax_scale == 20 ** -0.5
    (20, 5, True)
    >>> AttentionConfig(embed_dim=100, num_heads=3)
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: embed_dim must be divisible by num_heads unless head_dim is given. \
Got embed_dim=100, num_heads=3.
    """

    embed_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    query_dim: int
    key_dim: int
    value_dim: int
    output_dim: int
    bias: ProjectionBias
    score: ScoreName
    scale: float | None
    score_dim: int | None
    softcap: float | None
    projections: bool
    rotary: Rotary | None
    query_key_norm: QueryKeyNorm | None
    query_scale: QueryScale | None
    chunked_mask: ChunkedMask | None
    clip_qkv: float | None
    value_norm_eps: float | None
    value_scale: float | None
    dropout: float

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        query_dim: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        output_dim: int | None = None,
        bias: bool | Mapping[str, bool] | ProjectionBias = False,
        score: ScoreName = "scaled_dot",
        scale: float | None = None,
        score_dim: int | None = None,
        softcap: float | None = None,
        projections: bool = True,
        rotary: Rotary | Mapping[str, Any] | bool | None = None,
        query_key_norm: QueryKeyNorm | Mapping[str, Any] | str | None = None,
        query_scale: QueryScale | Mapping[str, Any] | bool | None = None,
        chunked_mask: ChunkedMask | Mapping[str, Any] | int | None = None,
        clip_qkv: float | None = None,
        value_norm_eps: float | None = None,
        value_scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        embed_dim = check_size("embed_dim", embed_dim)
        num_heads = check_size("num_heads", num_heads)
        num_kv_heads = check_size("num_kv_heads", num_kv_heads, default=num_heads)
        if num_heads % num_kv_heads:
            raise SpecError(
                f"num_heads must be divisible by num_kv_heads. Got num_heads={num_heads}, num_kv_heads={num_kv_heads}."
            )
        if head_dim is None and embed_dim % num_heads:
            raise SpecError(
                "embed_dim must be divisible by num_heads unless head_dim is given. "
                f"Got embed_dim={embed_dim}, num_heads={num_heads}."
            )
        head_dim = check_size("head_dim", head_dim, default=embed_dim // num_heads)
        if score not in SCORES:
            raise SpecError(f"score {score!r} is not known (known: {', '.join(SCORES)})")
        if scale is not None and score != "scaled_dot":
            raise SpecError(f"scale belongs to score='scaled_dot'. Got scale={scale!r} with score={score!r}.")
        if score_dim is not None and score != "additive":
            raise SpecError(f"score_dim belongs to score='additive'. Got score_dim={score_dim!r} with score={score!r}.")
        value_head_dim = check_size("value_head_dim", value_head_dim, default=head_dim)
        if not isinstance(projections, bool):
            raise SpecError(f"projections must be True or False. Got {projections!r}.")
        of_heads = {
            "query_dim": num_heads * head_dim,
            "key_dim": num_kv_heads * head_dim,
            "value_dim": num_kv_heads * value_head_dim,
            "output_dim": num_heads * value_head_dim,
        }
        given = {"query_dim": query_dim, "key_dim": key_dim, "value_dim": value_dim, "output_dim": output_dim}
        widths = {
            name: check_size(name, width, default=embed_dim if projections else of_heads[name])
            for name, width in given.items()
        }
        bias, turning, by_position = ProjectionBias.of(bias), Rotary.of(rotary), QueryScale.of(query_scale)
        if by_position is not None and by_position.rule is not None and turning is not None and turning.axes > 1:
            raise SpecError(f"query_scale.rule takes positions of one axis. Got rotary.sections={turning.sections}.")
        if not projections:
            _check_without_projections(widths, of_heads, bias)
        resolved = {
            "embed_dim": embed_dim,
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "value_head_dim": value_head_dim,
            **widths,
            "bias": bias,
            "score": score,
            "scale": None if scale is None else real("scale", scale),
            "score_dim": check_size("score_dim", score_dim, default=head_dim) if score == "additive" else None,
            "softcap": None if softcap is None else positive("softcap", softcap),
            "projections": projections,
            "rotary": turning and turning.within(head_dim),
            "query_key_norm": QueryKeyNorm.of(query_key_norm),
            "query_scale": by_position,
            "chunked_mask": ChunkedMask.of(chunked_mask),
            "clip_qkv": None if clip_qkv is None else positive("clip_qkv", clip_qkv),
            "value_norm_eps": None if value_norm_eps is None else positive("value_norm_eps", value_norm_eps),
            "value_scale": None if value_scale is None else not_zero("value_scale", value_scale),
            "dropout": check_dropout(dropout),
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """The fields without parts that the layer lacks; what is drawn for a config goes by it."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        said = (f"{name}={value!r}" for name, value in given.items() if not (name in PARTS and value is None))
        return f"AttentionConfig({', '.join(said)})"

    @property
    def softmax_scale(self) -> float:
        """The factor that a dot-product score is multiplied by: 1 unless score is "scaled_dot"."""
        if self.score != "scaled_dot":
            return 1.0
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def head_shapes(self) -> HeadShapes:
        """How many heads queries, keys and values have, and how wide each is."""
        return HeadShapes(
            (self.num_heads, self.head_dim),
            (self.num_kv_heads, self.head_dim),
            (self.num_kv_heads, self.value_head_dim),
        )

    @property
    def parts(self) -> tuple[str, ...]:
        """The fields of the parts that the layer has, of PARTS."""
        return tuple(name for name in PARTS if getattr(self, name) is not None)

    @property
    def norm_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names of the weights of the query-key norm, in order, with their shapes; none in a layer without one."""
        norm = self.query_key_norm
        return {} if norm is None else norm.weight_shapes(self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def norm_sizes(self) -> tuple[int, ...] | tuple[None, None]:
        """The sizes of the weights of `q_norm` and `k_norm`; None and None without them."""
        shapes = self.norm_shapes
        return (None, None) if not shapes else (shapes["q_norm.weight"][0], shapes["k_norm.weight"][0])

    def with_widths(self, query_dim: int | None, key_dim: int | None, value_dim: int | None) -> AttentionConfig:
        """This config with the input widths that a layer has inferred from its first call.

        Raises:
            SpecError: a width is None, which is how a layer says that it does not know it yet.
        """
        widths: dict[str, Any] = {"query_dim": query_dim, "key_dim": key_dim, "value_dim": value_dim}
        for name, width in widths.items():
            if width is None:
                raise SpecError(f"{name} is not known yet: give it to the layer, or call the layer once")
        return replace(self, **widths)

    def to_dict(self) -> dict[str, Any]:
        """Every field as a dict of JSON values, but for parts that the layer lacks; `from_dict` reads it back."""
        return {name: value for name, value in asdict(self).items() if not (name in PARTS and value is None)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AttentionConfig:
        """The config that `to_dict` described. Raises SpecError on an unknown or missing field.

        >>> config = AttentionConfig(8, 2, bias={"q_proj": True})
        >>> AttentionConfig.from_dict(config.to_dict()) == config
        True
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise SpecError(f"config has no field {unknown[0]!r} (known: {', '.join(known)})")
        missing = [name for name in ("embed_dim", "num_heads") if name not in data]
        if missing:
            raise SpecError(f"config lacks {missing[0]!r}; embed_dim and num_heads are required")
        return cls(**data)


def check_size(name: str, value: int | None, default: int | None = None) -> int:
    """Return `value`, or `default` for None, as an int if it is positive; raise SpecError otherwise."""
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise SpecError(f"{name} must be a positive integer. Got {value!r}.")
    size = int(value.__index__())  # type: ignore[union-attr]  # also NumPy's integers
    if size < 1:
        raise SpecError(f"{name} must be a positive integer. Got {size}.")
    return size


def _check_without_projections(widths: Mapping[str, int], of_heads: Mapping[str, int], bias: ProjectionBias) -> None:
    if bias != ProjectionBias():
        raise SpecError(f"bias belongs to projections. Got {bias!r} with projections=False.")
    for name, width in widths.items():
        if width != of_heads[name]:
            raise SpecError(
                f"{name} must be the width of the heads, {of_heads[name]}, without projections. Got {width}."
            )
