"""What a random problem is made of: choices with names, asked for one after another.

Two things are left to the caller. A `Space` says what there is to choose from: small sizes that are
easily shrunk (`SMALL`, of random cases), or whatever a correct implementation may meet (`WIDE`, of
calibration). A `Choose` says how one of the options is found: drawn, looked up, or simplified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mha_core import AttentionConfig
from mha_core.call.sizes import CallSizes
from mha_core.config import PROJECTIONS

Choose = Callable[[str, Sequence[Any]], Any]
"""(name of the choice, options, simplest first) -> one of the options."""

Made = Mapping[str, Any]
"""Name -> what was chosen, in the order in which the choices were made."""

Space = Mapping[str, Sequence[Any] | Callable[[Made], Sequence[Any]]]
"""Name of a choice -> its options, simplest first, or a function that gives them for the choices made so far.

Options that stand there more than once are as much more likely. A choice with a single option is made
without being asked for. Where there is a choice for each item of the batch, "*" stands for its number.
"""

ARRAYS = ("queries", "keys", "values", "cotangent", "past_keys", "past_values")
"""What numbers are drawn for, besides weights and mask."""

_SIZES = tuple(range(1, 10))

LARGE: Mapping[str, tuple[int, ...]] = {
    "d": (16, 32, 64, 65, 80, 128),
    "Lq": (16, 31, 64, 65, 100, 128, 129, 300),
    "Lk": (16, 31, 64, 65, 100, 128, 129, 200, 256, 257, 300),
}
"""Sizes that models have; one random case in ten is drawn from these too, see `conformance.cases.random`."""

_AXES = (None, None, "K", "QK", "BK", "HK", "BQK", "HQK", "BHQK")
_OFFSETS = tuple(sign * n for n in range(1, 10) for sign in (1, -1))


def lengths_up_to_all(made: Made) -> Sequence[int]:
    """How many keys an item or a query may attend to: all of them, or fewer."""
    return range(made["Lk"], -1, -1)


SMALL: Space = {
    "G": (1, 2, 3),
    "H/G": (1, 2, 3),
    "d": (*_SIZES, *LARGE["d"]),
    "score": ("scaled_dot", "scaled_dot", "dot", "additive"),
    "projections": (True,),
    **dict.fromkeys(("dv", "Dq", "Dk", "Dv", "Do", "S"), _SIZES),
    **dict.fromkeys((f"{name}.bias" for name in PROJECTIONS), (False, True)),
    "scale": (None, None, 0.5, 3.0, -1.0),
    "softcap": (None, None, None, 5.0, 0.7, 0.1),
    "dropout": (0.0, 0.0, 0.1, 0.5, 0.9),
    "split": (False,),
    "lengths": ("short",),
    "B": (*(1, 2, 3, 4, 5) * 3, 0),
    "Lq": (*_SIZES * 2, 0, *LARGE["Lq"]),
    "Lk": (*_SIZES * 2, 0, *LARGE["Lk"]),
    "past": (False, False, True),
    "Lp": lambda made: range(made["Lk"] + 1),
    "masked": (True,),
    "valid_lens": (None, None, "per item", "per query"),
    "valid_lens.*": lengths_up_to_all,
    "allowed": _AXES,
    "allowed.share": (0.8, 0.5, 0.2),
    "lone": (None,),
    "bias": _AXES,
    "bias.style": ("normal",),
    "bias.excludes": (False, True),
    "large bias": (None,),
    "large bias.size": (1e3,),
    "excluding bias": (None,),
    "causal": (False, True),
    "window": (False, False, True),
    "window.left": (None, *range(10)),
    "window.right": (None, *range(10)),
    "query_offset": (0, 0, 0, *_OFFSETS, "per item"),
    "query_offset.*": (0, *_OFFSETS),
    "padding is NaN": (False, True),
    "weights times": (1.0, 1.0, 0.1, 4.0),
    "weights.style": ("normal",),
    "weights.seed": (None,),
    "biases times": (1.0,),
    "inputs times": (1.0, 1.0, 0.03, 3.0),
    "cotangent times": (1.0,),
    "style": ("normal",),
    "style of *": ("normal",),
    "seed": range(1000),
}
"""Small sizes, or a few of `LARGE`, and every feature, with Gaussian numbers: what random cases are chosen from."""


@dataclass(frozen=True)
class MaskChoices:
    """The sources of a mask. Axes are letters of "BHQK": the others have size 1.

    Attributes:
        valid_lens: a number of keys per item (B,), or per query (B, Lq); None: no such source.
        allowed: axes of a random keep-mask, of which `allowed_share` is open.
        lone: axes along which the one open key differs from query to query.
        bias: axes of an additive bias of the style `bias_style`; `bias_excludes` puts -inf into three tenths of it.
        large_bias: axes of a bias of one size, `large_bias_size`, with either sign.
        excluding_bias: axes of a bias of zeros, with -inf in three tenths of it.
        causal, window, query_offset: as AttentionMask takes them; a list of offsets is one per item.
    """

    valid_lens: list[Any] | None = None
    allowed: str | None = None
    allowed_share: float = 1.0
    lone: str | None = None
    bias: str | None = None
    bias_style: str = "normal"
    bias_excludes: bool = False
    large_bias: str | None = None
    large_bias_size: float = 0.0
    excluding_bias: str | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    query_offset: int | list[int] = 0


@dataclass(frozen=True)
class NumberChoices:
    """What is to be known of the numbers in a problem's arrays.

    Attributes:
        weights_style, weights_times, biases_times: the style of matrices; a factor on all weights; one on biases.
        weights_seed, seed: of the generators of weights, and of everything else.
        inputs_times, cotangent_times: factors.
        styles: array -> its style.
    """

    weights_style: str
    weights_times: float
    biases_times: float
    weights_seed: int
    inputs_times: float
    cotangent_times: float
    styles: Mapping[str, str]
    seed: int


@dataclass(frozen=True)
class Description:
    """Everything that has been chosen for one problem.

    Attributes:
        config, sizes: the layer, and B, Lq, Lk and Lp of the call.
        split: whether inputs are given as heads already.
        mask, numbers: the rest.
        poison: whether keys that nobody attends to hold NaN.
    """

    config: AttentionConfig
    sizes: CallSizes
    split: bool
    mask: MaskChoices
    numbers: NumberChoices
    poison: bool


class Asker:
    """Asks for choices of a space, and remembers what was chosen.

    >>> ask = Asker(lambda name, options: options[-1], {"Lk": (1, 2), "Lp": lambda made: range(made["Lk"]), "B": (5,)})
    >>> ask("Lk"), ask("Lp"), ask("B")
    (2, 1, 5)
    """

    def __init__(self, choose: Choose, space: Space) -> None:
        self._choose, self._space = choose, space
        self.made: dict[str, Any] = {}

    def __call__(self, name: str, like: str = "") -> Any:
        """The choice `name`, among its options in the space, or among those of `like`."""
        options = self._space[like or name]
        if callable(options):  # asked for even if these choices leave one option: another time there are more
            self.made[name] = self._choose(name, options(self.made))
        else:
            self.made[name] = options[0] if len(options) == 1 else self._choose(name, options)
        return self.made[name]


def describe(choose: Choose, space: Space) -> Description:
    """Ask for everything that one problem needs.

    The order in which choices are asked for is part of the name of a random case: `random-SEED-INDEX`
    takes them from a stream. A new choice comes last, or has a single option in `SMALL`.

    >>> description = describe(lambda name, options: options[0], SMALL)
    >>> description.sizes.key_len, description.config.num_heads, description.mask.causal
    (1, 1, False)
    """
    ask = Asker(choose, space)
    config = _config(ask)
    split = not config.projections and ask("split")
    sizes = _sizes(ask)
    mask = _mask(ask, sizes) if ask("masked") else MaskChoices()
    poison = (mask.valid_lens is not None or mask.allowed is not None) and ask("padding is NaN")
    return Description(config, sizes, split, mask, _numbers(ask, config, sizes), poison)


def _config(ask: Asker) -> AttentionConfig:
    groups, per_group = ask("G"), ask("H/G")
    head_dim, score, projections = ask("d"), ask("score"), ask("projections")
    options: dict[str, Any] = {"value_head_dim": ask("dv"), "projections": projections}
    if projections:  # without them, widths are those of the heads
        options |= {f"{width}_dim": ask(f"D{width[0]}") for width in ("query", "key", "value", "output")}
        options["bias"] = {name: ask(f"{name}.bias") for name in PROJECTIONS}
    return AttentionConfig(
        groups * per_group * head_dim,
        groups * per_group,
        num_kv_heads=groups,
        score=score,
        scale=ask("scale") if score == "scaled_dot" else None,
        score_dim=ask("S") if score == "additive" else None,
        softcap=ask("softcap"),
        dropout=ask("dropout"),
        **options,
    )


def _sizes(ask: Asker) -> CallSizes:
    ask("lengths")  # on which the options of the next three may depend
    batch, query_len, key_len = ask("B"), ask("Lq"), ask("Lk")
    return CallSizes(batch, query_len, key_len, past_len=ask("Lp") if ask("past") else 0)


def _mask(ask: Asker, sizes: CallSizes) -> MaskChoices:
    items, queries = range(sizes.batch), range(sizes.query_len)
    lens: Any = ask("valid_lens")
    if lens == "per item":
        lens = [ask(f"valid_lens.{item}", "valid_lens.*") for item in items]
    elif lens == "per query":
        lens = [[ask(f"valid_lens.{item}.{query}", "valid_lens.*") for query in queries] for item in items]
    allowed, lone = ask("allowed"), ask("lone")
    bias, large, excluding = ask("bias"), ask("large bias"), ask("excluding bias")
    causal = ask("causal")
    window = (ask("window.left"), ask("window.right")) if ask("window") else None
    offset: Any = ask("query_offset") if causal or window is not None else 0
    if offset == "per item":
        offset = [ask(f"query_offset.{item}", "query_offset.*") for item in items]
    return MaskChoices(
        valid_lens=lens,
        allowed=allowed,
        allowed_share=ask("allowed.share") if allowed else 1.0,
        lone=lone,
        bias=bias,
        bias_style=ask("bias.style") if bias else "normal",
        bias_excludes=bool(bias) and ask("bias.excludes"),
        large_bias=large,
        large_bias_size=ask("large bias.size") if large else 0.0,
        excluding_bias=excluding,
        causal=causal,
        window=window,
        query_offset=offset,
    )


def _numbers(ask: Asker, config: AttentionConfig, sizes: CallSizes) -> NumberChoices:
    weights_times, inputs_times, seed = ask("weights times"), ask("inputs times"), ask("seed")
    weights_seed, one_style = ask("weights.seed"), ask("style")
    names = ARRAYS if sizes.past_len else ARRAYS[:4]
    return NumberChoices(
        weights_style=ask("weights.style"),
        weights_times=weights_times,
        biases_times=ask("biases times"),
        weights_seed=seed if weights_seed is None else weights_seed,
        inputs_times=inputs_times,
        # Between c and 1 / c small gradients may become 0.
        cotangent_times=ask("cotangent times") if config.softcap is not None else 1.0,
        styles={name: one_style or ask(f"style of {name}", "style of *") for name in names},
        seed=seed,
    )
