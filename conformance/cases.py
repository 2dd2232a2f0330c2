"""The table of cases. Sizes are pairwise different unless a case says why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.case import Case, Rng
from conformance.problem import Problem
from conformance.trained import trained_cases
from mha_core import AttentionConfig, AttentionMask, SpecError

MakeMask = Callable[[Rng, Case], AttentionMask]


def prime_config(**changes: Any) -> AttentionConfig:
    """Pairwise different sizes: H 3, d 11, dv 13, widths 17, 19, 23 in and 29 out, all with biases."""
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


def fixed(**sources: Any) -> MakeMask:
    """A mask without randomness."""
    return lambda rng, case: AttentionMask(**sources)


def random_allowed(rng: Rng, case: Case, *, heads: int | None = None) -> NDArray[np.bool_]:
    """Bool (B, 1 or H, Lq, Lk) that lets about two of three keys through."""
    return rng.random((case.batch, heads or 1, case.query_len, case.key_len)) < 0.67


def allowed_per_item(rng: Rng, case: Case) -> AttentionMask:
    return AttentionMask(allowed=random_allowed(rng, case))


def allowed_per_head(rng: Rng, case: Case) -> AttentionMask:
    return AttentionMask(allowed=random_allowed(rng, case, heads=case.config.num_heads))


def bias_per_head(rng: Rng, case: Case) -> AttentionMask:
    return AttentionMask(bias=rng.normal(size=(case.config.num_heads, case.query_len, case.key_len)))


def bias_that_excludes(rng: Rng, case: Case) -> AttentionMask:
    """-inf in a fifth of the places, and in the whole last row."""
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
    """The same large negative number on every score: no weight may notice it."""
    return AttentionMask(bias=np.full((1, 1, 1, case.key_len), -1.0e3) + rng.normal(size=case.key_len))


def lone_open_key(rng: Rng, case: Case) -> AttentionMask:
    """Query i may attend to one key alone, which scores -3.6e7 where every other scores +3.6e7."""
    chosen = rng.integers(case.key_len, size=(case.batch, 1, case.query_len, 1))
    is_open = np.arange(case.key_len) == chosen
    return AttentionMask(allowed=is_open, bias=np.where(is_open, -3.6e7, 3.6e7))


def poison_padding(rng: Rng, problem: Problem) -> Problem:
    """NaN, infinity and 1e30 in the keys and values that nobody may attend to."""
    padding = problem.padding()
    keys, values = problem.inputs.keys.copy(), problem.inputs.values.copy()
    poison = np.array([np.nan, np.inf, -np.inf, 1e30])
    keys[padding] = rng.choice(poison, size=keys[padding].shape)
    values[padding] = rng.choice(poison, size=values[padding].shape)
    return replace(problem, inputs=replace(problem.inputs, keys=keys, values=values))


def nan_in_open_key(rng: Rng, problem: Problem) -> Problem:
    """One NaN in a key of item 0 that queries may attend to."""
    keys = problem.inputs.keys.copy()
    keys[0, 1, 2] = np.nan
    return replace(problem, inputs=replace(problem.inputs, keys=keys))


def infinity_in_open_value(rng: Rng, problem: Problem) -> Problem:
    """One infinity in a value of item 0 that queries may attend to."""
    values = problem.inputs.values.copy()
    values[0, 1, 2] = np.inf
    return replace(problem, inputs=replace(problem.inputs, values=values))


def loud_item(rng: Rng, problem: Problem) -> Problem:
    """The queries of one batch item are 300 times as large as the others."""
    factor = np.ones((problem.inputs.queries.shape[0], 1, 1))
    factor[0] = 300.0
    return replace(problem, inputs=replace(problem.inputs, queries=problem.inputs.queries * factor))


def same_signs(rng: Rng, problem: Problem) -> Problem:
    """Values without a sign, so that errors of a long sum add up instead of cancelling."""
    return replace(problem, inputs=replace(problem.inputs, values=np.abs(problem.inputs.values)))


def views(rng: Rng, problem: Problem) -> Problem:
    """Strided queries, keys expanded over the batch, transposed values; all of them read-only."""
    inputs = problem.inputs
    strided = np.repeat(inputs.queries, 2, axis=1)[:, ::2]
    expanded = np.broadcast_to(inputs.keys[:1], inputs.keys.shape)
    transposed = np.ascontiguousarray(inputs.values.transpose(2, 1, 0)).transpose(2, 1, 0)
    for array in (strided, transposed):
        array.flags.writeable = False
    return replace(problem, inputs=replace(inputs, queries=strided, keys=expanded, values=transposed))


def _sizes_and_heads() -> list[Case]:
    return [
        Case(
            "ragged-square",
            "most mistakes: padded queries, an empty item, wrong axes that equal sizes let through",
            SQUARE,
            batch=5,
            query_len=7,
            mask=fixed(valid_lens=np.array([0, 1, 3, 6, 7])),
            same_sizes=SQUARE_REASON,
        ),
        Case("prime", "a wrong axis, size or transposition anywhere", prime_config()),
        Case("no-bias", "a bias that is added though there is none", prime_config(bias=False)),
        Case(
            "no-key-bias",
            "one bias flag for all projections",
            prime_config(bias={"q_proj": True, "v_proj": True, "out_proj": True}),
        ),
        Case(
            "grouped-heads",
            "key heads tiled instead of repeated; group gradients not summed",
            prime_config(num_heads=6, num_kv_heads=3),
            mask=fixed(valid_lens=np.array([4, 6])),
        ),
        Case("multi-query", "one key head for all query heads", prime_config(num_heads=6, num_kv_heads=1)),
    ]


def _masks() -> list[Case]:
    return [
        Case(
            "valid-lens",
            "lengths off by one, ignored, or counted from the right",
            prime_config(),
            mask=fixed(valid_lens=np.array([3, 6])),
        ),
        Case(
            "valid-lens-per-query",
            "(B, Lq) lengths read as (B,)",
            prime_config(),
            mask=fixed(valid_lens=np.array([[1, 2, 3, 4, 5], [7, 0, 6, 2, 3]])),
        ),
        Case("causal", "the diagonal off by one, keys from the future", prime_config(), mask=fixed(causal=True)),
        Case(
            "causal-more-queries",
            "top-left alignment read as bottom-right when Lq > Lk",
            prime_config(),
            query_len=8,
            key_len=5,
            mask=fixed(causal=True),
        ),
        Case(
            "causal-bottom-right",
            "query_offset ignored, or with the wrong sign",
            prime_config(),
            mask=fixed(causal=True, query_offset=2),
        ),
        Case(
            "causal-bottom-right-more-queries",
            "rows before the first key, which have nothing to attend to",
            prime_config(),
            query_len=8,
            key_len=5,
            mask=fixed(causal=True, query_offset=-3),
        ),
        Case(
            "causal-padding",
            "one of two masks dropped when both are given",
            prime_config(),
            mask=fixed(valid_lens=np.array([2, 4]), causal=True),
        ),
        Case(
            "causal-offset-per-item",
            "one query_offset applied to the whole batch",
            prime_config(),
            mask=fixed(causal=True, query_offset=np.array([1, -2])),
        ),
        Case("window", "a window off by one, or one-sided", prime_config(), mask=fixed(window=(2, 1))),
        Case(
            "window-causal",
            "a window that forgets the offset, or replaces the causal mask",
            prime_config(),
            mask=fixed(window=(1, None), causal=True, query_offset=2),
        ),
        Case("allowed", "polarity: True read as masked", prime_config(), mask=allowed_per_item),
        Case("allowed-per-head", "a mask per head shared by all heads", prime_config(), mask=allowed_per_head),
        Case(
            "bias-per-head", "an additive bias scaled, dropped, or shared by heads", prime_config(), mask=bias_per_head
        ),
        Case(
            "bias-excludes",
            "-inf in the bias that turns into NaN, forward or backward",
            prime_config(),
            mask=bias_that_excludes,
        ),
        Case("every-source", "sources that are not combined with AND", prime_config(), mask=every_source),
    ]


def _scores_and_dropout() -> list[Case]:
    return [
        Case(
            "dropout",
            "weights dropped without rescaling, or shared by heads",
            prime_config(dropout=0.3),
            batch=4,
            mask=fixed(valid_lens=np.array([3, 7, 5, 0])),
            dropout=True,
        ),
        Case(
            "dropout-off",
            "dropout that acts, or rescales, outside training",
            prime_config(dropout=0.3),
            mask=fixed(valid_lens=np.array([3, 7])),
        ),
        Case("dot", "an unscaled score that is scaled all the same", prime_config(score="dot")),
        Case("scale", "a given scale ignored", prime_config(scale=0.5)),
        Case(
            "additive",
            "the additive score's matrices exchanged, or its tanh left out",
            prime_config(score="additive", score_dim=8),
            mask=fixed(valid_lens=np.array([5, 0])),
        ),
        Case(
            "additive-grouped",
            "grouped heads under an additive score",
            prime_config(num_heads=6, num_kv_heads=3, score="additive", score_dim=8),
        ),
    ]


def _square_twins() -> list[Case]:
    """For layers that know one width alone, and for mistakes that other sizes turn into an error."""
    twins: list[tuple[str, str, dict[str, Any], MakeMask | None]] = [
        ("no-bias", "a bias where there is none", {"bias": False}, None),
        ("lens-per-query", "lengths of another axis", {}, lens_per_query_square),
        ("causal", "a causal mask of the other triangle", {}, fixed(causal=True)),
        ("window", "the sides of a window exchanged", {}, fixed(window=(2, 1), query_offset=1)),
        ("allowed-per-head", "a mask transposed", {}, allowed_per_head),
        ("bias-per-head", "a bias transposed", {}, bias_per_head),
        ("dot", "an unscaled score that is scaled", {"score": "dot"}, None),
        ("scale", "a given scale ignored", {"scale": 0.5}, None),
        ("grouped", "key heads tiled instead of repeated", {"num_heads": 6, "num_kv_heads": 3, "head_dim": 13}, None),
        ("additive", "the additive score's matrices exchanged", {"score": "additive", "score_dim": 13}, None),
    ]
    cases = [
        Case(
            f"square-{name}",
            catches,
            replace(SQUARE, **sizes),
            batch=4,
            query_len=7,
            mask=mask,
            same_sizes=SQUARE_REASON,
        )
        for name, catches, sizes, mask in twins
    ]
    dropped = replace(SQUARE, dropout=0.3)
    mask = fixed(valid_lens=np.array([3, 7, 5, 0]))
    return [
        *cases,
        Case(
            "square-dropout",
            "a keep-mask transposed",
            dropped,
            batch=4,
            query_len=7,
            mask=mask,
            dropout=True,
            same_sizes=SQUARE_REASON,
        ),
        Case(
            "square-dropout-off",
            "dropout that acts outside training",
            dropped,
            batch=4,
            query_len=7,
            mask=mask,
            same_sizes=SQUARE_REASON,
        ),
    ]


def lens_per_query_square(rng: Rng, case: Case) -> AttentionMask:
    return AttentionMask(valid_lens=rng.integers(case.key_len + 1, size=(case.batch, case.query_len)))


def _magnitudes() -> list[Case]:
    return [
        Case("weights-x4", "a softmax that loses precision at large scores", prime_config(), weight_scale=4.0),
        Case(
            "weights-x20-inputs-x3",
            "a softmax without its maximum subtracted: exp overflows",
            prime_config(),
            weight_scale=20.0,
            input_scale=3.0,
        ),
        Case("inputs-x0.03", "an absolute constant where a relative one belongs", prime_config(), input_scale=0.03),
        Case(
            "denormal-inputs",
            "numbers below the smallest normal one of float32, which may be flushed to 0 but not blown up",
            prime_config(),
            input_scale=1e-39,
        ),
        Case("scores-shifted", "a maximum clamped at 0", prime_config(), mask=shifted_scores),
        Case("lone-open-key", "a finite fill value instead of exclusion", prime_config(), mask=lone_open_key),
        Case(
            "one-loud-item",
            "a maximum taken over the whole tensor instead of each row",
            prime_config(),
            batch=4,
            change=loud_item,
        ),
        Case(
            "long",
            "errors that pile up in long sums",
            AttentionConfig(11, 1, bias=True, value_head_dim=13, query_dim=17, key_dim=19, value_dim=23, output_dim=29),
            query_len=3,
            key_len=4096,
            change=same_signs,
            expensive=True,
        ),
    ]


def _edges() -> list[Case]:
    tiny = "a size of 1 or 0 is what this case is about"
    return [
        Case("one-item", "a batch axis squeezed away", prime_config(), batch=1, mask=fixed(causal=True)),
        Case("one-head", "a head axis squeezed away", prime_config(num_heads=1, bias=True), mask=fixed(causal=True)),
        Case("one-query", "a query axis squeezed away", prime_config(), query_len=1, mask=allowed_per_head),
        Case(
            "one-key",
            "a key axis squeezed away; a softmax over one key is 1",
            prime_config(),
            key_len=1,
            mask=fixed(valid_lens=np.array([1, 0])),
        ),
        Case("head-dim-1", "a channel axis squeezed away", prime_config(head_dim=1), mask=fixed(causal=True)),
        Case("no-items", "B = 0", prime_config(), batch=0, mask=fixed(causal=True), trivial_mask=tiny),
        Case("no-queries", "Lq = 0", prime_config(), query_len=0, mask=fixed(causal=True), trivial_mask=tiny),
        Case(
            "no-keys",
            "Lk = 0: every row is empty",
            prime_config(),
            key_len=0,
            mask=fixed(causal=True),
            trivial_mask=tiny,
        ),
        Case("views", "strides ignored, or a caller's array written to", prime_config(), change=views),
        Case(
            "nan-in-padding",
            "padding that leaks: 0 * NaN is NaN",
            prime_config(),
            mask=fixed(valid_lens=np.array([4, 0])),
            change=poison_padding,
        ),
        Case(
            "nan-in-disallowed",
            "padding given through allowed instead of valid_lens",
            prime_config(),
            mask=fixed(allowed=np.array([True, True, False, True, True, False, True]), causal=True),
            change=poison_padding,
        ),
        Case(
            "nan-in-open-key",
            "a NaN hidden by nan_to_num, or spread to other items",
            prime_config(),
            mask=fixed(causal=True),
            change=nan_in_open_key,
        ),
        Case(
            "infinity-in-open-value",
            "an infinity clipped to a large number",
            prime_config(),
            mask=fixed(causal=True),
            change=infinity_in_open_value,
        ),
    ]


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case: trained weights first, then by topic."""
    return (
        *trained_cases(),
        *_sizes_and_heads(),
        *_masks(),
        *_scores_and_dropout(),
        *_square_twins(),
        *_magnitudes(),
        *_edges(),
    )


def select(patterns: tuple[str, ...]) -> list[Case]:
    """The cases whose id matches one of the patterns (shell wildcards); all of them if there is none.

    >>> [case.id for case in select(("one-*y",))]
    ['one-query', 'one-key']
    >>> select(("primes",))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: case 'primes' is not known; `mha cases` lists them
    """
    for pattern in patterns:
        if not any(fnmatchcase(case.id, pattern) for case in all_cases()):
            raise SpecError(f"case {pattern!r} is not known; `mha cases` lists them")
    return [case for case in all_cases() if not patterns or any(fnmatchcase(case.id, p) for p in patterns)]
