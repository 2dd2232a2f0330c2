r"""Scores: queries against keys without a mask, the softmax, and what stands around the scores: biases, scale, softcap.

Ratios of weights tell differences of scores, whatever the softmax divides by:

    log a_ij - log a_ik = s_ij - s_ik,        s_ij = c \tanh(\sigma q_i^\top k_j / c) + B_ij

With weights that are all equal on one side, only the other side's projection can show; then both sides are met.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import MANY_HEADS, NO_BIASES, generic
from conformance.measure.evidence import Evidence
from conformance.measure.grammar.roundings import COMMON
from conformance.measure.places import PLACES, fault
from conformance.measure.probe import Probe, Problems
from conformance.measure.propose.equal_shapes import biases_where_equal, where_equal
from conformance.measure.propose.equivalent_calls import AMONG_ITEMS, AMONG_MASKS, asked_in
from conformance.measure.propose.scores import of_additive, of_softcap, up_to_scores
from conformance.measure.propose.steps import Candidate, at_places, of_places, reordered
from conformance.measure.propose.weights import other_weights
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, AttentionMask, reference
from mha_core.config import ProjectionBias
from mha_core.errors import SpecError

# Queries and keys ---------------------------------------------------------------------------------------------

LENGTHS = ((3, 5), (2, 6), (4, 7), (3, 4))
"""Queries and keys of the layers' calls: different ones, so that what depends on a length is no constant."""

LONGER = ((6, 11), (11, 6), (5, 22), (22, 5))
"""Those of longer calls: enough for several places of each kind."""


def _even(config: AttentionConfig, projection: str) -> dict[str, NDArray]:
    """W that gives every channel of every head the mean of the input's channels."""
    heads, columns = {
        "q_proj": (config.num_heads, config.query_dim),
        "k_proj": (config.num_kv_heads, config.key_dim),
    }[projection]
    return {f"{projection}.weight": np.full((heads * config.head_dim, columns), 1.0 / columns)}


def _rows(length: int, width: int, first: float, last: float) -> NDArray:
    """(1, length, width): rows of equal channels, from `first` to `last`."""
    return np.broadcast_to(np.linspace(first, last, length)[None, :, None], (1, length, width)).copy()


def _calls(asker: Asker) -> Iterator[tuple[AttentionConfig, int, int]]:
    for place, config in enumerate(asker.configs):
        yield config, *LENGTHS[place % len(LENGTHS)]


def _size_alone(asker: Asker) -> Sequence[Problem]:
    return [
        generic(
            config,
            query_len=1,
            key_len=key_len,
            weights={**NO_BIASES, **_even(config, "q_proj"), **_even(config, "k_proj")},
            queries=_rows(1, config.query_dim, 0.4 + 0.2 * key_len, 0.4 + 0.2 * key_len),
            keys=_rows(key_len, config.key_dim, -0.6, 0.9),
        )
        for config, _, key_len in _calls(asker)
    ]


def _queries_alone(asker: Asker) -> Sequence[Problem]:
    return [
        generic(
            config,
            query_len=query_len,
            key_len=key_len,
            weights={**NO_BIASES, **_even(config, "k_proj")},
            keys=_rows(key_len, config.key_dim, -0.6, 0.9),
        )
        for config, query_len, key_len in _calls(asker)
    ]


def _keys_alone(asker: Asker) -> Sequence[Problem]:
    return [
        generic(
            config,
            query_len=query_len,
            key_len=key_len,
            weights={**NO_BIASES, **_even(config, "q_proj")},
            queries=_rows(query_len, config.query_dim, 0.7, 1.3),
        )
        for config, query_len, key_len in _calls(asker)
    ]


@lru_cache(maxsize=64)
def _plain(config: AttentionConfig, query_len: int, key_len: int) -> Problem:
    return generic(config, query_len=query_len, key_len=key_len, weights=NO_BIASES)


def _generic(asker: Asker) -> Sequence[Problem]:
    return asker.nearest([_plain(*call) for call in _calls(asker)])


def _square(asker: Asker) -> Sequence[Problem]:
    return [_plain(config, key_len, key_len) for config, _, key_len in _calls(asker)]


