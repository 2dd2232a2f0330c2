"""What rows of the tracks are made of: arguments and results, cases, and `step`, a row that returns one array."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.case import Case, Rng
from conformance.cases.parts import SQUARE, SQUARE_REASON, case, fixed, prime_config
from mha.learn.exercise import StepExercise, Value
from mha_core import AttentionConfig, AttentionMask
from mha_core.reference.state import State

WHY_TINY = "small enough to be followed by hand"


def tiny(config: AttentionConfig | None = None, **sizes: Any) -> tuple[Case, ...]:
    """Return three tiny cases of growing size.

    Args:
        config: the layer. Default: 1 head of width 2.
        sizes: other fields of `Case`.
    """
    config = AttentionConfig(2, 1, bias=True) if config is None else config
    return tuple(
        Case(
            f"tiny-{batch}-{query_len}-{key_len}",
            WHY_TINY,
            config,
            batch=batch,
            query_len=query_len,
            key_len=key_len,
            same_sizes=WHY_TINY,
            trivial_mask=WHY_TINY,
            **sizes,
        )
        for batch, query_len, key_len in ((1, 1, 2), (1, 2, 3), (2, 2, 3))
    )


def window_case(id: str, catches: str, **sources: Any) -> Case:
    return Case(id, catches, prime_config(), mask=fixed(**sources), trivial_mask="without bounds it excludes nothing")


def one_key_less(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask that lets each query of each head attend to all keys but one, chosen at random."""
    chosen = rng.integers(case.key_len, size=(case.batch, case.config.num_heads, case.query_len, 1))
    return AttentionMask(allowed=np.arange(case.key_len) != chosen)


def offsets(state: State) -> Any:
    """Return int64 (B,): the position of each item's first query."""
    given = np.asarray(state.inputs.mask.query_offset, dtype=np.int64)
    return np.broadcast_to(given, (state.sizes.batch,)).copy()


def side(number: int) -> Any:
    return lambda state: None if state.inputs.mask.window is None else state.inputs.mask.window[number]


def step(
    name: str,
    task: str,
    arguments: tuple[Value, ...],
    returned: Value,
    cases: tuple[str | Case, ...],
    *,
    rules: tuple[str, ...] = (),
    advice: str = "",
    covers: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    never: tuple[str, ...] = (),
    drawn: Callable[[int], Case] | None = None,
    config: AttentionConfig | None = None,
    **sizes: Any,
) -> StepExercise:
    """Return a StepExercise (see its fields) with one returned array; `config` and `sizes` make its tiny cases."""
    return StepExercise(
        name=name,
        task=task,
        arguments=arguments,
        returned=(returned,),
        cases=cases,
        rules=rules,
        advice=advice,
        covers=covers,
        also=also,
        never=never,
        drawn=drawn,
        tiny=tiny(config, **sizes),
    )


def drawn_mask(make: Callable[[Rng, Case], AttentionMask]) -> Callable[[int], Case]:
    """Return a function that makes a case from a number. The number decides the sizes; `make` makes the mask."""

    def drawn(number: int) -> Case:
        query_len, key_len = 2 + number % 8, 2 + number // 8 % 11
        return Case(
            f"drawn-{number}",
            "a table of answers",
            prime_config(),
            query_len=query_len,
            key_len=key_len,
            mask=make,
            same_sizes="as they are drawn",
            trivial_mask="as it is drawn",
        )

    return drawn


OF_SIZE_1 = ("one-item", "one-query")
"""Cases with an axis of size 1, which must stay."""

TWO_HEADS = AttentionConfig(4, 2, bias=True)
KEY_HEADS = Value("keys", "float64 (B, H, Lk, d)", lambda state: state.heads_of("keys"))
SCALE = Value("scale", "float", lambda state: state.config.softmax_scale)
QUERIES = Value("queries", "float64 (B, H, Lq, d)", "queries")
ALLOWED = Value("allowed", "bool (B, H, Lq, Lk): True = the query may attend to the key", "allowed")

