"""The query-key norm done wrong: what is divided by what, with which weights, and in which order."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Steps, Table, after, of_past, part, require
from conformance.zoo.parts.rotary import SIDES
from mha_core.parts.query_key_norm import NORMS, Normed, QueryKeyNorm, by_head, mean_axes, norm
from mha_core.parts.rotary import pairs
from mha_core.reference.backward import NORMED
from mha_core.reference.forward import normed
from mha_core.reference.state import State

BEGINS = ("norm-",)


@dataclass(frozen=True)
class Given:
    """A record of a norm's arguments: x (B, heads, L, d), weight and bias (or None), settings, and the run's State."""

    x: NDArray
    weight: NDArray | None
    bias: NDArray | None
    settings: QueryKeyNorm
    state: State

    def result(self, **changes: object) -> NDArray:
        """Return the reference's norm of `x` (B, heads, L, d), with fields of `settings` replaced by `changes`."""
        return norm(self.x, replace(self.settings, **changes), self.weight, self.bias).result  # type: ignore[arg-type]  # each change is of its field's type

    def finished(self, unit: NDArray) -> NDArray:
        """Return `unit` (x normalized, before weight and bias) times the weight, plus the bias."""
        scaled = unit if self.weight is None else (self.settings.offset + by_head(self.weight, self.x.shape)) * unit
        return scaled if self.bias is None else scaled + by_head(self.bias, self.x.shape)

    def centred(self, axes: tuple[int, ...]) -> NDArray:
        """Return x; in a layer norm, x minus its mean over these axes."""
        return self.x - (self.x.mean(axis=axes, keepdims=True) if self.settings.kind == "layer" else 0.0)


has_norm, settings_of = part("query_key_norm", QueryKeyNorm)


def steps_of(state: State, name: str, x: NDArray) -> Normed:
    """Return the steps (intermediate results) of the norm `name` applied to x. The layer must have this norm."""
    steps = normed(state, name, x)
    assert steps is not None
    return steps


def _places(side: str, order: str) -> tuple[str, str, str]:
    """The norm of a side, the step that it is applied to in this order, and the step that it gives."""
    name = NORMS[SIDES.index(side)]
    given, gradient = NORMED[order, name]
    return name, given, gradient.removeprefix("d_")


def _normed(
    change: Callable[[Given], NDArray],
    sides: tuple[str, ...] = SIDES,
    where: Callable[[QueryKeyNorm], bool] = lambda s: True,
) -> Steps:
    """`change(what the norm is made of)` in place of the norm of queries, of keys or of both, in either order."""

    def of(side: str, order: str) -> Steps:
        name, given, made = _places(side, order)

        def step(state: State, right: NDArray) -> NDArray:
            weight, bias = (state.parameters.get(f"{name}.{kind}") for kind in ("weight", "bias"))
            return change(Given(state[given], weight, bias, settings_of(state), state))

        return after(made, step, lambda s: has_norm(s) and settings_of(s).order == order and where(settings_of(s)))

    return {name: step for side in sides for order in ("before", "after") for name, step in of(side, order).items()}


def _in_order(order: str, side: str) -> Steps:
    """The step of a side that norms in this order, as if the config had the other."""
    name, given, made = _places(side, order)

    def step(state: State, right: NDArray) -> NDArray:
        x = state[given]
        return x if settings_of(state).order == order else steps_of(state, name, x).result

    return after(made, step, has_norm)


def _always(order: str, place: str, side: str) -> Steps:
    """The step of a side at one place, in a layer that norms in this order whatever its config says."""
    name, given, made = _places(side, place)

    def step(state: State, right: NDArray) -> NDArray:
        return steps_of(state, name, state[given]).result if place == order else state[given]

    return after(made, step, has_norm)


def _divided(factor: Callable[[NDArray, float], NDArray]) -> Callable[[Given], NDArray]:
    """Divided by another size: `factor(mean square, eps)` in place of 1 / sqrt(mean square + eps)."""

    def change(given: Given) -> NDArray:
        axes = mean_axes(given.settings)
        centred = given.centred(axes)
        return given.finished(centred * factor(_mean_square(given, centred, axes), given.settings.eps))

    return change


Square = Callable[[Given, NDArray, tuple[int, ...]], NDArray]
"""(what the norm is made of, x less its mean, the axes of the mean) -> what stands for the mean square."""


def _mean_square(given: Given, centred: NDArray, axes: tuple[int, ...]) -> NDArray:
    return np.square(centred).mean(axis=axes, keepdims=True)


def _sum_of_squares(given: Given, centred: NDArray, axes: tuple[int, ...]) -> NDArray:
    return np.square(centred).sum(axis=axes, keepdims=True)


