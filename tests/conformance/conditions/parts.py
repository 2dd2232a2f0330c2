"""Conditions of layers with rotary positions or a query-key norm: each beside what models have besides."""

# ruff: noqa: F403, F405
from itertools import product

from tests.conformance.conditions.arrays import *
from tests.conformance.conditions.words import *

FINFO_MIN = float(np.finfo(np.float32).min)


def rule(c: Call) -> str | None:
    """The name of the layer's rule of long contexts."""
    return None if c.config.rotary is None or c.config.rotary.rule is None else c.config.rotary.rule.rope_type


def last_position(c: Call) -> int:
    """Where the last query stands; 0 where tables are given."""
    given = c.inputs.rotary
    if given is not None and given.is_placed:
        return 0 if given.positions is None else int(np.max(given.positions))
    return int(np.max(m(c).query_offset)) + z(c).lq - 1


# fmt: off
BESIDE = {
    "head_dim_64": ("heads 64 wide or wider", lambda c: z(c).d >= 64),
    "keys_130": ("more than 128 keys", lambda c: z(c).lk > 128),
    "items_9": ("more than 8 items", lambda c: z(c).b > 8),
    "grouped": ("fewer key heads than query heads", lambda c: has(c, 'grouped')),
    "past_97": ("a past of more than 96 keys", lambda c: z(c).past > 96),
    "window": ("a window that excludes keys", lambda c: has(c, 'window') and bool((~full_of(c, 'window')).any())),
    "finfo_min": ("a bias of finfo.min", lambda c: (x := arr(c, 'bias')) is not None and bool((x <= FINFO_MIN).any())),
    "empty_rows": ("rows without a key", lambda c: bool(empty_rows(c).any())),
    "lens_int32": ("lengths of 32 bits", lambda c: m(c).valid_lens is not None and m(c).valid_lens.dtype == np.int32),
}
"""Name -> (words, whether a call is so)."""

OF_ROTARY = {"lens_int32"}
"""Those that only layers with rotary positions are asked."""

PARTS = {"rotary": "rotary positions", "query_key_norm": "a query-key norm"}

CONDITIONS: list[Condition] = [
    *(
        Condition(f"{part}_{name}", f"{words} in a layer with {PARTS[part]}",
                  lambda c, e, part=part, holds=holds: getattr(c.config, part) is not None and holds(c))
        for part, (name, (words, holds)) in product(PARTS, BESIDE.items())
        if part == "rotary" or name not in OF_ROTARY
    ),
    *(
        Condition(f"rule_{name}", f"the rule {name} of long contexts", lambda c, e, name=name: rule(c) == name)
        for name in ("linear", "dynamic", "llama3", "yarn", "longrope")
    ),
    Condition("rotary_position_5000", "a position of 5,000 or more in a layer with rotary positions",
              lambda c, e: c.config.rotary is not None and last_position(c) >= 5000),
    Condition("lq_lk_h", "as many heads as queries and as keys, more than one",
              lambda c, e: z(c).lq == z(c).lk == z(c).h > 1),
    Condition("lengths_are_head_dim", "as many queries and keys as a head is wide, of several heads",
              lambda c, e: z(c).lq == z(c).lk == z(c).d > 1 and z(c).h > 1),
    Condition("one_head_of_all", "a single head as wide as the inputs",
              lambda c, e: z(c).h == 1 and z(c).d == z(c).wq == z(c).wk == z(c).wv > 1),
]
