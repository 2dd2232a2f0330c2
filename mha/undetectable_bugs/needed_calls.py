"""Which masks, sizes and settings a call must have for a bug of the zoo to be visible in it."""

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import partial

import numpy as np

from conformance.cases.problem import Problem
from conformance.zoo.blocked import blocks
from conformance.zoo.bug import GRADIENTS, Bug
from conformance.zoo.registry import beginnings_of_parts
from mha_core import AttentionMask, Rotary
from mha_core.features import FEATURES, Feature, plain_fields
from mha_core.parts import PARTS
from mha_core.parts.frequencies import rule_of

Asks = Callable[[Problem], bool]


def _mask(problem: Problem) -> AttentionMask:
    return problem.inputs.mask


def _positions(problem: Problem) -> bool:
    return _mask(problem).has_positions


def _infinite_bias(problem: Problem) -> bool:
    bias = _mask(problem).bias
    return bias is not None and bool(np.isneginf(bias).any())


def _empty_rows(problem: Problem) -> bool:
    return not problem.allowed().any(axis=-1).all()


def _lengths(problem: Problem) -> bool:
    return _mask(problem).valid_lens is not None


def _lengths_by_query(problem: Problem) -> bool:
    return np.ndim(_mask(problem).valid_lens) == 2


def _not_finite(problem: Problem) -> bool:
    inputs = problem.inputs
    return not all(np.isfinite(x).all() for x in (inputs.queries, inputs.keys, inputs.values))


def _several_sources(problem: Problem) -> bool:
    mask = _mask(problem)
    return sum((_lengths(problem), mask.allowed is not None, _infinite_bias(problem), _positions(problem))) > 1


def _differ(one: str, other: str) -> Asks:
    """Whether two arrays of a call hold other numbers."""
    return lambda problem: (
        not np.array_equal(getattr(problem.inputs, one), getattr(problem.inputs, other), equal_nan=True)
    )


def _several_blocks(problem: Problem) -> bool:
    sizes = problem.sizes
    return sizes.query_len > blocks.QUERIES or sizes.key_len > blocks.KEYS


def _need_of(feature: Feature, pattern: str) -> tuple[str, Asks, tuple[str, ...]]:
    """The need of a feature, of the bugs that begin with its name."""
    return feature.words, lambda one: feature.present(one.config, one.inputs), (feature.name + pattern,)


def _rotary(asks: Callable[[Rotary], object]) -> Asks:
    return lambda one: one.config.rotary is not None and bool(asks(one.config.rotary))


def _has_tables(one: Problem) -> bool:
    return one.inputs.rotary is not None and one.inputs.rotary.has_tables


def _has_part(name: str, one: Problem) -> bool:
    return getattr(one.config, name) is not None


def _has_rule(one: Problem, names: tuple[str, ...] = ()) -> bool:
    settings = one.config.rotary
    rule = None if settings is None else rule_of(settings.rule)
    return rule is not None and (not names or rule.rope_type in names) and not _has_tables(one)


OF_PARTS: tuple[tuple[str, Asks, tuple[str, ...]], ...] = (
    ("given tables of rotary positions", _has_tables, ("rotary-given-*",)),
    (
        "given positions",
        lambda one: one.config.rotary is not None and one.inputs.rotary is not None and not _has_tables(one),
        ("rotary-positions-ignored", "rotary-positions-of-first-item"),
    ),
    ("several axes of positions", _rotary(lambda settings: settings.sections), ("rotary-axes-*",)),
    *(
        (f"rotary positions with the {name} rule", partial(_has_rule, names=(name,)), (f"rotary-{name}-*",))
        for name in ("llama3", "yarn", "longrope")
    ),
    ("rotary positions with a rule", _has_rule, ("rotary-rule-*", "rotary-factor-*")),
    *(
        (PARTS[name], partial(_has_part, name), tuple(f"{begin}*" for begin in begins))
        for name, begins in beginnings_of_parts().items()
    ),
)
"""The needs of the parts of `mha_core.parts`, as in NEEDS."""