def longer(asker: Asker) -> Sequence[Problem]:
    """A call of each layer with more queries and keys than it has channels, without biases and masks."""
    found = []
    for place, config in enumerate(asker.configs):
        query_len, key_len = LONGER[place % len(LONGER)]
        found.append(_plain(config, max(query_len, config.head_dim), max(key_len, config.head_dim + 1)))
    return asker.nearest(found)


# The softmax --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _row(config: AttentionConfig) -> Problem:
    return generic(config, seed=7, query_len=4, key_len=7, weights=NO_BIASES)


def _of_rows(asker: Asker) -> Sequence[Problem]:
    return [_row(config) for config in asker.configs]


def _of_many_heads(asker: Asker) -> Sequence[Problem]:
    if asker.fixed_weights is not None:
        return []
    return [generic(MANY_HEADS, seed=7, query_len=4, key_len=7, weights=NO_BIASES)]


def of_softmax(evidence: Evidence) -> Iterator[Bug]:
    """Every softmax that gives the measured weights, of longer rows too."""
    rows = evidence.asker.nearest([_row(config) for config in evidence.asker.configs[:3]])
    return other_weights(evidence, (*rows, *longer(evidence.asker)))


LITTLE = 0.1
"""Of the largest number of an output; what rounds to eight bits is off by less."""

ROUNDED = (
    *("query_inputs", "key_inputs", "value_inputs", "queries", "keys", "values", "past_keys", "past_values"),
    *("unscaled", "similarity", "scores", "weights", "heads", "merged", "output"),
    *("q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"),
)


def _rounded_or_other(evidence: Evidence) -> Iterator[Bug]:
    """Roundings of any step or matrix, if the first differing output is only a little off; and other softmaxes."""
    problem = next(evidence.differing(), None)
    got, made = (None, None) if problem is None else (evidence.got(problem), evidence.made(problem))
    if got is not None and made is not None and np.isfinite(got).all():
        if np.abs(got - made).max(initial=0.0) <= LITTLE * np.abs(made).max(initial=0.0):
            yield from (fault(PLACES[id], change) for change in COMMON for id in ROUNDED)
    yield from of_softmax(evidence)


def far(asker: Asker) -> float:
    """A score whose exponential overflows where the subject computes its softmax."""
    return 900.0 if asker.unit <= UNIT_ROUNDOFF["float64"] else 120.0


def _of_size(config: AttentionConfig, size: float, seed: int) -> Problem:
    """A problem of 4 queries whose largest scores are about 0.1, 3, size / 8 and size."""
    how: dict[str, Any] = {"seed": seed, "query_len": 4, "key_len": 7, "weights": NO_BIASES}
    problem = generic(config, **how)
    scores = np.asarray(reference.run(problem.config, problem.weights, problem.inputs).scores)
    largest = np.abs(scores).max(axis=(1, 3))[:, :, None]  # (B, Lq, 1)
    wanted = np.array([0.1, 3.0, size / 8.0, size])[None, :, None]
    return generic(config, queries=problem.inputs.queries * wanted / largest, **how)


# Around the scores --------------------------------------------------------------------------------------------

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


# Several items ------------------------------------------------------------------------------------------------

SIZES = ((2, 3, 5), (3, 4, 6), (4, 3, 3), (5, 2, 4))
"""(B, Lq, Lk), the third with Lq = Lk."""

OF_ITEMS = (
    *("scale", "output", "merged", "heads", "kept_weights", "weights", "values", "v_proj", "scores", "similarity"),
    *("keys", "k_proj", "queries", "q_proj"),
)


def _several(asker: Asker) -> Sequence[Problem]:
    configs = [asker.configs[index % len(asker.configs)] for index in range(len(SIZES))] if asker.configs else []
    return [
        generic(config, batch=batch, query_len=query_len, key_len=key_len)
        for config, (batch, query_len, key_len) in zip(configs, SIZES, strict=False)
    ]


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


CIRCUMSTANCES = (*AMONG_ITEMS, *AMONG_MASKS)


def _alike(asker: Asker) -> Sequence[Problem]:
    return asked_in(CIRCUMSTANCES, [generic(config) for config in asker.configs[:3]])


# Layers of equal widths ---------------------------------------------------------------------------------------