def _unbiased(given: Given, centred: NDArray, axes: tuple[int, ...]) -> NDArray:
    count = int(np.prod([centred.shape[axis] for axis in axes]))
    require(count > 1, "one channel has no unbiased variance")
    return _sum_of_squares(given, centred, axes) / (count - 1)


def _square_of_turning(given: Given, centred: NDArray, axes: tuple[int, ...]) -> NDArray:
    """The mean square of the channels that turn, for all of a head."""
    rotary = given.state.config.rotary
    require(rotary is not None, "only some channels turn in a layer with rotary positions alone")
    assert rotary is not None
    return _mean_square(given, np.concatenate(pairs(given.x, rotary), axis=-1), axes)


def _by_root(
    square: Square = _mean_square, axes: Callable[[Given], tuple[int, ...]] = lambda given: mean_axes(given.settings)
) -> Callable[[Given], NDArray]:
    """Divided by the root of `square` plus eps; the means over these axes of (B, heads, L, d)."""

    def change(given: Given) -> NDArray:
        centred = given.centred(axes(given))
        return given.finished(centred / np.sqrt(square(given, centred, axes(given)) + given.settings.eps))

    return change


def _in_float32(given: Given) -> NDArray:
    axes = mean_axes(given.settings)
    x = given.centred(axes).astype(np.float32)
    square = np.square(x).mean(axis=axes, keepdims=True)
    return given.finished((x / np.sqrt(square + np.float32(given.settings.eps))).astype(np.float64))


def _weight(change: Callable[[Given, NDArray], NDArray]) -> Callable[[Given], NDArray]:
    """`change(what the norm is made of, weight)` in place of the weight, where there is one."""

    def changed(given: Given) -> NDArray:
        if given.weight is None:
            return given.result()
        return replace(given, weight=change(given, given.weight)).result()

    return changed


def _weight_of_queries(given: Given, weight: NDArray) -> NDArray:
    other: NDArray = given.state.parameters["q_norm.weight"]
    return other[: weight.shape[0]]


