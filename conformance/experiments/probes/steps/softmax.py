"""The softmax: how weights follow from scores, whatever the steps after it do with them.

a_ij = exp(s_ij - m_i) / sum_k exp(s_ik - m_i)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.cases.problem import Problem
from conformance.experiments.candidates.rounded import rounded
from conformance.experiments.candidates.scores.sides import longer
from conformance.experiments.candidates.weights.softmaxes import likeliest
from conformance.experiments.designs import NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, reference

# Problems ------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _rows_of(config: AttentionConfig) -> tuple[Problem, ...]:
    return tuple(generic(config, seed=7, query_len=q, key_len=k, weights=NO_BIASES) for q, k in ((3, 5), (4, 7)))


def _rows(lab: Lab) -> list[Problem]:
    return lab.nearest([_rows_of(config)[1] for config in lab.configs[:3]])


def _longer(lab: Lab) -> Sequence[Problem]:
    return [_rows_of(config)[1] for config in lab.configs]


def propose(view: View) -> Iterator[Bug]:
    """Every softmax that gives the measured weights, of longer rows too."""
    return likeliest(view, (*_rows(view.lab), *longer(view.lab)))


def far(lab: Lab) -> float:
    """A score whose exponential overflows where the subject computes its softmax."""
    return 900.0 if lab.unit <= UNIT_ROUNDOFF["float64"] else 120.0


def _of_size(config: Any, size: float, seed: int) -> Problem:
    """A problem of 4 queries whose largest scores are about 0.1, 3, size / 8 and size."""
    problem = generic(config, seed=seed, query_len=4, key_len=7, weights=NO_BIASES)
    trace_scores = np.abs(_scores(problem)).max(axis=(1, 3))[:, :, None]  # (B, Lq, 1)
    wanted = np.array([0.1, 3.0, size / 8.0, size])[None, :, None]
    return generic(
        config,
        seed=seed,
        query_len=4,
        key_len=7,
        weights=NO_BIASES,
        queries=problem.inputs.queries * wanted / trace_scores,
    )


def _scores(problem: Problem) -> NDArray:
    return reference.run(problem.config, problem.weights, problem.inputs).scores  # type: ignore[return-value]


def _moderate(lab: Lab) -> Sequence[Problem]:
    return [_of_size(config, 30.0, 8) for config in lab.configs]


def _large(lab: Lab) -> Sequence[Problem]:
    return [_of_size(config, far(lab), 9) for config in lab.configs]


def _rounded_or_other(view: View) -> Iterator[Bug]:
    """Roundings of any step, which show everywhere, and other softmaxes."""
    yield from rounded(view)
    yield from propose(view)


PROBES = (
    Probe(
        "softmax",
        "More keys, without biases or mask: sums, other functions, temperatures, weights that are left out or rounded.",
        r"a_{ij} = f(s_{i1}, \ldots, s_{in})_j \text{ with } f = \mathrm{softmax}?",
        _longer,
        _rounded_or_other,
        everywhere=True,
    ),
    Probe(
        "softmax-moderate",
        "Rows of scores up to 0.1, 3, 4 and 30: bounds of scores, small weights that are left out.",
        r"\log a_{ij} - \log a_{ik} = s_{ij} - s_{ik} \text{ down to } a \approx e^{-60}",
        _moderate,
        propose,
    ),
    Probe(
        "softmax-large",
        "Scores beyond where exp overflows, in some rows: which maximum is subtracted.",
        r"e^{s_{ij} - m_i} \le 1 \text{ if } m_i = \max_k s_{ik}",
        _large,
        propose,
    ),
)
