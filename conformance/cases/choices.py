"""What a random problem is made of: choices with names, asked for one after another.

`SMALL` says what there is to choose from. How one of the options is found, drawn, looked up or simplified, is left to
the caller: a `Choose`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mha_core import AttentionConfig, QueryKeyNorm, Rotary
from mha_core.call.arguments import CallSizes
from mha_core.config import PROJECTIONS

Choose = Callable[[str, Sequence[Any]], Any]
"""(name of the choice, options, simplest first) -> one of the options."""

Made = Mapping[str, Any]
"""Name -> what was chosen, in the order in which the choices were made."""

Space = Mapping[str, Sequence[Any] | Callable[[Made], Sequence[Any]]]
"""Name of a choice -> its options, simplest first, or a function that gives them for the choices made so far.

Options that stand there more than once are as much more likely. Where there is a choice for each item of the batch, "*"
stands for its number.
"""

PARTS = ("rotary", "norm")
"""The choices of whether there is a part of attention, which come last. One that a case does not have draws nothing."""

_SIZES = tuple(range(1, 10))

LARGE: Mapping[str, tuple[int, ...]] = {
    "d": (16, 32, 64, 65, 80, 128),
    "Lq": (16, 31, 64, 65, 100, 128, 129, 300),
    "Lk": (16, 31, 64, 65, 100, 128, 129, 200, 256, 257, 300),
}
"""Sizes that models have; one random case in ten is drawn from these too, see `conformance.cases.random`."""

# Axes of a mask are letters of "BHQK"; the others have size 1.
_AXES = (None, None, "K", "QK", "BK", "HK", "BQK", "HQK", "BHQK")
_OFFSETS = tuple(sign * n for n in range(1, 10) for sign in (1, -1))


RULES_OF_CASES: Mapping[str, Mapping[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0, "max_position_embeddings": 8},
    "llama3": {
        **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 16,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32, "truncate": False},
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 8},  # its lists: `_rule`
    "proportional": {"partial_rotary_factor": 0.5},
}
"""The rules of frequencies that are chosen from, by their rope_type, and their fields: short lengths meet them all."""


def ways_to_stand(made: Made) -> Sequence[str]:
    """Return the options for how calls give rotary positions. They include "counted" if no offset in `made` is < 0."""
    offsets = [value for name, value in made.items() if name.startswith("query_offset")]
    is_negative = any(value != "per item" and value < 0 for value in offsets)
    of_all = () if made.get("rotary.sections") else ("positions", "tables")
    given = (*of_all, "positions per item", "tables per item")
    return given if is_negative else ("counted", *given)


SMALL: Space = {
    "G": (1, 2, 3),
    "H/G": (1, 2, 3),
    "d": (*_SIZES, *LARGE["d"]),
    "score": ("scaled_dot", "scaled_dot", "dot", "additive"),
    **dict.fromkeys(("dv", "Dq", "Dk", "Dv", "Do", "S"), _SIZES),
    **dict.fromkeys((f"{name}.bias" for name in PROJECTIONS), (False, True)),
    "scale": (None, None, 0.5, 3.0, -1.0),
    "softcap": (None, None, None, 5.0, 0.7, 0.1),
    "dropout": (0.0, 0.0, 0.1, 0.5, 0.9),
    "B": (*(1, 2, 3, 4, 5) * 3, 0),
    "Lq": (*_SIZES * 2, 0, *LARGE["Lq"]),
    "Lk": (*_SIZES * 2, 0, *LARGE["Lk"]),
    "past": (False, False, True),
    "Lp": lambda made: range(made["Lk"] + 1),
    "valid_lens": (None, None, "per item", "per query"),
    "valid_lens.*": lambda made: range(made["Lk"], -1, -1),
    "allowed": _AXES,  # axes of a random keep-mask
    "allowed.share": (0.8, 0.5, 0.2),  # how much of it is open
    "bias": _AXES,
    "bias.excludes": (False, True),  # whether three tenths of it are -inf
    "causal": (False, True),
    "window": (False, False, True),
    "window.left": (None, *range(10)),
    "window.right": (None, *range(10)),
    "query_offset": (0, 0, 0, *_OFFSETS, "per item"),
    "query_offset.*": (0, *_OFFSETS),
    "padding is NaN": (False, True),
    "weights times": (1.0, 1.0, 0.1, 4.0),
    "inputs times": (1.0, 1.0, 0.03, 3.0),
    "seed": range(1000),
    "rotary": (False, True),
    "rotary.width": lambda made: range(made["d"] // 2 * 2, 0, -2),
    "rotary.interleaved": (False, True),
    "rotary.start": ("first", "last"),
    "rotary.base": (10000.0, 100.0, 5.0),
    "rotary.rule": (None, None, None, *RULES_OF_CASES),
    "rotary.sections": (None, None, "in a row", "in turn"),
    "rotary.given": ways_to_stand,
    "rotary.reach": (20, 3000),  # positions that are given are smaller
    "norm": (None, "rms", "layer"),
    "norm.scope": ("head", "all"),
    "norm.weight": lambda made: ("shared", "per_head", "none")[made["norm.scope"] == "all" :],
    "norm.order": ("before", "after"),
    "norm.eps": (1e-6, 1e-2, 1.0),
    "norm.offset": (0, 1),
    "norm.bias": (False, True),
}
"""Small sizes, or a few of `LARGE`, and every feature, with Gaussian numbers: what random cases are chosen from."""


@dataclass(frozen=True)
class Description:
    """A description of one problem by the choices that were made for it.

    Attributes:
        config, sizes: the layer, and B, Lq, Lk and Lp of the call.
        made: name of a choice -> the chosen value; a choice that was not needed has no entry.
    """

    config: AttentionConfig
    sizes: CallSizes
    made: Made


class Asker:
    """A function `ask(name)` that returns what `choose(name, options)` chooses, and remembers it in `made`.

    `space` has the options of each name, or a function that returns them, given the earlier choices.

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
        if callable(options):
            options = options(self.made)
        self.made[name] = self._choose(name, options)
        return self.made[name]


