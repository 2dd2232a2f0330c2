r"""Around the scores: biases of projections, a given scale, other score functions, the softcap, the additive bias.

Each is met alone, the scores of a plain layer being known by then:

    s_ij = c \tanh(\sigma q_i^\top k_j / c) + B_ij
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.candidates.equal_shapes import biases_where_equal
from conformance.experiments.candidates.scores.features import (
    TRANSPOSED,
    of_hidden,
    of_inside,
    of_mask_bias,
    of_parameters,
    of_scale,
    of_scores,
    of_softcap,
)
from conformance.experiments.candidates.scores.places import ADDITIVE, BIASES
from conformance.experiments.candidates.scores.sides import LENGTHS as LONGER
from conformance.experiments.designs import NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from conformance.experiments.probes.steps.scores import LENGTHS
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, AttentionMask
from mha_core.errors import SpecError

SCALES = (0.31, 1.7, 0.83, -0.55)
CAPS = (0.8, 1.3, 0.6, 1.7)
OTHER_CAPS = (2.6, 0.9, 4.1, 1.4)
HIDDEN_SIZES = (5, 4, 3, 6)
WITH_BIASES: dict[str, float] = {}


@lru_cache(maxsize=256)
def _call(config: AttentionConfig, query_len: int, key_len: int, without_biases: bool, bias: str = "") -> Problem:
    mask = _mask(config, query_len, key_len, bias)
    weights = NO_BIASES if without_biases else WITH_BIASES
    return generic(config, query_len=query_len, key_len=key_len, weights=weights, mask=mask)


def _mask(config: AttentionConfig, query_len: int, key_len: int, bias: str) -> AttentionMask:
    shapes = {
        "whole": (1, config.num_heads, query_len, key_len),
        "by-head": (config.num_heads, 1, 1),
        "matrix": (query_len, key_len),
        "heads": (config.num_heads, query_len, key_len),
        "keys": (1, 1, 1, key_len),
    }
    if not bias:
        return AttentionMask()
    shape = shapes[bias]
    numbers = np.random.default_rng(len(shape) + sum(shape)).normal(size=shape)
    return AttentionMask(bias=np.where(np.abs(numbers) < 0.2, 0.0, numbers))


def _calls(
    lab: Lab, *, without_biases: bool = True, bias: str = "", square: bool = False, longer: bool = False, **fields: Any
) -> list[Problem]:
    """A call of each layer with other fields of its config, each a choice for each layer."""
    found = []
    lengths = LONGER if longer else LENGTHS
    for place, config in enumerate(lab.configs):
        query_len, key_len = lengths[place % len(lengths)]
        chosen = {name: choice[place % len(choice)] for name, choice in fields.items()}
        try:
            changed = replace(config, **chosen)
        except SpecError:
            continue
        query_len = key_len if square else query_len
        found.append(_call(changed, query_len, key_len, without_biases, bias))
    return found


# Candidates -----------------------------------------------------------------------------------------


def _of_biases(view: View) -> Iterator[Bug]:
    yield from biases_where_equal()
    yield from of_parameters(view, BIASES)


def _of_additive(view: View) -> Iterator[Bug]:
    yield from (*of_hidden(), *TRANSPOSED)
    yield from of_inside(view)
    yield from of_parameters(view, ADDITIVE)


def _problems(*calls: Any) -> Any:
    """Problems of several calls of `_calls`, one after another."""

    def problems(lab: Lab) -> Sequence[Problem]:
        return [problem for options in calls for problem in _calls(lab, **options)]

    return problems


PROBES = (
    Probe(
        "projection-biases",
        "Queries and keys with biases, no mask: that of the keys cancels in a softmax, that of the queries shows.",
        r"\log a_{ij} - \log a_{ik} = c\, (W_q x_i + b_q)^\top (k_j - k_k)",
        _problems({"without_biases": False}),
        _of_biases,
    ),
    Probe(
        "given-scale",
        "A scale that is given, another one in each layer.",
        r"s_{ij} = \sigma\, q_i^\top k_j",
        _problems({"scale": SCALES}),
        of_scale,
        unknown="A given scale: the subject takes none.",
    ),
    Probe(
        "dot-score",
        "The plain dot product.",
        r"s_{ij} = q_i^\top k_j",
        _problems({"score": ("dot",), "scale": (None,)}),
        of_scores,
        unknown="score='dot': the subject does not take it.",
    ),
    Probe(
        "softcap",
        "A softcap near the scores, another one in each layer.",
        r"s_{ij} = c \tanh(\sigma q_i^\top k_j / c)",
        _problems({"softcap": CAPS}),
        of_softcap,
        unknown="A softcap: the subject takes none.",
    ),
    Probe(
        "softcap-with-scale",
        "A softcap and a given scale.",
        r"s_{ij} = c \tanh(\sigma q_i^\top k_j / c)",
        _problems({"softcap": OTHER_CAPS, "scale": SCALES}),
        of_softcap,
    ),
    Probe(
        "key-biases",
        "A softcap and biases: scores are no longer linear in keys, so the keys' bias shows.",
        r"s_{ij} = c \tanh(\sigma q_i^\top (W_k x_j + b_k) / c)",
        _problems({"without_biases": False, "softcap": CAPS}),
        _of_biases,
        unknown="The bias of keys: without a softcap it changes no output.",
    ),
    Probe(
        "additive-score",
        "The additive score, without biases; hidden layers of another width than heads, and of the same.",
        r"s_{ij} = w^\top \tanh(A q_i + C k_j)",
        _problems(
            {"score": ("additive",), "scale": (None,), "score_dim": HIDDEN_SIZES},
            {"score": ("additive",), "scale": (None,)},
        ),
        _of_additive,
        unknown="score='additive': the subject does not take it.",
    ),
    Probe(
        "score-bias",
        "An additive bias of all heads, queries and keys; no biases of projections.",
        r"\log a_{ij} - \log a_{ik} = s_{ij} - s_{ik} + B_{ij} - B_{ik}",
        _problems({"bias": "whole"}),
        of_mask_bias,
        unknown="An additive bias: the subject takes none.",
    ),
    Probe(
        "score-bias-square",
        "An additive bias of as many queries as keys.",
        r"\log a_{ij} - \log a_{ik} = s_{ij} - s_{ik} + B_{ij} - B_{ik}",
        _problems({"bias": "whole", "square": True}),
        of_mask_bias,
    ),
    Probe(
        "score-bias-broadcast",
        "An additive bias of fewer axes, or of length 1: (Lq, Lk), (H, Lq, Lk), (1, 1, 1, Lk).",
        r"B_{ij},\ B_{hij},\ B_j",
        _problems({"bias": "matrix"}, {"bias": "heads"}, {"bias": "keys"}),
        of_mask_bias,
    ),
    Probe(
        "score-bias-with-scale",
        "An additive bias, a given scale and a softcap; longer calls, in which some positions alone may be wrong.",
        r"s_{ij} = c \tanh(\sigma q_i^\top k_j / c) + B_{ij}",
        _problems(
            {"bias": "whole", "scale": SCALES},
            {"bias": "whole", "softcap": CAPS},
            {"bias": "whole", "softcap": CAPS, "longer": True},
        ),
        of_mask_bias,
    ),
)
