"""Layout: the names and shapes of one kind of layer's weights, and their conversion to canonical ones and back.

A layout describes another project's layer, in NumPy alone: it moves numbers and never changes one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Set

import numpy as np
from numpy.typing import NDArray

from mha_core import features
from mha_core.config import PROJECTIONS, AttentionConfig
from mha_core.dtypes import divisors
from mha_core.errors import SpecError, listed
from mha_core.weights import CheckedWeights, Weights, check_weights, weight_shapes

Shapes = Mapping[str, tuple[int, ...]]


class Layout(ABC):
    """One layout: a framework's names and shapes of a layer's arrays, such as "in_proj_weight" or "query/kernel".

    Attributes:
        name: its name for `mha convert --from`.
        summary: whose layout it is, in a line.
        separator: the text between the components of a name, and between a layer's prefix and the name.
        required: names of arrays that every layer of this layout has; the output projection's array is the last.
        optional: names of arrays that it may have besides; the output projection's array is the last.
        foreign: names that rule this layout out: they belong to another layout with the same required names.
        framework: the name of the backend whose framework has the layer; "" for none.
        carries_heads: whether the arrays' shapes say how many heads there are.
    """

    name: str
    summary: str
    separator: str = "."
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    framework: str = ""
    carries_heads: bool = False

    @abstractmethod
    def read(
        self, arrays: Mapping[str, NDArray], *, num_heads: int | None = None, num_kv_heads: int | None = None
    ) -> tuple[AttentionConfig, Weights]:
        """Return config and canonical weights of one layer; copies, in the arrays' dtype.

        Args:
            arrays: relative name -> array of the layer; an array of any other name is refused.
            num_heads: H. Required unless `carries_heads` is True; then it may be None, but must agree with the shapes.
            num_kv_heads: G. Default: H, or what the shapes say.

        Raises:
            SpecError: an array is missing, unknown, or of a shape that fits no such layer.
        """

    @abstractmethod
    def write(self, config: AttentionConfig, weights: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """Return the layer's arrays by relative name; copies, in the weights' dtype.

        A layer that has one switch for several biases gets zeros for those that the config does not have.

        Raises:
            SpecError: the weights do not fit the config, or such a layer can't hold them; the message says why.
        """

    def find(self, names: Iterable[str]) -> list[str]:
        """Return the prefixes of all layers that have every required array in `names`; "" is the top level.

        >>> from mha_core.layouts import get
        >>> get("torch").find(["encoder.attn.in_proj_weight", "encoder.attn.out_proj.weight", "fc.weight"])
        ['encoder.attn']
        """
        return [prefix for prefix, missing in self.places(names).items() if not missing]

    def places(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return prefix of a layer -> the required arrays that `names` lacks there; () for a complete layer.

        A prefix is listed if it has any array of the projections of queries, keys and values, even a bias. An output
        projection alone does not count, because other modules have such names too.

        >>> from mha_core.layouts import get
        >>> get("torch-separate").places(["0.q_proj_weight", "0.v_proj_weight", "0.out_proj.weight", "out_proj.weight"])
        {'0': ('k_proj_weight',)}
        """
        there = names if isinstance(names, (Mapping, Set)) else dict.fromkeys(names)
        endings = {own: self.separator + own for own in (*self.required[:-1], *self.optional[:-1])}
        any_ending = tuple(endings.values())
        found: dict[str, tuple[str, ...]] = {}
        for name in there:
            if not name.endswith(any_ending) and name not in endings:
                continue
            for own, ending in endings.items():
                # What begins with the separator has no prefix that could be named.
                if name != own and not (name.endswith(ending) and len(name) > len(ending)):
                    continue
                prefix = name.removesuffix(own).removesuffix(self.separator)
                start = name.removesuffix(own)
                if prefix not in found and not any(start + other in there for other in self.foreign):
                    found[prefix] = tuple(other for other in self.required if start + other not in there)
        return found

    def names_of(self, prefix: str, names: Iterable[str]) -> dict[str, str]:
        """Return relative name -> full name of the layer's arrays at `prefix`. `names` should be a mapping or a set."""
        start = prefix + self.separator if prefix else ""
        there = names if isinstance(names, (Mapping, Set)) else set(names)
        wanted = (*self.required, *self.optional)
        return {name: start + name for name in wanted if start + name in there}

    def fits(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Return whether the matrices in `shapes` (relative name -> shape) have 2 axes, or 3 if `carries_heads`."""
        wanted = 3 if self.carries_heads else 2
        return all(len(shapes[name]) == wanted for name in self.required if name in shapes)

    def _check_names(self, arrays: Mapping[str, NDArray]) -> None:
        missing = [name for name in self.required if name not in arrays]
        if missing:
            raise SpecError(f"layout {self.name!r} needs {missing[0]!r} (it needs: {', '.join(self.required)})")
        known = (*self.required, *self.optional)
        extra = [name for name in arrays if name not in known]
        if extra:
            raise SpecError(f"layout {self.name!r} has no array {extra[0]!r} (it has: {', '.join(known)})")


def heads_or_error(layout: Layout, num_heads: int | None) -> int:
    """Return `num_heads`. SpecError if it is below 1, or None: arrays of this layout don't show the number of heads."""
    if num_heads is None:
        raise SpecError(f"layout {layout.name!r} does not say how many heads there are; give num_heads (--num-heads)")
    if num_heads < 1:
        raise SpecError(f"num_heads must be at least 1. Got {num_heads}.")
    return num_heads


def config_of(weights: Mapping[str, NDArray], *, num_heads: int, num_kv_heads: int | None = None) -> AttentionConfig:
    """Return the config of canonical weights; all sizes except the number of heads follow from the shapes.

    Raises:
        SpecError: the rows can't be split into that many heads, or the shapes contradict each other.

    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(12, 4, num_kv_heads=2, bias=True)
    >>> config_of(init_weights(config, seed=0), num_heads=4) == config
    True
    """
    matrices = {}
    for projection in PROJECTIONS:
        matrix = np.asarray(weights[f"{projection}.weight"])
        if matrix.ndim != 2:
            raise SpecError(f"{projection}.weight must be a matrix. Got shape {matrix.shape}.")
        matrices[projection] = matrix.shape
    head_dim = _per_head("q_proj.weight", matrices["q_proj"][0], "num_heads", num_heads)
    if matrices["k_proj"][0] % head_dim:
        raise SpecError(
            f"k_proj.weight must have a multiple of head_dim={head_dim} rows. Got {matrices['k_proj'][0]} "
            f"with num_heads={num_heads}."
        )
    groups = matrices["k_proj"][0] // head_dim
    if num_kv_heads is not None and num_kv_heads != groups:
        raise SpecError(f"num_kv_heads must be {groups}, the rows of k_proj.weight over head_dim. Got {num_kv_heads}.")
    config = AttentionConfig(
        matrices["out_proj"][0],
        num_heads,
        num_kv_heads=groups,
        head_dim=head_dim,
        value_head_dim=_per_head("v_proj.weight", matrices["v_proj"][0], "num_kv_heads", groups),
        query_dim=matrices["q_proj"][1],
        key_dim=matrices["k_proj"][1],
        value_dim=matrices["v_proj"][1],
        output_dim=matrices["out_proj"][0],
        bias={projection: f"{projection}.bias" in weights for projection in PROJECTIONS},
    )
    check_weights(config, weights)
    return config


COUNTS_SHOWN = 12
"""Most numbers of heads that a message lists."""


def _per_head(name: str, rows: int, label: str, heads: int) -> int:
    if heads < 1 or rows < 1 or rows % heads:
        fitting = listed([str(count) for count in divisors(rows)], COUNTS_SHOWN)
        which = f", which {fitting} divide" if rows > 1 else ""
        raise SpecError(f"{name} must have rows for {label}={heads} heads of one width. Got {rows} rows{which}.")
    return rows // heads


def copied(config: AttentionConfig, weights: Mapping[str, NDArray]) -> Weights:
    """Return contiguous, read-only copies of weights that `config_of` checked, in canonical order."""
    arrays = {name: np.array(weights[name], order="C") for name in weight_shapes(config)}
    for array in arrays.values():
        array.flags.writeable = False
    return CheckedWeights(config, arrays)


def plain_score(layout: Layout, config: AttentionConfig) -> None:
    """Raise SpecError if the config has a setting, such as a softcap, that layers of this layout do not have."""
    for feature in features.FEATURES:
        why_not = feature.why_no_layout(config)
        if why_not is not None:
            raise SpecError(f"layout {layout.name!r} {why_not}")


def as_many_key_heads(layout: Layout, config: AttentionConfig) -> None:
    """Raise SpecError unless the config has as many key heads as query heads, as all layers of this layout do."""
    if config.num_kv_heads != config.num_heads:
        raise SpecError(
            f"layout {layout.name!r} has as many key heads as query heads. "
            f"Got num_heads={config.num_heads}, num_kv_heads={config.num_kv_heads}."
        )


def zero_filled(config: AttentionConfig, weights: Mapping[str, NDArray], *projections: str) -> list[NDArray] | None:
    """Return the biases of `projections`, with zeros for missing ones; None if all are missing."""
    if not any(f"{projection}.bias" in weights for projection in projections):
        return None
    found = []
    for projection in projections:
        matrix = weights[f"{projection}.weight"]
        found.append(weights.get(f"{projection}.bias", np.zeros(matrix.shape[0], matrix.dtype)))
    return found


def canonical_gradients(
    layout: Layout, config: AttentionConfig, gradients: Mapping[str, NDArray]
) -> dict[str, NDArray]:
    """Return copies of the gradients with canonical names, order and shapes, in their own dtype.

    Gradients may have NaN or infinity, which layouts refuse. So the layout reads arrays of element numbers, and its
    result tells where each gradient belongs. Gradients of biases that the config lacks are dropped.

    Args:
        config: the config of the weights from which the layer was made.
        gradients: relative name -> gradient, for each of the layer's arrays.

    Raises:
        SpecError: an array is missing, unknown, or fits no such layer; or a shape is not what `config` says.

    >>> import numpy as np
    >>> from mha_core import AttentionConfig
    >>> from mha_core.layouts import get
    >>> gradients = {"in_proj_weight": np.arange(12.0).reshape(6, 2), "out_proj.weight": np.full((2, 2), np.nan)}
    >>> found = canonical_gradients(get("torch"), AttentionConfig(2, 1), gradients)
    >>> found["k_proj.weight"].tolist(), found["out_proj.weight"].tolist()
    ([[4.0, 5.0], [6.0, 7.0]], [[nan, nan], [nan, nan]])
    """
    arrays = {name: np.asarray(gradient) for name, gradient in gradients.items()}
    places, start = {}, 0
    for name, array in arrays.items():
        # float64, as weights may be; it holds every whole number up to 2**53.
        places[name] = np.arange(start, start + array.size, dtype=np.float64).reshape(array.shape)
        start += array.size
    _, moved = layout.read(places, num_heads=config.num_heads, num_kv_heads=config.num_kv_heads)
    flat = np.concatenate([array.ravel() for array in arrays.values()])
    found = {}
    for name, shape in weight_shapes(config).items():
        if name not in moved or moved[name].shape != shape:
            given = f"shape {moved[name].shape}" if name in moved else "none"
            raise SpecError(f"the gradient of {name} must have shape {shape}, as this config says. Got {given}.")
        found[name] = flat[moved[name].astype(np.int64)]
    return found
