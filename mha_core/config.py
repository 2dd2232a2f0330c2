"""AttentionConfig: every size and choice of one multi-head attention layer, validated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args, overload

from mha_core.dtypes import check_dropout, positive, real
from mha_core.errors import SpecError
from mha_core.heads import HeadShapes
from mha_core.parts import PARTS
from mha_core.parts.query_key_norm import QueryKeyNorm
from mha_core.parts.rotary import Rotary

ScoreName = Literal["scaled_dot", "dot", "additive"]
SCORES: tuple[str, ...] = get_args(ScoreName)

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
"""The four projections, in canonical order."""


@dataclass(frozen=True)
class ProjectionBias:
    """A choice for each of the four projections: whether it adds a bias.

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
        """Return a ProjectionBias made from one bool for all four, or from projection -> bool. SpecError otherwise."""
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


Said = TypeVar("Said")
Kept = TypeVar("Kept")


class Given(Generic[Said, Kept]):
    """A type for config fields. A field `Given[int | None, int]` can be set to an int or None, and is read as an int.

    Type checkers take it for a descriptor. At run time it has no effect: the field holds the value itself.
    """

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> Said: ...
        @overload
        def __get__(self, instance: object, owner: type) -> Kept: ...
        def __get__(self, instance: object, owner: type) -> Any: ...
        def __set__(self, instance: object, value: Said) -> None: ...


Size = Given[int | None, int]
BY_DEFAULT: Any = None
"""The default of a field that follows from the others, or of a choice that the layer does not make."""