def _of_head_0(given: Given, weight: NDArray) -> NDArray:
    return np.tile(weight[: given.x.shape[3]], weight.shape[0] // given.x.shape[3])


def _weight_first(given: Given) -> NDArray:
    if given.weight is None:
        return given.result()
    scale = given.settings.offset + by_head(given.weight, given.x.shape)
    unweighted = replace(given, x=given.x * scale, weight=None, bias=None)
    unit = unweighted.result(offset=0, bias=False, weight="none")
    return unit if given.bias is None else unit + by_head(given.bias, given.x.shape)


def _values_too(state: State, right: NDArray) -> NDArray:
    settings = settings_of(state)
    return norm(right, replace(settings, weight="none", bias=False, offset=0), None, None).result


def _is_per_head(settings: QueryKeyNorm) -> bool:
    return settings.weight == "per_head"


_row = Table("queries", "Divide queries and new keys by sqrt(mean(x ** 2) + eps), over the channels of a head.")
_scope = Table(
    "queries", "The mean is over a head, or over all heads of a token where scope says so, and nothing else."
)
_order = Table("queries", "Norm before the rotation, or after it where order says so.")
_own = Table(
    "keys", "Queries have q_norm.weight, keys k_norm.weight: element h * d + i is that of channel i of head h."
)
_scale = Table("queries", "Multiply by weight, or by 1 + weight where offset is 1, and then add the bias.")

SIZE = (
    _row(
        "norm-ignored",
        "Queries and keys are not normed.",
        _normed(lambda given: given.x),
        seen_in="vllm-project/vllm-metal#659",
    ),
    _row(
        "norm-of-keys-missing",
        "Queries are normed, keys are not.",
        _normed(lambda given: given.x, ("keys",)),
        stage="keys",
        seen_in="kyegomez/MegaVIT#17",
    ),
    _row(
        "norm-of-values-too",
        "Values are normed as well.",
        after("projected_values", _values_too, has_norm),
        stage="values",
        fix="Norm queries and keys alone.",
        seen_in="kyegomez/MegaVIT#17",
    ),
    _row(
        "norm-of-past-too",
        "Keys of the past are normed once more.",
        of_past("keys", lambda s, past: steps_of(s, "k_norm", past).result, has_norm),
        stage="keys",
        fix="Norm the new keys: a cache holds keys that are normed.",
    ),
    _row(
        "norm-kind-exchanged",
        "The mean is taken away where it should stay, or stays where it should be taken away.",
        _normed(lambda given: given.result(kind="rms" if given.settings.kind == "layer" else "layer")),
    ),
    *(
        _row(
            f"norm-always-{kind}",
            f"The norm is always that of kind {kind!r}, whatever the layer says.",
            _normed(lambda given, kind=kind: given.result(kind=kind), where=lambda s, kind=kind: s.kind != kind),  # type: ignore[misc]
        )
        for kind in ("rms", "layer")
    ),
    *(
        _row(
            f"norm-eps-always-{eps:g}",
            f"eps is always {eps:g}, whatever the layer says.",
            _normed(lambda given, eps=eps: given.result(eps=eps), where=lambda s, eps=eps: s.eps != eps),  # type: ignore[misc]
        )
        for eps in (1e-5, 1e-6)
    ),
    _row(
        "norm-eps-outside",
        "eps is added to the root, not under it.",
        _normed(_divided(lambda square, eps: 1.0 / (np.sqrt(square) + eps))),
    ),
    _row(
        "norm-eps-missing",
        "eps is left out.",
        _normed(_divided(lambda square, eps: 1.0 / np.sqrt(np.maximum(square, 1e-300)))),
    ),
    _row(
        "norm-eps-as-floor",
        "eps is the least that the mean square can be, and is not added.",
        _normed(_divided(lambda square, eps: 1.0 / np.sqrt(np.maximum(square, eps)))),
    ),
    _row(
        "norm-by-length",
        "Heads are divided by their length: by the root of the sum, not of the mean.",
        _normed(_by_root(_sum_of_squares)),
    ),
    _row(
        "norm-square-missing",
        "Heads are divided by their mean square, without the root.",
        _normed(_divided(lambda square, eps: 1.0 / (square + eps))),
    ),
    _row("norm-unbiased", "The mean square divides by one channel less.", _normed(_by_root(_unbiased))),
    _row("norm-in-float32", "The norm is computed in float32 in a float64 layer.", _normed(_in_float32)),
)

SCOPE = (
    _scope(
        "norm-scope-exchanged",
        "The mean is over all heads of a token where it should be over one, and the other way round.",
        _normed(_by_root(axes=lambda given: (3,) if given.settings.scope == "all" else (1, 3))),
    ),
    *(
        _scope(
            f"norm-always-over-{words}",
            f"The mean is always over {words.replace('-', ' ')}, whatever the layer says.",
            _normed(_by_root(axes=lambda given, axes=axes: axes), where=lambda s, scope=scope: s.scope != scope),  # type: ignore[misc]
        )
        for scope, words, axes in (("head", "one-head", (3,)), ("all", "all-heads", (1, 3)))
    ),
    _scope("norm-over-positions", "The mean is over positions.", _normed(_by_root(axes=lambda given: (2,)))),
    _scope(
        "norm-of-turning-channels",
        "The mean is of the channels that turn alone.",
        _normed(_by_root(_square_of_turning)),
    ),
    *(
        _order(
            f"norm-always-{order}",
            f"The norm is always {order} the rotation, whatever the layer says.",
            *(_always(order, place, side) for place in ("before", "after") for side in SIDES),
        )
        for order in ("before", "after")
    ),
    _order(
        "norm-order-exchanged",
        "The norm is after the rotation where it should be before, and the other way round.",
        *(_in_order(order, side) for order in ("before", "after") for side in SIDES),
        seen_in="meta-pytorch/torchtune#2809, vllm-project/vllm-metal#660",
    ),
)

WEIGHTS = (
    _scale(
        "norm-weight-ignored",
        "The weight is not applied.",
        _normed(_weight(lambda given, weight: np.full_like(weight, given.settings.start))),
        seen_in="lucidrains/x-transformers#352",
    ),
    _scale(
        "norm-weight-without-one",
        "1 + weight is read as the weight.",
        _normed(lambda given: given.result(offset=0), where=lambda s: s.offset == 1),
        seen_in="linkedin/Liger-Kernel#74, NeuraLegion/shainet#176",
    ),
    _scale(
        "norm-weight-plus-one",
        "The weight is read as 1 + weight.",
        _normed(lambda given: given.result(offset=1), where=lambda s: s.offset == 0 and s.weight != "none"),
        seen_in="utensils/mold#1074",
    ),
    _scale("norm-weight-first", "The weight is applied before the norm.", _normed(_weight_first)),
    _scale(
        "norm-bias-missing",
        "The bias of the norm is not added.",
        _normed(lambda given: replace(given, bias=None).result(), where=lambda s: s.bias),
    ),
    _own(
        "norm-weight-of-queries-for-keys",
        "Keys are multiplied by the weight of queries.",
        _normed(_weight(_weight_of_queries), ("keys",)),
    ),
    _own(
        "norm-weight-of-first-head",
        "Every head is multiplied by the weight of head 0.",
        _normed(_weight(_of_head_0), where=_is_per_head),
        stage="queries",
    ),
    _own(
        "norm-weight-channel-first",
        "A weight of each head is read as (d, H) in place of (H, d).",
        _normed(_weight(lambda given, weight: weight.reshape(given.x.shape[3], -1).T.reshape(-1)), where=_is_per_head),
        stage="queries",
    ),
)

BUGS = (*SIZE, *SCOPE, *WEIGHTS)
