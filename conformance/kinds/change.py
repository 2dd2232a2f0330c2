"""Change: a function from an array to the changed one. Setting: the call that has the array. Where: a set of calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.arguments import CallSizes
from mha_core.features import FEATURES
from mha_core.parts import PARTS
from mha_core.reference.state import State

MASKS = {"valid_lens": "valid lengths", "allowed": "a keep-mask", "causal": "a causal mask", "window": "a window"}
"""Sources of a mask that are no row of FEATURES, in words; a bias is one."""


@dataclass(frozen=True, eq=False)
class Setting:
    """The config, sizes and inputs of one call. Instances with equal config and sizes compare equal."""

    config: AttentionConfig
    sizes: CallSizes
    inputs: AttentionInputs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and (self.config, self.sizes) == (other.config, other.sizes)

    def __hash__(self) -> int:
        return hash((self.config, self.sizes))

    @cached_property
    def has(self) -> frozenset[str]:
        """Return the names, from FEATURES and MASKS, of the optional features that the layer and the call use."""
        mask = self.inputs.mask
        masks = (name for name in MASKS if getattr(mask, name) is not None and getattr(mask, name) is not False)
        return frozenset((*(row.name for row in FEATURES if row.present(self.config, self.inputs)), *masks))

    @classmethod
    def of(cls, state: State | Problem) -> Setting:
        """Return the setting of a run, or of a problem."""
        return cls(state.config, state.sizes, state.inputs)


SIZES: dict[str, Callable[[Setting], float]] = {
    "scale": lambda s: s.config.softmax_scale,
    "head_dim": lambda s: s.config.head_dim,
    "num_heads": lambda s: s.config.num_heads,
    "embed_dim": lambda s: s.config.embed_dim,
    "query_dim": lambda s: s.config.query_dim,
    "key_dim": lambda s: s.config.key_dim,
    "value_dim": lambda s: s.config.value_dim,
    "output_dim": lambda s: s.config.output_dim,
    "value_head_dim": lambda s: s.config.value_head_dim,
    "num_kv_heads": lambda s: s.config.num_kv_heads,
    "heads per kv head": lambda s: s.config.num_heads // s.config.num_kv_heads,
    "key length": lambda s: s.sizes.key_len,
    "query length": lambda s: s.sizes.query_len,
    "batch size": lambda s: s.sizes.batch,
    "past length": lambda s: s.sizes.past_len,
    "(head_dim rounded up to a multiple of 8)": lambda s: -(-s.config.head_dim // 8) * 8,
    "(head_dim rounded up to a power of 2)": lambda s: 1 << (s.config.head_dim - 1).bit_length(),
    "p": lambda s: s.config.dropout,
    "(1 - p)": lambda s: 1.0 - s.config.dropout,
}
"""Name -> the size, the layer's scale, or the rate p of dropout; the likeliest first."""

Apply = Callable[[NDArray, tuple[str, ...], Setting], NDArray]
"""(array, its axes, the call) -> the changed array. It raises DoesNotApply at sizes where it can't be made."""


