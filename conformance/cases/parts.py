"""Configs, masks and changes to a problem that several files of cases use."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.case import Case, Rng
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionMask

MakeMask = Callable[[Rng, Case], AttentionMask]


def prime_config(**changes: Any) -> AttentionConfig:
    """Return a config whose sizes all differ: H 3, d 11, dv 13, widths 17, 19, 23 in and 29 out; it has all biases."""
    sizes: dict[str, Any] = {
        "embed_dim": 33,
        "num_heads": 3,
        "head_dim": 11,
        "value_head_dim": 13,
        "query_dim": 17,
        "key_dim": 19,
        "value_dim": 23,
        "output_dim": 29,
        "bias": True,
    }
    return AttentionConfig(**{**sizes, **changes})


SQUARE = AttentionConfig(39, 3, bias=True)
SQUARE_REASON = "square twin: rectangular sizes turn a wrong transposition into an error that hides it"


COINCIDE = "what is guessed from sizes is wrong where two of them are equal"
SIZES_OF_MODELS = "sizes that models have"
FINFO_MIN = -float(np.finfo(np.float32).max)


def fixed(**sources: Any) -> MakeMask:
    """Return a function for `Case.mask` that always returns the mask with fields `sources`; lists become arrays."""
    sources |= {name: np.array(value) for name, value in sources.items() if isinstance(value, list)}
    return lambda rng, case: AttentionMask(**sources)


OF_CASE = frozenset(field.name for field in fields(Case))
OF_MASK = frozenset(field.name for field in fields(AttentionMask)) - {"bias"}  # a config has one too


def case(id: str, catches: str, layer: AttentionConfig | None = None, **settings: Any) -> Case:
    """Return a case with these settings, and with defaults for all others.

    Args:
        id, catches: fields of the Case.
        layer: its config. Default: `prime_config()`.
        settings: other fields of the Case, fields of the config, and fields of a fixed AttentionMask.

    >>> made = case("short", "a length that is ignored", num_heads=1, batch=3, valid_lens=[1, 2, 3])
    >>> made.config.num_heads, made.batch, made.build().inputs.mask.valid_lens
    (1, 3, array([1, 2, 3]))
    """
    own = {name: settings.pop(name) for name in OF_CASE & settings.keys()}
    sources = {name: settings.pop(name) for name in OF_MASK & settings.keys()}
    if sources:
        own["mask"] = fixed(**sources)
    return Case(id, catches, prime_config(**settings) if layer is None else replace(layer, **settings), **own)


def square_case(id: str, catches: str, layer: AttentionConfig = SQUARE, **settings: Any) -> Case:
    """Return a `case` with 4 items, Lq = Lk = 7, one width, for bugs that raise a shape error if sizes differ."""
    return case(id, catches, layer, **{"batch": 4, "query_len": 7, "same_sizes": SQUARE_REASON, **settings})


OF_HEADS = "without projections the widths are those of the heads"


def bare_case(id: str, catches: str, **settings: Any) -> Case:
    """Return a `case` of a layer without projections: H 6, G 2, d 11, dv 13."""
    sizes = {"embed_dim": 66, "num_heads": 6, "num_kv_heads": 2, "head_dim": 11, "projections": False}
    widths: dict[str, Any] = {"query_dim": None, "key_dim": None, "value_dim": None, "output_dim": None, "bias": False}
    return case(id, catches, **{**sizes, **widths, "same_sizes": OF_HEADS, **settings})


def random_allowed(rng: Rng, case: Case, *, heads: int | None = None) -> NDArray[np.bool_]:
    """Return bools (B, 1 or H, Lq, Lk) that allow about two of three keys."""
    return rng.random((case.batch, heads or 1, case.query_len, case.key_len)) < 0.67


def allowed_per_item(rng: Rng, case: Case) -> AttentionMask:
    return AttentionMask(allowed=random_allowed(rng, case))


def allowed_per_head(rng: Rng, case: Case) -> AttentionMask:
    return AttentionMask(allowed=random_allowed(rng, case, heads=case.config.num_heads))


def bias_per_head(rng: Rng, case: Case) -> AttentionMask:
    return AttentionMask(bias=rng.normal(size=(case.config.num_heads, case.query_len, case.key_len)))


def bias_that_excludes(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask with a bias (B, 1, Lq, Lk): -inf in a fifth of its elements, and in all of the last query's."""
    bias = rng.normal(size=(case.batch, 1, case.query_len, case.key_len))
    bias[rng.random(bias.shape) < 0.2] = -np.inf
    bias[:, :, -1] = -np.inf
    return AttentionMask(bias=bias)