@dataclass(frozen=True, repr=False)
class AttentionConfig:
    """A description of a multi-head attention layer by its sizes and settings. Frozen; validated when it is made.

    Only `embed_dim` and `num_heads` are required. With `H = num_heads`, `G = num_kv_heads`,
    `d = head_dim` and `dv = value_head_dim`, the layer maps queries (B, Lq, query_dim), keys
    (B, Lk, key_dim) and values (B, Lk, value_dim) to an output (B, Lq, output_dim).

    Args:
        embed_dim: default of the four widths below (`query_dim` and so on), and of `head_dim * num_heads`.
        num_heads: H, the number of query heads.
        num_kv_heads: G, the number of key and value heads; divides H. Default: H. Query head h
            reads key/value head h // (H // G) (grouped-query attention, arXiv:2305.13245).
        head_dim: d, width of a query or key head. Default: embed_dim / num_heads, which must divide.
        value_head_dim: dv, width of a value head. Default: head_dim.
        query_dim, key_dim, value_dim, output_dim: input and output widths. Default: embed_dim.
        bias: one bool for all four projections, or a choice for each (see ProjectionBias).
        score: "scaled_dot" (q.k * scale), "dot" (q.k), or "additive" (w . tanh(A q + C k), arXiv:1409.0473).
        scale: factor of "scaled_dot". Default: 1 / sqrt(head_dim) (arXiv:1706.03762, section 3.2.1).
        score_dim: S, width of the additive score's hidden layer. Default: head_dim. Only "additive".
        softcap: c, which bounds the scores smoothly: c * tanh(score / c), after scaling and before the
            additive bias and exclusion. Default: none.
        projections: False for a layer without the four projections, whose queries, keys and values are
            the heads already, merged (B, L, H * d) or split (B, H, L, d), and whose output is the heads
            merged. It has no biases, and its widths are those of the heads.
        rotary: how queries and keys turn with their positions: `mha_core.Rotary`, a mapping of its fields, or True
            for its defaults. Default: not at all.
        query_key_norm: how queries and keys are normed: `mha_core.QueryKeyNorm`, a mapping of its fields, or a kind.
            Default: not at all.
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
    _: KW_ONLY
    num_kv_heads: Size = BY_DEFAULT
    head_dim: Size = BY_DEFAULT
    value_head_dim: Size = BY_DEFAULT
    query_dim: Size = BY_DEFAULT
    key_dim: Size = BY_DEFAULT
    value_dim: Size = BY_DEFAULT
    output_dim: Size = BY_DEFAULT
    bias: Given[bool | Mapping[str, bool] | ProjectionBias, ProjectionBias] = False  # type: ignore[assignment]
    score: ScoreName = "scaled_dot"
    scale: float | None = None
    score_dim: int | None = None
    softcap: float | None = None
    projections: bool = True
    rotary: Given[Rotary | Mapping[str, Any] | bool | None, Rotary | None] = BY_DEFAULT
    query_key_norm: Given[QueryKeyNorm | Mapping[str, Any] | str | None, QueryKeyNorm | None] = BY_DEFAULT
    dropout: float = 0.0

    def __post_init__(self) -> None:
        def keep(name: str, value: Any) -> Any:
            object.__setattr__(self, name, value)  # the dataclass is frozen
            return value

        def size(name: str, default: int | None = None) -> int:
            made: int = keep(name, check_size(name, getattr(self, name), default))
            return made

        embed_dim, num_heads = size("embed_dim"), size("num_heads")
        num_kv_heads = size("num_kv_heads", default=num_heads)
        if num_heads % num_kv_heads:
            raise SpecError(
                f"num_heads must be divisible by num_kv_heads. Got num_heads={num_heads}, num_kv_heads={num_kv_heads}."
            )
        if self.head_dim is None and embed_dim % num_heads:
            raise SpecError(
                "embed_dim must be divisible by num_heads unless head_dim is given. "
                f"Got embed_dim={embed_dim}, num_heads={num_heads}."
            )
        head_dim = size("head_dim", default=embed_dim // num_heads)
        value_head_dim = size("value_head_dim", default=head_dim)
        if not isinstance(self.projections, bool):
            raise SpecError(f"projections must be True or False. Got {self.projections!r}.")
        of_heads = {
            "query_dim": num_heads * head_dim,
            "key_dim": num_kv_heads * head_dim,
            "value_dim": num_kv_heads * value_head_dim,
            "output_dim": num_heads * value_head_dim,
        }
        for name, width in of_heads.items():
            size(name, default=embed_dim if self.projections else width)
        keep("bias", ProjectionBias.of(self.bias))
        if not self.projections:
            self._check_without_projections(of_heads)
        self._check_score()
        if self.score == "additive":
            size("score_dim", default=head_dim)
        for name, check in (("scale", real), ("softcap", positive)):
            if getattr(self, name) is not None:
                keep(name, check(name, getattr(self, name)))
        keep("dropout", check_dropout(self.dropout))
        if self.rotary is not None:
            rotary = Rotary.of(self.rotary)
            keep("rotary", rotary and rotary.within(head_dim))
        if self.query_key_norm is not None:
            keep("query_key_norm", QueryKeyNorm.of(self.query_key_norm))

    def _check_score(self) -> None:
        if self.score not in SCORES:
            raise SpecError(f"score {self.score!r} is not known (known: {', '.join(SCORES)})")
        for name, score in (("scale", "scaled_dot"), ("score_dim", "additive")):
            given = getattr(self, name)
            if given is not None and self.score != score:
                raise SpecError(f"{name} belongs to score={score!r}. Got {name}={given!r} with score={self.score!r}.")

    def _check_without_projections(self, of_heads: Mapping[str, int]) -> None:
        if self.bias != ProjectionBias():
            raise SpecError(f"bias belongs to projections. Got {self.bias!r} with projections=False.")
        for name, width in of_heads.items():
            if getattr(self, name) != width:
                raise SpecError(
                    f"{name} must be the width of the heads, {width}, without projections. Got {getattr(self, name)}."
                )

    def __repr__(self) -> str:
        """The fields without parts that the layer lacks; what is drawn for a config goes by it."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        said = (f"{name}={value!r}" for name, value in given.items() if not (name in PARTS and value is None))
        return f"AttentionConfig({', '.join(said)})"

    @property
    def softmax_scale(self) -> float:
        """Return the factor that a dot-product score is multiplied by: 1 unless score is "scaled_dot"."""
        if self.score != "scaled_dot":
            return 1.0
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def head_shapes(self) -> HeadShapes:
        """Return the HeadShapes of the layer: (number, width) of its query heads, key heads and value heads."""
        return HeadShapes(
            (self.num_heads, self.head_dim),
            (self.num_kv_heads, self.head_dim),
            (self.num_kv_heads, self.value_head_dim),
        )

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the optional parts that the layer has, such as "rotary"; PARTS lists all."""
        return tuple(name for name in PARTS if getattr(self, name) is not None)

    @property
    def norm_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name -> shape, in order, for the weights of the query-key norm; {} in a layer without one."""
        norm = self.query_key_norm
        return {} if norm is None else norm.weight_shapes(self.num_heads, self.num_kv_heads, self.head_dim)

    @property
    def norm_sizes(self) -> tuple[int, ...] | tuple[None, None]:
        """Return the lengths of the weight vectors of q_norm and k_norm; (None, None) in a layer without them."""
        shapes = self.norm_shapes
        return (None, None) if not shapes else (shapes["q_norm.weight"][0], shapes["k_norm.weight"][0])

    def with_widths(self, query_dim: int | None, key_dim: int | None, value_dim: int | None) -> AttentionConfig:
        """Return this config with the input widths that a layer has inferred from its first call.

        Raises:
            SpecError: a width is None, because the layer has not been called yet.
        """
        widths: dict[str, Any] = {"query_dim": query_dim, "key_dim": key_dim, "value_dim": value_dim}
        for name, width in widths.items():
            if width is None:
                raise SpecError(f"{name} is not known yet: give it to the layer, or call the layer once")
        return replace(self, **widths)

    def to_dict(self) -> dict[str, Any]:
        """Return field -> JSON value, without optional parts that the layer lacks; `from_dict` reads it back."""
        return {name: value for name, value in asdict(self).items() if not (name in PARTS and value is None)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AttentionConfig:
        """Return the config from the result of `to_dict`. Raises SpecError on an unknown or missing field.

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