def describe(choose: Choose) -> Description:
    """Return the Description of a problem. `choose(name, options)` makes each choice: it returns one of the options.

    A case `random-SEED-INDEX` takes its choices from one random stream. So that such cases stay the same, a choice that
    is added to this code must come last, and only in cases with other names, such as `random-SEED-INDEX-parts`.

    >>> description = describe(lambda name, options: options[0])
    >>> description.sizes.key_len, description.config.num_heads, description.made["causal"]
    (1, 1, False)
    """
    ask = Asker(choose, SMALL)
    config = _config(ask)
    sizes = _sizes(ask)
    _mask(ask, sizes)
    if ask.made.get("valid_lens") or ask.made.get("allowed"):
        ask("padding is NaN")
    for name in ("weights times", "inputs times", "seed"):
        ask(name)
    return Description(replace(config, rotary=_rotary(ask), query_key_norm=_norm(ask)), sizes, ask.made)


def _config(ask: Asker) -> AttentionConfig:
    groups, per_group = ask("G"), ask("H/G")
    head_dim, score = ask("d"), ask("score")
    options: dict[str, Any] = {"value_head_dim": ask("dv")}
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
    batch, query_len, key_len = ask("B"), ask("Lq"), ask("Lk")
    return CallSizes(batch, query_len, key_len, past_len=ask("Lp") if ask("past") else 0)


def _mask(ask: Asker, sizes: CallSizes) -> None:
    items = range(sizes.batch)
    lens = ask("valid_lens")
    for item in items if lens else ():
        for name in [item] if lens == "per item" else [f"{item}.{query}" for query in range(sizes.query_len)]:
            ask(f"valid_lens.{name}", "valid_lens.*")
    for source in ("allowed", "bias", "causal"):
        ask(source)
    if ask("window"):
        ask("window.left")
        ask("window.right")
    if (ask.made["causal"] or ask.made["window"]) and ask("query_offset") == "per item":
        for item in items:
            ask(f"query_offset.{item}", "query_offset.*")
    if ask.made["allowed"]:
        ask("allowed.share")
    if ask.made["bias"]:
        ask("bias.excludes")


def _rotary(ask: Asker) -> Rotary | None:
    if ask.made["d"] < 2 or not ask("rotary"):
        return None
    width = ask("rotary.width")
    fields: dict[str, Any] = {name: ask(f"rotary.{name}") for name in ("interleaved", "start", "base")}
    rule = ask("rotary.rule")
    if width > 2 and ask("rotary.sections"):
        first = (width // 2 + 1) // 2
        fields |= {
            "sections": (first, width // 2 - first),
            "sections_interleaved": ask.made["rotary.sections"] == "in turn",
        }
    if ask("rotary.given").startswith("positions"):
        ask("rotary.reach")
    return Rotary(width, rule=None if rule is None else _rule(rule, width // 2), **fields)


def _rule(name: str, pairs: int) -> Mapping[str, Any]:
    """The rule of this name, for so many pairs."""
    rule = {"rope_type": name, **RULES_OF_CASES[name]}
    if name == "longrope":
        short = [1.0 + 0.25 * pair for pair in range(pairs)]
        rule |= {"short_factor": short, "long_factor": [2.0 * factor for factor in short]}
    return rule


def _norm(ask: Asker) -> QueryKeyNorm | None:
    kind = ask("norm")
    if kind is None:
        return None
    fields: dict[str, Any] = {name: ask(f"norm.{name}") for name in ("scope", "weight", "order", "eps")}
    if fields["weight"] != "none":
        fields |= {name: ask(f"norm.{name}") for name in ("offset", "bias")}
    return QueryKeyNorm(kind, **fields)