EQUAL = {
    bias: (
        AttentionConfig(15, 3, bias=bias),
        AttentionConfig(8, 2, bias=bias),
        AttentionConfig(12, 4, num_kv_heads=2, bias=bias),
    )
    for bias in (True, False)
}
"""With biases and without; in the last layer W_q and W_o have one shape, W_k and W_v another."""


def _equal_widths(lengths: Sequence[tuple[int, int]], *, biased: bool = False) -> Problems:
    """Layers of equal widths; without biases if the subject takes none; not those of a subject whose sizes are fixed."""

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
BIASED = r"\log a_{ij} - \log a_{ik} = s_{ij} - s_{ik} + B_{ij} - B_{ik}"
CAPPED = r"s_{ij} = c \tanh(\sigma q_i^\top k_j / c)"

PROBES = (
    Probe(
        "score-size",
        "One query; all channels and heads of queries and keys alike, so only the size of scores can show.",
        r"\log a_{j} - \log a_{k} = c\, d\, \bar q\, (\bar k_j - \bar k_k)",
        _size_alone,
        up_to_scores,
    ),
    Probe(
        "queries",
        "All channels and heads of the keys alike, so only the queries can show: their heads and inputs.",
        r"\log a_{ij} - \log a_{ik} = c\, (\sum_c q_{ic}) (\bar k_j - \bar k_k)",
        _queries_alone,
        up_to_scores,
    ),
    Probe(
        "keys",
        "All channels and heads of the queries alike, so only the keys can show.",
        r"\log a_{ij} - \log a_{ik} = c\, \bar q_i \sum_c (k_{jc} - k_{kc})",
        _keys_alone,
        up_to_scores,
    ),
    Probe(
        "scores",
        "Queries and keys without biases or mask: the bilinear form of the scores.",
        SCORE,
        _generic,
        up_to_scores,
        unknown="Scores: the subject took no call without a mask.",
    ),
    Probe("scores-square", "As many queries as keys, so what exchanges them can show.", SCORE, _square, up_to_scores),
    Probe(
        "scores-longer",
        "More queries and keys: what is wrong at some positions only, or in longer calls, shows.",
        SCORE,
        longer,
        up_to_scores,
    ),
    Probe(
        "softmax",
        "More keys, without biases or mask: sums, other functions, temperatures, weights that are left out or rounded.",
        r"a_{ij} = f(s_{i1}, \ldots, s_{in})_j \text{ with } f = \mathrm{softmax}?",
        _of_rows,
        _rounded_or_other,
        everywhere=True,
    ),
    Probe(
        "softmax-of-many-heads",
        "12 heads, without biases or mask: what each head has of its own shows in heads that no other layer has.",
        r"a_{hij} = f_h(s_{hi1}, \ldots, s_{hin})_j \text{ with } f_h = \mathrm{softmax}?",
        _of_many_heads,
        up_to_scores,
    ),
    Probe(
        "softmax-moderate",
        "Rows of scores up to 0.1, 3, 4 and 30: bounds of scores, small weights that are left out.",
        r"\log a_{ij} - \log a_{ik} = s_{ij} - s_{ik} \text{ down to } a \approx e^{-60}",
        lambda asker: [_of_size(config, 30.0, 8) for config in asker.configs],
        of_softmax,
    ),
    Probe(
        "softmax-large",
        "Scores beyond where exp overflows, in some rows: which maximum is subtracted.",
        r"e^{s_{ij} - m_i} \le 1 \text{ if } m_i = \max_k s_{ik}",
        lambda asker: [_of_size(config, far(asker), 9) for config in asker.configs],
        of_softmax,
    ),
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
    Probe("softcap-with-scale", "A softcap and a given scale.", CAPPED, _with({"softcap": OTHER_CAPS, "scale": SCALES}), of_softcap),
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
            {"score": ("additive",), "scale": (None,), "score_dim": HIDDEN_SIZES}, {"score": ("additive",), "scale": (None,)}
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
    Probe("score-bias-square", "An additive bias of as many queries as keys.", BIASED, _with({"bias": "whole", "square": True}), of_places("bias")),
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
    Probe(
        "items",
        "Batches of 2 to 5 items without a mask: queries, keys and weights that are another item's.",
        r"s_{bij} = \sum_{b'} M_{bb'}\, c\, q_{b'i}^\top k_{bj}, \quad M = I",
        _several,
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
        _alike,
        circumstances=CIRCUMSTANCES,
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
