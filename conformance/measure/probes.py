"""Probes: the table of rows of isolating problems, in their order: the first row that differs says where to look."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from conformance.measure import problems as p
from conformance.measure.designs import BARE, NO_BIASES, ONE_WIDTH, generic
from conformance.measure.problems import CAPS, LARGE, SCALES, SMALL, Problems


@dataclass(frozen=True)
class Probe:
    """A group of isolating problems: problems whose answers depend on only some steps of a layer.

    Args:
        id: its name, in kebab-case.
        says: its problems in words, such as "one key, whose attention weight is 1.".
        problems: its problems; those that the subject refuses are left out.
        stage: the wrong stage, if this is the first group with an error; "": `localise` must find it.
        places: ids of the arrays to solve for after an error, with spaces between, the likeliest first.
        gradients: whether gradients are compared instead of outputs.
    """

    id: str
    says: str
    problems: Problems
    stage: str = ""
    places: str = ""
    gradients: bool = False


IN_CALLS = "output heads weights scores"
SUMS = "weights kept_weights heads output"
VALUES = "output merged heads projected_values value_inputs"
SCORES = "scale similarity queries new_keys keys query_inputs key_inputs cosines nearness weights"
BIASES = "q_proj.bias k_proj.bias queries"
ITEMS = "output heads weights values queries keys"
PLAIN, LARGER, BIASED = p.of(NO_BIASES), p.of(NO_BIASES, values=10.0), p.of({})
UNIFORM, UNIFORM_BIASED = p.of(NO_BIASES, queries=0.0), p.of({"q_proj.bias": 0.0}, queries=0.0)
ONE_KEY, MANY = (2, 1), (4, 6)
NO_VALUES = p.each_layer(p.of(NO_BIASES, values=0.0), ONE_KEY)
ONE_KEYS = p.joined(
    *(p.each_layer(make, ONE_KEY) for make in (PLAIN, LARGER, BIASED)),
    p.of_layer(PLAIN, *ONE_KEY),
    p.of_layer(BIASED, *ONE_KEY, ONE_WIDTH),
)
SUMMED = p.joined(p.each_layer(UNIFORM, SMALL), p.each_layer(UNIFORM_BIASED, LARGE, LARGE[::-1], (2, 22)))
SCORED = p.joined(
    p.each_layer(p.scored, SMALL, LARGE),
    p.each_layer(p.zeroed, (SMALL[1], SMALL[1])),
    p.of_layer(p.zeroed, *MANY),
    p.of_layer(p.zeroed, *SMALL, ONE_WIDTH),
)
SCORED_BARE = p.joined(*(p.of_layer(p.scored, *SMALL, config) for config in BARE))
CAPPED, CAPPED_BIASED = p.with_fields(softcap=CAPS), p.with_fields(softcap=CAPS, weights={})
MASKS_OF_BARE = p.bare_with(
    *(
        ({}, mask)
        for mask in ({"causal": True}, {"window": (1, 0)}, {"valid_lens": np.array([3])}, {"allowed": p.pattern(SMALL)})
    )
)
SCORES_OF_BARE = p.bare_with(
    *(({name: number[0]}, {}) for name, number in (("softcap", CAPS), ("scale", SCALES))),
    ({}, {"bias": np.random.default_rng(0).normal(size=SMALL)}),
)
DOT, ADDITIVE = (p.with_fields(score=(score,), scale=(None,)) for score in ("dot", "additive"))
EXCLUDED, BIAS = p.masked(p.one_source, queries=1.0, seed=1), p.masked(p.biases, queries=1.0)
EMPTY = p.masked(p.empty, 1, queries=1.0, weights={})
BEFORE_ALL = [(SMALL, {"query_offset": -1, **one}) for one in ({"causal": True}, {"window": (1, 0)})]
EMPTY_BY_POSITION = p.masked(lambda config: BEFORE_ALL, 1, queries=1.0, weights={})

PROBES: tuple[Probe, ...] = (
    Probe("no-values", "one key, where the value input and all biases are 0.", NO_VALUES, "", "output"),
    Probe(
        "output-bias",
        "one key, where the value input is 0 and out_proj.bias is the only bias.",
        p.bias_alone("out_proj"),
        "output",
        "out_proj.bias output",
    ),
    Probe(
        "value-bias",
        "one key, where the value input is 0 and v_proj.bias is the only bias.",
        p.bias_alone("v_proj"),
        "",
        "v_proj.bias projected_values",
    ),
    Probe("one-key", "one key, whose attention weight is 1.", ONE_KEYS, "", VALUES),
    Probe("equal-scores", "queries that are all 0, so that scores are equal.", SUMMED, "", SUMS),
    Probe("lengths", "equal scores, and valid lengths as the mask.", p.masked(p.lengths), "weights", IN_CALLS),
    Probe("causal", "equal scores, and a causal mask alone.", p.masked(p.causal), "weights", IN_CALLS),
    Probe("window", "equal scores, and a window alone.", p.masked(p.window), "weights", IN_CALLS),
    Probe("allowed", "equal scores, and a bool mask, or -inf in the bias.", p.masked(p.allowed), "weights", IN_CALLS),
    Probe("sources", "equal scores, and two kinds of mask, or all.", p.masked(p.two_sources), "weights", IN_CALLS),
    Probe("mask-of-items", "equal scores, and masks that differ by item.", p.masks_of_items, "weights", IN_CALLS),
    Probe("scores", "scores that differ from key to key, no biases, and no mask.", SCORED, "", SCORES),
    Probe(
        "query-bias",
        "scores that differ from key to key, and biases in the projections.",
        p.joined(p.with_fields(weights={}), p.of_layer(partial(p.scored, weights={}), *SMALL, ONE_WIDTH)),
        "",
        BIASES,
    ),
    Probe("large-scores", "large scores, up to where exp overflows and beyond.", p.rows_of_sizes, "weights", SUMS),
    Probe("given-scale", "a scale that is given.", p.with_fields(scale=SCALES), "scores", "scale similarity"),
    Probe("dot-score", "the plain dot product.", DOT, "scores", "similarity"),
    Probe("softcap", "a softcap near the scores.", CAPPED, "scores", "softcap capped similarity"),
    Probe("key-bias", "a softcap, and biases in the projections.", CAPPED_BIASED, "keys", "k_proj.bias new_keys"),
    Probe("additive-score", "the additive score.", ADDITIVE, "scores", "similarity"),
    Probe("masked-scores", "scores that differ from key to key, and a mask.", EXCLUDED, "weights", IN_CALLS),
    Probe("score-bias", "an additive bias in every shape, also beside a mask.", BIAS, "scores", "bias scores"),
    Probe("bias-of-items", "a bias by head or item, where items = heads.", p.biases_of_items, "scores", "bias scores"),
    Probe("excluded-large", "allowed keys that score far below the excluded ones.", p.steep, "weights"),
    Probe("items", "batches of 2 to 8 items without a mask.", p.batches, "", ITEMS),
    Probe("long", "dozens and hundreds of queries or keys.", p.long, "weights", "output heads"),
    Probe("dropout-rate", "a rate of dropout outside training.", p.with_dropout(1, training=False), "heads", SUMS),
    Probe("dropout", "dropout that is given as a mask.", p.with_dropout(1, 3), "heads", f"dropout {SUMS}"),
    Probe("dropout-masks", "dropout beside an attention mask.", p.masked_dropout, "weights", IN_CALLS),
    Probe("past-values", "a cache, each query seeing one key.", p.own_keys, "", "past_values projected_values values"),
    Probe("past", "a cache of past keys and values.", p.pasts, "", f"past_keys keys {IN_CALLS}"),
    Probe("past-masks", "a cache and a mask.", p.masked_pasts, "weights", IN_CALLS),
    Probe("past-scores", "a cache beside a bias, softcap or scale.", p.scored_pasts, "scores", "bias capped scores"),
    Probe("without-projections", "no projections, and no mask.", SCORED_BARE, "", "similarity heads"),
    Probe("bare-masks", "no projections, and a mask.", MASKS_OF_BARE, "weights", IN_CALLS),
    Probe("bare-scores", "no projections; a softcap, scale or bias.", SCORES_OF_BARE, "scores", "capped scores"),
    Probe("padded-keys", "NaN, infinity and 1e30 in padded keys.", p.padding("keys"), "keys"),
    Probe("padded-values", "NaN, infinity and 1e30 in padded values.", p.padding("values"), "values"),
    Probe("empty-rows", "queries that may attend to no key.", EMPTY),
    Probe("empty-positions", "positions that may attend to no key.", EMPTY_BY_POSITION),
    Probe("no-keys", "no key at all.", lambda asker: [generic(c, key_len=0) for c in asker.configs[:1]], "weights"),
    Probe("every-length", "plain calls of every length up to a dozen.", p.every_length, "", IN_CALLS),
    Probe("biases-apart", "biases in some projections alone.", p.biases_apart, "", "queries keys values output"),
    Probe("drawn", "calls drawn at random, of several features each.", p.drawn),
    Probe("gradients", "all gradients, of plain calls and others.", p.with_gradients, "gradients", gradients=True),
)
"""The first row that differs comes before all that it makes harmless."""