def every_source(rng: Rng, case: Case) -> AttentionMask:
    return AttentionMask(
        valid_lens=np.array([[6, 5, 4, 7, 3], [2, 7, 0, 6, 5]]),
        allowed=random_allowed(rng, case, heads=case.config.num_heads),
        bias=bias_that_excludes(rng, case).bias,
        causal=True,
        query_offset=np.array([3, 1]),
        window=(4, None),
    )


def shifted_scores(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask with a bias for each key: -1000 plus a small random number, which rounding must not swallow."""
    return AttentionMask(bias=np.full((1, 1, 1, case.key_len), -1.0e3) + rng.normal(size=case.key_len))


def lone_open_key(rng: Rng, case: Case) -> AttentionMask:
    """Return a mask with one allowed key per query. Bias: -x there, x elsewhere; x is 3.6e7 in item 0, else 3.6e9."""
    chosen = rng.integers(case.key_len, size=(case.batch, 1, case.query_len, 1))
    is_open = np.arange(case.key_len) == chosen
    size = np.where(np.arange(case.batch) == 0, 3.6e7, 3.6e9)[:, None, None, None]
    return AttentionMask(allowed=is_open, bias=np.where(is_open, -size, size))


def poison_padding(rng: Rng, problem: Problem) -> Problem:
    """Return the problem with NaN, infinity and 1e30 in the keys and values that no query may attend to."""
    padding = problem.padding()
    padding = padding[:, padding.shape[1] - problem.inputs.keys.shape[1] :]  # without the past
    keys, values = problem.inputs.keys.copy(), problem.inputs.values.copy()
    poison = np.array([np.nan, np.inf, -np.inf, 1e30])
    keys[padding] = rng.choice(poison, size=keys[padding].shape)
    values[padding] = rng.choice(poison, size=values[padding].shape)
    return problem.with_inputs(keys=keys, values=values)


def number_in_open(name: str, number: float) -> Callable[[Rng, Problem], Problem]:
    """Return a function for `Case.change`. It writes `number` at [0, 1, 2] of the input `name`, where no padding is."""

    def change(rng: Rng, problem: Problem) -> Problem:
        array = getattr(problem.inputs, name).copy()
        array[0, 1, 2] = number
        return problem.with_inputs(**{name: array})

    return change


def loud_item(rng: Rng, problem: Problem) -> Problem:
    """Return the problem with the queries of one batch item multiplied by 300."""
    factor = np.ones((problem.inputs.queries.shape[0], 1, 1))
    factor[0] = 300.0
    return problem.with_inputs(queries=problem.inputs.queries * factor)


def same_signs(rng: Rng, problem: Problem) -> Problem:
    """Return the problem with positive values, so that the errors of a long sum add up instead of cancelling."""
    return problem.with_inputs(values=np.abs(problem.inputs.values))


def views(rng: Rng, problem: Problem) -> Problem:
    """Return the problem with strided queries, keys expanded over the batch and transposed values, all read-only."""
    inputs = problem.inputs
    strided = np.repeat(inputs.queries, 2, axis=1)[:, ::2]
    expanded = np.broadcast_to(inputs.keys[:1], inputs.keys.shape)
    transposed = np.ascontiguousarray(inputs.values.transpose(2, 1, 0)).transpose(2, 1, 0)
    for array in (strided, transposed):
        array.flags.writeable = False
    return problem.with_inputs(queries=strided, keys=expanded, values=transposed)


def poison_past(rng: Rng, problem: Problem) -> Problem:
    """Return the problem with NaN, infinity and 1e30 in the padding among its past and new keys and values."""
    problem = poison_padding(rng, problem)
    inputs = problem.inputs
    if inputs.past_keys is None or inputs.past_values is None:
        return problem
    keys, values = inputs.past_keys.copy(), inputs.past_values.copy()
    item, position = np.nonzero(problem.padding()[:, : keys.shape[2]])
    keys[item, :, position] = np.nan
    values[item, :, position] = np.inf
    return problem.with_inputs(past_keys=keys, past_values=values)
