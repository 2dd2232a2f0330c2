r"""Masks with scores that differ: what excluded keys have instead of the weight 0.

If a number c stands in place of excluded scores, or is added to them, excluded keys e keep a weight beside keys a:

    filled: log w_e - log w_a = c - s_a        added: log w_e - log w_a = s_e + c - s_a

Constants such as -1e9 show only where allowed scores lie below them. Here they do: key j scores T (j - Lk), and causal
rows see the lowest keys, so that excluded keys win if c > -T. If they do, T is halved until c can be read off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.within import in_some_calls
from conformance.experiments.candidates.scores.features import bias_left_out, of_mask_bias
from conformance.experiments.designs import NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.masks.candidates import rarer
from conformance.experiments.masks.exclusion import added, exclusion_bugs, filled
from conformance.experiments.masks.reading import read_constants, read_exclusion
from conformance.experiments.probe import Probe
from conformance.experiments.probes.steps.masks import MOST_CONFIGS, SMALL, WIDE, pattern
from conformance.experiments.readings.weights import read_weights
from conformance.experiments.view import View, fits
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, AttentionMask

LARGEST = (30.0, 3e3, 3e4, 3e6, 3e9, 3e12)
"""T of the problems: each is between constants in use."""


def _masked(lab: Lab) -> Sequence[Problem]:
    return [
        generic(config, seed=1, mask=mask)
        for config in lab.configs[:MOST_CONFIGS]
        for mask in (
            AttentionMask(causal=True),
            AttentionMask(valid_lens=np.array([3])),
            AttentionMask(allowed=pattern((1, config.num_heads, *SMALL), 7)),
        )
    ]


def _with_masks_and_biases(lab: Lab) -> Sequence[Problem]:
    found = []
    for config in lab.configs[:2]:
        numbers = np.random.default_rng(6).normal(size=(1, config.num_heads, *SMALL))
        bias = np.where(np.abs(numbers) < 0.2, 0.0, numbers)
        found.append(generic(config, mask=AttentionMask(causal=True, bias=bias)))
        bias = np.where(pattern(bias.shape, 8), bias, -np.inf)
        found.append(generic(config, mask=AttentionMask(bias=bias)))
        found.append(generic(config, mask=AttentionMask(bias=bias, valid_lens=np.array([4]))))
    return found


@lru_cache(maxsize=512)
def steep(config: AttentionConfig, size: float, query_len: int = WIDE[0], key_len: int = WIDE[1]) -> Problem:
    """A causal problem in which key j scores size * (j - Lk), for every query and head."""
    weights: dict[str, NDArray | float] = {**NO_BIASES}
    d = config.head_dim
    for name, heads, width in (
        ("q_proj", config.num_heads, config.query_dim),
        ("k_proj", config.num_kv_heads, config.key_dim),
    ):
        array = np.zeros((heads * d, width))
        array[::d, 0] = 1.0
        weights[f"{name}.weight"] = array
    plain = generic(config, query_len=query_len, key_len=key_len)
    queries, keys = plain.inputs.queries.copy(), plain.inputs.keys.copy()
    queries[..., 0] = size / config.softmax_scale
    keys[..., 0] = np.arange(key_len) - key_len
    mask = AttentionMask(causal=True)
    return generic(config, query_len=query_len, key_len=key_len, mask=mask, weights=weights, queries=queries, keys=keys)


def _steep(lab: Lab) -> Sequence[Problem]:
    """Each T; and where the answers turn wrong between two, the T at which the excluded key's weight can be read."""
    found = []
    for place, config in enumerate(lab.configs[:2]):
        if not config.projections:
            continue
        sizes = [size for size in LARGEST if _is_held(lab, config, size)]
        found += [steep(config, size) for size in (sizes if place == 0 else sizes[1::2])]
        edge = _edge(lab, config) if place == 0 else None
        found += [] if edge is None else [edge]
    return found


def _is_held(lab: Lab, config: AttentionConfig, size: float) -> bool:
    """Whether the dtype has numbers for queries, and products with keys, of such scores: else right layers give NaN."""
    largest = float(np.finfo(np.float16).max) if lab.precision.storage == "float16" else np.inf
    return size * WIDE[1] / min(1.0, config.softmax_scale) <= largest


STEPS = 8
"""Halvings of the exponent's range, before halvings of the range itself."""

MOST_STEPS = 50


def _edge(lab: Lab, config: AttentionConfig) -> Problem | None:
    """The problem with two keys, of which causal lets in one, in which both have a weight; None if there is none.

    Key 0, which is let in, scores -2 T, and key 1 -T: log w_1 - log w_0 = c + 2 T if c stands in place of excluded
    scores, c + T if it is added to them.
    """
    held = [size for size in LARGEST if _is_held(lab, config, size)]
    if all(lab.output(steep(config, size)) is None or lab.is_right(steep(config, size)) for size in held):
        return None
    low, high = 1.0, held[-1]
    for step in range(MOST_STEPS):
        middle = (low * high) ** 0.5 if step < STEPS else (low + high) / 2
        problem = steep(config, middle, 1, 2)
        weights = read_weights(lab.output, problem)
        if weights is None or not np.isfinite(weights).all():
            return None
        least = float(np.abs(weights).min())
        if least > READABLE:
            return problem
        low, high = (middle, high) if np.all(np.abs(weights[..., 1]) < weights[..., 0]) else (low, middle)
    return None


READABLE = 1e-6
"""The weight from which on one is read."""


def _excluded(view: View) -> Iterator[Bug]:
    """Constants in use; then those that are read off; then all of them in some heads or queries alone."""
    wrong = next(view.differing(), None)
    if wrong is None:
        return
    likely = [*read_exclusion(view, wrong), *exclusion_bugs()]
    yield from likely
    if not any(fits(view.lab, view.variants, wrong, (*view.model, bug)) for bug in likely):
        yield from rarer(view, wrong, likely)


def _excluded_or_biased(view: View) -> Iterator[Bug]:
    """Also what becomes of the additive bias in calls with the one source or the other."""
    yield from in_some_calls(view, (*of_mask_bias(view), bias_left_out()))
    yield from _excluded(view)


def _constants(view: View) -> Iterator[Bug]:
    """The constant that is read off where both keys have a weight, and those in use; in some heads alone if need be."""
    numbers = [
        one for problem in view.problems if problem.sizes.query_len == 1 for one in read_constants(view, problem)
    ]
    likely = [bug for number in numbers for bug in (*filled(number), *added(number))]
    likely += exclusion_bugs()
    yield from likely
    wrong = next(view.differing(), None)
    if wrong is not None and not any(fits(view.lab, view.variants, wrong, (*view.model, bug)) for bug in likely):
        yield from rarer(view, wrong, likely)


PROBES = (
    Probe(
        "masked-scores",
        "One source of a mask, generic queries and keys: what excluded keys have, and what the allowed ones share.",
        r"\log a_{ie} - \log a_{ia} = c - s_{ia}",
        _masked,
        _excluded,
    ),
    Probe(
        "masked-scores-with-bias",
        "An additive bias beside another source of the mask, and -inf in it.",
        r"a_{ij} \propto m_{ij} \exp(s_{ij} + b_{ij})",
        _with_masks_and_biases,
        _excluded_or_biased,
    ),
    Probe(
        "excluded-large",
        "Causal rows whose allowed keys score far below the excluded ones: a constant in place of -inf shows.",
        r"s_{ij} = T (j - L_k), \quad T = 30 \ldots 3 \cdot 10^{12}",
        _steep,
        _constants,
    ),
)