# What lessons ask before there are heads: the axes in front are any.
IN_FRONT = "; the axes in front of them stay as they are"
ANY_QUERIES = Value("queries", f"float64 (..., Lq, d): Lq vectors of width d{IN_FRONT}", "queries")
ANY_KEYS = replace(KEY_HEADS, about="float64 (..., Lk, d): Lk vectors of the same width")
ANY_SCORES = Value("scores", f"float64 (..., Lq, Lk), of any size: of Lq queries with Lk keys{IN_FRONT}", "scores")
ANY_ALLOWED = replace(ALLOWED, about="bool (..., Lq, Lk): True = the query may attend to the key")
ANY_WEIGHTS = Value("weights", "float64 (..., Lq, Lk)", "weights")
QUERY_LEN = Value("query_len", "int: Lq", lambda state: state.sizes.query_len)
KEY_LEN = Value("key_len", "int: Lk", lambda state: state.sizes.key_len)
OFFSETS = Value(
    "offsets", "int64 (B,), 0 or more or negative: query i of item b stands at position offsets[b] + i", offsets
)
ONE_MASK = replace(ALLOWED, about="bool (Lq, Lk): True = the query may attend to the key", part=lambda mask: mask[0, 0])
MASK = replace(
    ALLOWED,
    about="bool (B, 1, Lq, Lk): True = may attend; axis 1 is that of the heads, of size 1, as all have the same mask",
    part=lambda mask: mask[:, :1],
)
LENGTHS_MASK = replace(
    MASK,
    about="bool (B, 1, Lq, Lk), or (B, 1, 1, Lk): True = may attend; axis 1, of size 1, is for a later lesson",
)
NUM_HEADS = Value("num_heads", "int: H", lambda state: state.config.num_heads)

OVERFLOW = Case(
    "loud",
    "exponentials that overflow, and a fill that real scores go below",
    SQUARE,
    batch=2,
    query_len=7,
    key_len=7,
    mask=fixed(causal=True),
    weight_scale=20.0,
    input_scale=300.0,
    same_sizes=SQUARE_REASON,
)
ZERO_SCALE = Case("scale-zero", "a scale of 0 taken for none", prime_config(scale=0.0))
LONG_BIAS = -np.array([900.0, 3e3, 5e3, 1e305, 3e9])[:, None]
LONG = Case(
    "quiet-rows",
    "rows of very different size in one array, all of them negative",
    prime_config(),
    mask=fixed(valid_lens=np.array([[1, 2, 3, 4, 5], [7, 1, 6, 2, 3]]), bias=LONG_BIAS),
)
BY_HEAD = Case("by-head", "the mask of one head used for all", prime_config(), mask=one_key_less)
CAUSAL_OF_SIZE_1 = (
    case("one-causal-query", "a mask without its axis of queries", query_len=1, causal=True),
    case("one-causal-key", "a mask without its axis of keys", key_len=1, causal=True, trivial_mask="one key is key 0"),
)

NO_EMPTY_ROW = ("prime", "causal", "square-causal", BY_HEAD, LONG, OVERFLOW)
"""Cases of the softmax in which every query has a key."""

NO_MASK = (
    "prime",
    "square-no-bias",
    "one-loud-item",
    replace(OVERFLOW, id="loud-open", mask=None),
    replace(LONG, id="quiet-rows-open", mask=fixed(bias=LONG_BIAS)),
)
"""Cases of the softmax in which every query has every key."""

MISUSES = ("mask-ignored", "mask-inverted", "mask-transposed", "allowed-of-first-head", "allowed-of-first-item")
"""What may be done to a mask that is given: bugs of the zoo."""


def projection(name: str) -> tuple[Value, Value]:
    """Return the Values of a projection's weight and bias."""
    return (
        Value("weight", "float64 (out, in)", lambda state: state.parameters[f"{name}.weight"]),
        Value("bias", "float64 (out,), or None", lambda state: state.parameters.get(f"{name}.bias")),
    )