@dataclass(frozen=True, eq=False)
class Change:
    """A change of an array, such as a factor or a reordering.

    Args:
        slug: a unique name in kebab-case, including any number: "times-0.9", "heads-reversed".
        words: to be read after "<the array> are ": "multiplied by 0.9".
        apply: (array, names of its axes, the call) -> the changed array.
        fix: a sentence on how to undo the change in code; "" if unknown.
    """

    slug: str
    words: str
    apply: Apply
    fix: str = ""

    def made(self, array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        """Return the changed array. Bools are first converted to 0.0 and 1.0; an empty array is returned unchanged."""
        if not array.size:
            return array
        with any_numbers:
            return self.apply(array * 1.0 if array.dtype == bool else array, axes, setting)


def elementwise(slug: str, words: str, function: Callable[[NDArray], NDArray]) -> Change:
    """Return the change of each element by itself."""
    return Change(slug, words, lambda array, axes, setting: function(array))


LEAVE_OUT = "Use them as they are."

FUNCTIONS: dict[str, tuple[str, Callable[[NDArray], NDArray]]] = {
    "relu": ("max(x, 0) (ReLU)", lambda x: np.maximum(x, 0.0)),
    "abs": ("|x|", np.abs),
    "tanh": ("tanh(x)", np.tanh),
    "sigmoid": ("1 / (1 + exp(-x))", lambda x: 1.0 / (1.0 + np.exp(-x))),
    "squared": ("x^2", np.square),
    "root": ("sign(x) * sqrt(|x|)", lambda x: np.sign(x) * np.sqrt(np.abs(x))),
    "exp": ("exp(x)", np.exp),
    "softsign": ("x / (1 + |x|)", lambda x: x / (1.0 + np.abs(x))),
    "sign": ("sign(x)", np.sign),
    "integers": ("round(x)", np.round),
}
"""Name -> (the formula, function)."""

EACH = "mapped by x -> {}"
"""The words of a function, for its formula."""


@dataclass(frozen=True, eq=False)
class Where:
    """A set of calls: its name in kebab-case (`slug`), in words ("calls with a past"), and a membership test (`holds`).

    is_kind: whether features of a call decide membership; if not, its sizes do.
    """

    slug: str
    words: str
    holds: Callable[[Setting], bool]
    is_kind: bool = True


NAMED = {
    **{row.name: f"calls with {row.words}" for row in FEATURES if row.words},
    **{name: f"calls with {said}" for name, said in MASKS.items()},
}
"""Feature -> the calls that have it, in words."""

MASKING = frozenset((*MASKS, "bias"))


EXTRAS = {row.name: row.words for row in FEATURES if row.needs and row.words}
"""Feature that a layer may overlook, in words: it needs an argument of its own, and without it is computed plainly."""


def extras_of(problem: Problem) -> list[str]:
    """Return the call's features that a layer may overlook (EXTRAS), in words and in the order of FEATURES."""
    has = Setting.of(problem).has
    return [words for name, words in EXTRAS.items() if name in has]


def _has(name: str) -> Where:
    return Where(f"with-{name}", NAMED[name], lambda s: name in s.has)


def _lacks(name: str) -> Where:
    words = "layers with projections" if name == "bare" else NAMED[name].replace("with", "without", 1)
    return Where(f"without-{name}", words, lambda s: name not in s.has)


KINDS: tuple[Where, ...] = (
    *map(_has, NAMED),
    Where("with-a-mask", "calls with a mask", lambda s: bool(s.has & MASKING)),
    Where("without-a-mask", "calls without a mask", lambda s: not s.has & MASKING),
    Where("of-several-items", "calls of more than one item", lambda s: s.sizes.batch > 1),
    Where("of-one-item", "calls of one item", lambda s: s.sizes.batch == 1),
    *map(_lacks, NAMED),
)
"""Kinds of calls to which a fault may be limited."""

LENGTHS = ("key length", "query length", "batch size", "past length")


def conditions_of(wrong: Sequence[Setting], right: Sequence[Setting]) -> Iterator[Where]:
    """Yield each Where (set of calls, by 1 or 2 features or sizes) that contains all of `wrong` and none of `right`."""
    if not right or not wrong:
        return

    def tells(where: Where) -> bool:
        return all(map(where.holds, wrong)) and not any(map(where.holds, right))

    found = list(filter(tells, KINDS))
    yield from found
    if not found:
        yield from filter(tells, (_both(one, other) for one, other in combinations(NAMED, 2)))
    if not found:  # what calls have says more than how long they are
        yield from filter(tells, _limits(wrong))


OR_WITH = " or with "  # between several kinds of calls that alone are wrong
MOST_KINDS = 4
PLAIN = NAMED.keys() - {row.name for row in FEATURES if row.arithmetic}


def kinds_of(wrong: Sequence[Setting], right: Sequence[Setting]) -> tuple[str, ...]:
    """Return at most MOST_KINDS kinds of calls, in words, that together contain every wrong call and no right one.

    The result is () if there are no such kinds, or if they are as many as the wrong calls.
    """
    traits = [_traits(one) for one in wrong]
    fine = set().union(*map(_traits, right))
    found: list[str] = []
    while traits and len(found) < MOST_KINDS:
        count = Counter(one for some in traits for one in some if one not in fine)
        if not count:
            return ()
        # What changes the arithmetic, or is a setting, says more than a width; of settings, a feature does.
        found.append(max(sorted(count), key=lambda one: (one not in PLAIN, count[one], one in NAMED)))
        traits = [some for some in traits if found[-1] not in some]
    few = not traits and len(found) < len(wrong)
    return tuple(NAMED.get(one, one).removeprefix("calls with ") for one in found) if few else ()


def in_common(wrong: Sequence[Setting], right: Sequence[Setting]) -> str:
    """Return in words the kinds of calls that together contain all of `wrong` and none of `right`; "" if none do."""
    found = next(conditions_of(wrong, right), None)
    if found is not None and (len(wrong) == 1 or found.is_kind):
        return found.words
    several = kinds_of(wrong, right) if right else ()
    return f"calls with {OR_WITH.join(several)}" * bool(several)


def if_all(words: str, settings: Iterable[Setting]) -> str:
    """Return the words of `in_common`, if all calls are among those that they name, or nothing tells it; else ""."""
    first, *others = words.split(OR_WITH)
    names = {first, *(f"calls with {one}" for one in others)}
    found = [one for one in (*KINDS, *(_both(*pair) for pair in combinations(NAMED, 2))) if one.words in names]
    told = len({one.words for one in found}) == len(names)
    return words if not told or all(any(one.holds(setting) for one in found) for setting in settings) else ""


def _traits(setting: Setting) -> set[str]:
    """Return what a call has by name, and the settings of the parts of its layer that are no numbers, in words."""
    found = set(setting.has & NAMED.keys())
    for part in PARTS:
        fields = {} if (one := getattr(setting.config, part)) is None else vars(one)
        found |= {f"{part} {key}={value!r}" for key, value in fields.items() if isinstance(value, str | bool)}
    return found


def _both(one: str, other: str) -> Where:
    words = f"{NAMED[one]} and {NAMED[other].removeprefix('calls with ')}"
    return Where(f"with-{one}-and-{other}", words, lambda s: one in s.has and other in s.has)


def _limits(wrong: Sequence[Setting]) -> Iterator[Where]:
    """Yield lower and upper limits of the lengths, two of them in an order, and two that are equal."""
    for name in LENGTHS:
        least, most = int(min(map(SIZES[name], wrong))), int(max(map(SIZES[name], wrong)))
        yield Where(f"{name}-from-{least}", f"calls where the {name} is at least {least}", _from(name, least), False)
        words = f"calls where the {name} is {most}" if least == most else f"calls where the {name} is at most {most}"
        yield Where(f"{name}-to-{most}", words, _to(name, most), False)
    for one, other in permutations(LENGTHS[:3], 2):
        words = f"{one} > {other}"
        yield Where(words.replace(" ", "-"), f"calls where the {words}", _above(one, other), False)
    for one, other in combinations((*LENGTHS[:3], "num_heads"), 2):
        words = f"{one} = {other}"
        yield Where(words.replace(" ", "-"), f"calls where the {words}", _equal(one, other), False)


def _from(name: str, least: int) -> Callable[[Setting], bool]:
    return lambda s: SIZES[name](s) >= least


def _to(name: str, most: int) -> Callable[[Setting], bool]:
    return lambda s: SIZES[name](s) <= most


def _equal(one: str, other: str) -> Callable[[Setting], bool]:
    return lambda s: SIZES[one](s) == SIZES[other](s)


def _above(one: str, other: str) -> Callable[[Setting], bool]:
    return lambda s: SIZES[one](s) > SIZES[other](s)
