"""What stands around the scores: biases of projections, scale, the plain dot product, softcap, additive score, bias."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import NO_BIASES, generic
from conformance.measure.evidence import Evidence
from conformance.measure.probe import Probe, Problems
from conformance.measure.probes.scores import LENGTHS, LONGER
from conformance.measure.propose.equal_shapes import biases_where_equal
from conformance.measure.propose.scores import of_additive, of_softcap
from conformance.measure.propose.steps import Candidate, at_places, of_places, reordered
from mha_core import AttentionConfig, AttentionMask
from mha_core.errors import SpecError

SCALES = (0.31, 1.7, 0.83, -0.55)
CAPS = (0.8, 1.3, 0.6, 1.7)
OTHER_CAPS = (2.6, 0.9, 4.1, 1.4)
HIDDEN_SIZES = (5, 4, 3, 6)


@lru_cache(maxsize=256)
def _call(config: AttentionConfig, query_len: int, key_len: int, without_biases: bool, bias: str) -> Problem:
    weights = NO_BIASES if without_biases else {}
    mask = _mask(config, query_len, key_len, bias)
    return generic(config, query_len=query_len, key_len=key_len, weights=weights, mask=mask)


def _mask(config: AttentionConfig, query_len: int, key_len: int, bias: str) -> AttentionMask:
    shapes = {
        "whole": (1, config.num_heads, query_len, key_len),
        "matrix": (query_len, key_len),
        "heads": (config.num_heads, query_len, key_len),
        "keys": (1, 1, 1, key_len),
    }
    if not bias:
        return AttentionMask()
    shape = shapes[bias]
    numbers = np.random.default_rng(len(shape) + sum(shape)).normal(size=shape)
    return AttentionMask(bias=np.where(np.abs(numbers) < 0.2, 0.0, numbers))


def _with(*calls: dict[str, Any]) -> Problems:
    """A call of each layer for each of some choices: fields of its config, a mask's bias, lengths."""

    def problems(asker: Asker) -> Sequence[Problem]:
        return [problem for how in calls for problem in _each(asker, **how)]

    return problems


def _each(
    asker: Asker, *, biased: bool = False, bias: str = "", square: bool = False, long: bool = False, **fields: Any
) -> Iterator[Problem]:
    for place, config in enumerate(asker.configs):
        query_len, key_len = (LONGER if long else LENGTHS)[place % 4]
        try:
            changed = replace(config, **{name: choice[place % len(choice)] for name, choice in fields.items()})
        except SpecError:
            continue
        yield _call(changed, key_len if square else query_len, key_len, not biased, bias)


BIASES = ("q_proj.bias", "k_proj.bias")


def _of_biases(evidence: Evidence) -> Iterator[Candidate]:
    yield from biases_where_equal()
    yield from at_places(evidence, evidence.problems, (*BIASES, "q_proj", "k_proj", "queries", "keys"))
    yield from reordered(BIASES)


BIASED = r"\log a_{ij} - \log a_{ik} = s_{ij} - s_{ik} + B_{ij} - B_{ik}"
CAPPED = r"s_{ij} = c \tanh(\sigma q_i^\top k_j / c)"

PROBES = (
    Probe(
        "projection-biases",
        "Queries and keys with biases, no mask: that of the keys cancels in a softmax, that of the queries shows.",
        r"\log a_{ij} - \log a_{ik} = c\, (W_q x_i + b_q)^\top (k_j - k_k)",
        _with({"biased": True}),
        _of_biases,
    ),
    Probe(
        "given-scale",
        "A scale that is given, another one in each layer.",
        r"s_{ij} = \sigma\, q_i^\top k_j",
        _with({"scale": SCALES}),
        of_places("scale", "similarity"),
        unknown="A given scale: the subject takes none.",
    ),
    Probe(
        "dot-score",
        "The plain dot product.",
        r"s_{ij} = q_i^\top k_j",
        _with({"score": ("dot",), "scale": (None,)}),
        of_places("similarity"),
        unknown="score='dot': the subject does not take it.",
    ),
    Probe(
        "softcap",
        "A softcap near the scores, another one in each layer.",
        CAPPED,
        _with({"softcap": CAPS}),
        of_softcap,
        unknown="A softcap: the subject takes none.",
    ),
    Probe(
        "softcap-with-scale",
        "A softcap and a given scale.",
        CAPPED,
        _with({"softcap": OTHER_CAPS, "scale": SCALES}),
        of_softcap,
    ),
    Probe(
        "key-biases",
        "A softcap and biases: scores are no longer linear in keys, so the keys' bias shows.",
        r"s_{ij} = c \tanh(\sigma q_i^\top (W_k x_j + b_k) / c)",
        _with({"biased": True, "softcap": CAPS}),
        _of_biases,
        unknown="The bias of keys: without a softcap it changes no output.",
    ),
    Probe(
        "additive-score",
        "The additive score, without biases; hidden layers of another width than heads, and of the same.",
        r"s_{ij} = w^\top \tanh(A q_i + C k_j)",
        _with(
            {"score": ("additive",), "scale": (None,), "score_dim": HIDDEN_SIZES},
            {"score": ("additive",), "scale": (None,)},
        ),
        of_additive,
        unknown="score='additive': the subject does not take it.",
    ),
    Probe(
        "score-bias",
        "An additive bias of all heads, queries and keys; no biases of projections.",
        BIASED,
        _with({"bias": "whole"}),
        of_places("bias"),
        unknown="An additive bias: the subject takes none.",
    ),
    Probe(
        "score-bias-square",
        "An additive bias of as many queries as keys.",
        BIASED,
        _with({"bias": "whole", "square": True}),
        of_places("bias"),
    ),
    Probe(
        "score-bias-broadcast",
        "An additive bias of fewer axes, or of length 1: (Lq, Lk), (H, Lq, Lk), (1, 1, 1, Lk).",
        r"B_{ij},\ B_{hij},\ B_j",
        _with({"bias": "matrix"}, {"bias": "heads"}, {"bias": "keys"}),
        of_places("bias"),
    ),
    Probe(
        "score-bias-with-scale",
        "An additive bias, a given scale and a softcap; longer calls, in which some positions alone may be wrong.",
        r"s_{ij} = c \tanh(\sigma q_i^\top k_j / c) + B_{ij}",
        _with(
            {"bias": "whole", "scale": SCALES},
            {"bias": "whole", "softcap": CAPS},
            {"bias": "whole", "softcap": CAPS, "long": True},
        ),
        of_places("bias", "scores", "capped"),
    ),
)