NEEDS: tuple[tuple[str, Asks, tuple[str, ...]], ...] = (
    *OF_PARTS,
    ("a keep-mask of dropout", lambda one: one.inputs.dropout_keep is not None, ("block-dropout-*",)),
    (
        "a dropout rate outside training",
        lambda one: one.config.dropout > 0.0 and one.inputs.dropout_keep is None,
        ("dropout-in-evaluation", "dropout-scales-evaluation"),
    ),
    ("a keep-mask of dropout", lambda one: one.inputs.dropout_keep is not None, ("dropout-*",)),
    *(
        _need_of(row, "-given-*" if row.name == "scale" else "-*")
        for row in FEATURES
        if row.arithmetic and not row.alone and row.name not in PARTS
    ),
    ("-inf in a bias", _infinite_bias, ("bias-infinity-*",)),
    ("an additive bias", lambda one: _mask(one).bias is not None, ("bias-*", "block-bias-*")),
    ("several masks at once", _several_sources, ("sources-*",)),
    (
        "a causal mask with padding",
        lambda one: _mask(one).causal and (_lengths(one) or _mask(one).allowed is not None),
        ("causal-dropped-with-padding", "padding-dropped-with-causal"),
    ),
    (
        "a causal mask with a window",
        lambda one: _mask(one).causal and _mask(one).window is not None,
        ("window-dropped-*",),
    ),
    ("lengths for each query", _lengths_by_query, ("lens-per-query-*",)),
    ("lengths", _lengths, ("lens-*",)),
    ("a mask of keys", lambda one: _mask(one).allowed is not None, ("allowed-*", "block-allowed-*")),
    ("a causal mask", lambda one: _mask(one).causal, ("causal-*",)),
    ("a window", lambda one: _mask(one).window is not None, ("window-*",)),
    ("a query offset", lambda one: _positions(one) and bool(np.any(_mask(one).query_offset)), ("offset-*",)),
    ("a row without a key", _empty_rows, ("empty-row-*",)),
    ("NaN or infinity", _not_finite, ("padding-*not-zeroed", "nan-*")),
    (
        "a mask",
        lambda problem: not problem.allowed().all(),
        ("mask-ignored", "mask-transposed", "mask-after-softmax", "fill-*", "maximum-of-excluded"),
    ),
    ("grouped key heads", lambda one: one.config.num_kv_heads != one.config.num_heads, ("group*",)),
    ("inputs that are split into heads", lambda one: one.inputs.is_split, ("given-heads-*",)),
    ("keys other than the queries", _differ("queries", "keys"), ("keys-from-queries", "queries-from-keys")),
    (
        "values other than the keys",
        _differ("keys", "values"),
        ("values-from-keys", "keys-from-values", "keys-and-values-exchanged"),
    ),
    (
        "a causal mask or a window",
        lambda one: _positions(one) or _lengths_by_query(one) or _empty_rows(one),
        ("block-position-*", "block-not-masked-*", "block-skipped-by-*-query", "block-keys-to-*", "block-keys-from-*"),
    ),
    ("lengths", _lengths, ("block-keys-of-first-item", "block-skipped-by-first-item")),
    (
        "queries that do not fill a block",
        lambda one: _several_blocks(one) or one.sizes.query_len % blocks.QUERIES != 0,
        ("block-of-last-queries-dropped",),
    ),
    (
        "as many keys as a block has",
        lambda one: _several_blocks(one) or one.sizes.key_len >= blocks.KEYS,
        ("block-keys-one-short",),
    ),
    ("several blocks of queries and keys", _several_blocks, ("block-*", "online-*")),
)
"""A requirement in words, a test of a problem for it, and patterns of the bugs that need it.

For each bug the first entry with a matching pattern counts.
"""


def need_of(bug: Bug) -> tuple[str, Asks] | None:
    """Return (words, test): what a call must have to show the bug; None if any call will do.

    >>> from conformance.zoo.registry import select
    >>> need_of(select(("causal-ignored",))[0])[0], need_of(select(("scale-missing",))[0])
    ('a causal mask', None)
    """
    for words, asks, patterns in NEEDS:
        if any(fnmatchcase(bug.id, pattern) for pattern in patterns):
            return words, asks
    return None


def asked_by(bug: Bug, problems: Iterable[Problem]) -> bool:
    """Return whether some call has what it takes to show the bug (see `need_of`), such as a causal mask."""
    need = need_of(bug)
    return need is None or any(need[1](problem) for problem in problems)


def signature(problem: Problem) -> tuple[object, ...]:
    """Return a key that is equal for calls with equal settings, kinds of masks and sizes. Sizes above 3 count as 3."""
    config = problem.config
    sizes = problem.sizes
    short = tuple(min(size, 3) for size in (sizes.batch, sizes.query_len, sizes.key_len))
    needs = dict.fromkeys(words for words, _, _ in NEEDS)
    has = tuple(any(asks(problem) for name, asks, _ in NEEDS if name == words) for words in needs)
    told = (getattr(config, name) for name in plain_fields())
    return (config.num_heads, config.num_kv_heads, *told, *short, *has)


def is_of_gradients(bug: Bug) -> bool:
    """Return whether the bug changes only gradients, so that no output shows it."""
    return bug.stage == GRADIENTS
