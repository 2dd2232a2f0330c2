r"""Several items in a call, and layers of equal widths, where one array may be taken for another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import NO_BIASES, generic, in_turn
from conformance.measure.evidence import Evidence
from conformance.measure.probe import Probe, Problems
from conformance.measure.propose.equal_shapes import where_equal
from conformance.measure.propose.equivalent_calls import AMONG_ITEMS, AMONG_MASKS, asked_in
from conformance.measure.propose.steps import Candidate, at_places, of_places
from conformance.measure.propose.weights import other_weights
from mha_core import AttentionConfig, AttentionMask
from mha_core.config import ProjectionBias

# Several items ------------------------------------------------------------------------------------------------

SIZES = ((2, 3, 5), (3, 4, 6), (4, 3, 3), (5, 2, 4))
"""(B, Lq, Lk), the third with Lq = Lk."""

OF_ITEMS = (
    *("scale", "output", "merged", "heads", "kept_weights", "weights", "values", "v_proj", "scores", "similarity"),
    *("keys", "k_proj", "queries", "q_proj"),
)


OF_CALLS = ("output", "heads", "weights", "values", "scores", "queries", "keys")
"""Places that are looked at where some kinds of calls, or some items, alone differ."""


def _several_biased(asker: Asker) -> Sequence[Problem]:
    found = []
    for config, (batch, query_len, key_len) in zip(asker.configs, SIZES[1:], strict=False):
        bias = np.random.default_rng(batch).normal(size=(batch, config.num_heads, query_len, key_len))
        mask = AttentionMask(bias=bias)
        found.append(generic(config, batch=batch, query_len=query_len, key_len=key_len, mask=mask))
    return found


def of_several(evidence: Evidence) -> Iterator[Candidate]:
    """What items do to each other; softmaxes over several of them."""
    some = [problem for problem in evidence.problems if problem.sizes.batch > 1][:4]
    yield from at_places(evidence, some, OF_ITEMS)
    yield from other_weights(evidence, ())


# Layers of equal widths ---------------------------------------------------------------------------------------

WIDTHS = ((15, 3, 3), (8, 2, 2), (12, 4, 2))

EQUAL = {
    bias: [AttentionConfig(width, heads, num_kv_heads=groups, bias=bias) for width, heads, groups in WIDTHS]
    for bias in (True, False)
}
"""With biases and without; in the last layer W_q and W_o have one shape, W_k and W_v another."""


def _equal_widths(lengths: Sequence[tuple[int, int]], *, biased: bool = False) -> Problems:
    """Layers of equal widths, without biases if the subject takes none; none of a subject whose sizes are fixed."""

    def problems(asker: Asker) -> Sequence[Problem]:
        if asker.fixed_weights is not None:
            return []
        configs = EQUAL[any(config.bias != ProjectionBias() for config in asker.configs)]
        return [
            generic(config, query_len=query_len, key_len=key_len, weights={} if biased else NO_BIASES)
            for config, (query_len, key_len) in zip(configs, lengths, strict=True)
        ]

    return problems


SCORE = r"\log a_{ij} - \log a_{ik} = c\, q_i^\top (k_j - k_k)"

PROBES = (
    Probe(
        "items",
        "Batches of 2 to 5 items without a mask: queries, keys and weights that are another item's.",
        r"s_{bij} = \sum_{b'} M_{bb'}\, c\, q_{b'i}^\top k_{bj}, \quad M = I",
        lambda asker: in_turn(asker.configs, SIZES),
        of_several,
        unknown="what items of a batch do to each other",
    ),
    Probe(
        "items-with-bias",
        "Batches of 3 to 5 items, each with a bias of its own in the mask.",
        r"s_{bij} = c\, q_{bi}^\top k_{bj} + \sum_{b'} M_{bb'} B_{b'ij}, \quad M = I",
        _several_biased,
        of_places("bias", *OF_ITEMS),
        unknown="whether each item has its own bias",
    ),
    Probe(
        "calls-alike",
        "One call as each item of a batch, and under masks that hide nothing.",
        r"o(x, m) = o(x) \quad \text{where} \quad m_{ij} = 1, \qquad o_b(x_1, \ldots, x_B) = o(x_b)",
        lambda asker: asked_in((*AMONG_ITEMS, *AMONG_MASKS), [generic(config) for config in asker.configs[:3]]),
        of_places(*OF_CALLS),
        unknown="whether something befalls some kinds of calls or items alone",
    ),
    Probe(
        "equal-widths-one-key",
        "One query and one key in layers of equal widths, no biases: a value weight, an output weight or an input "
        "that is another one.",
        r"o_b = W_o W_v x_b",
        _equal_widths(((1, 1),) * 3),
        where_equal,
    ),
    Probe(
        "equal-widths",
        "Several keys in layers of equal widths, no biases: also a weight or an input of queries or keys that is "
        "another one.",
        r"\log a_{ij} - \log a_{ik} = c\, (W_q x_i)^\top W_k (x_j - x_k)",
        _equal_widths(((4, 4), (3, 5), (4, 4))),
        where_equal,
    ),
    Probe(
        "equal-widths-with-biases",
        "The same with biases: one that is another projection's.",
        r"o_{bi} = W_o \sum_j a_{ij} (W_v x_{bj} + b_v) + b_o",
        _equal_widths(((4, 4), (3, 5), (4, 4)), biased=True),
        where_equal,
        unknown="layers of equal widths, where one array may be taken for another: the subject takes none",
    ),
)
