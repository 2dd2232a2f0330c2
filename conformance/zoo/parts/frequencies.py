"""Frequencies of rotary positions done wrong: how fast each pair turns, and the rules of checkpoints."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Steps, Table, after
from conformance.zoo.parts.positions import is_computed, made_tables
from conformance.zoo.parts.rotary import settings_of
from mha_core.call.rotary import Tables
from mha_core.parts.frequencies import Frequencies, FrequencyRule, Llama3, LongRope, Yarn, plain, rule_of
from mha_core.parts.rotary import Rotary
from mha_core.reference.state import State

# How fast each pair turns -------------------------------------------------------------------------


def _frequencies(change: Callable[[Rotary, int], Frequencies], where: Callable[[State], bool] = is_computed) -> Steps:
    return after("rotary_tables", lambda state, right: made_tables(state, frequencies=change), where)


def _plain_times(change: Callable[[Rotary], NDArray]) -> Callable[[Rotary, int], Frequencies]:
    """Other frequencies, with the attention factor of the rule."""
    return lambda settings, length: (change(settings), settings.frequencies(length)[1])


def _has_rule(kind: type[FrequencyRule]) -> Callable[[State], bool]:
    return lambda state: is_computed(state) and isinstance(rule_of(settings_of(state).rule), kind)


def _llama3_shares(change: Callable[[NDArray], NDArray]) -> Callable[[Rotary, int], Frequencies]:
    """`change(how much of each frequency the rule keeps)` in place of these shares."""

    def frequencies(settings: Rotary, length: int) -> Frequencies:
        rule, inverse = rule_of(settings.rule), plain(settings.base, settings.width or 0)
        assert isinstance(rule, Llama3)
        right, factor = settings.frequencies(length)
        share = change((right / inverse * rule.factor - 1.0) / (rule.factor - 1.0))
        return (1.0 - share) * inverse / rule.factor + share * inverse, factor

    return frequencies


def _truncated(settings: Rotary, length: int) -> Frequencies:
    rule: Any = rule_of(settings.rule)
    return replace(settings, rule=replace(rule, truncate=True)).frequencies(length)


def _ramp_reversed(settings: Rotary, length: int) -> Frequencies:
    rule, inverse = rule_of(settings.rule), plain(settings.base, settings.width or 0)
    assert isinstance(rule, Yarn)
    right, factor = settings.frequencies(length)
    return inverse + inverse / rule.factor - right, factor


def _long_at_end(settings: Rotary, length: int) -> Frequencies:
    rule = rule_of(settings.rule)
    assert isinstance(rule, LongRope)
    return settings.frequencies(length + (length == rule.original_max_position_embeddings))


def _by_head_width(state: State, right: Tables) -> Tables:
    width = state.config.head_dim
    return made_tables(state, frequencies=_plain_times(lambda s: s.base ** (-np.arange(0, s.width or 0, 2) / width)))


_row = Table("queries", "Pair k turns by position * base ** (-2 k / r), k from 0, r the channels that turn.")
_rule = Table(
    "queries", "Take frequencies and attention factor of the rule that the config names, with all its fields."
)

BUGS = (
    _row(
        "rotary-base-default",
        "The base is 10000 whatever the config says.",
        _frequencies(lambda s, length: replace(s, base=10000.0).frequencies(length)),
        seen_in="huggingface/transformers#43281, vllm-project/vllm#28542, sgl-project/sglang#14745",
    ),
    _row(
        "rotary-frequencies-from-one",
        "Pair k turns as fast as pair k + 1 should.",
        _frequencies(_plain_times(lambda s: plain(s.base, s.width or 0) * s.base ** (-2.0 / (s.width or 1)))),
    ),
    _row(
        "rotary-frequencies-reversed",
        "The last pair turns as fast as the first should.",
        _frequencies(lambda s, length: (s.frequencies(length)[0][::-1], s.frequencies(length)[1])),
    ),
    _row(
        "rotary-frequencies-by-head-width",
        "Frequencies are base ** (-2 k / d), of the width of a head, where only r channels turn.",
        after("rotary_tables", _by_head_width, lambda s: is_computed(s) and settings_of(s).rule is None),
        seen_in="pie-project/pie#603",
    ),
    _rule(
        "rotary-rule-ignored",
        "The rule of frequencies is not applied.",
        _frequencies(lambda s, length: (plain(s.base, s.width or 0), 1.0)),
        seen_in="lablup/mlxcel#1355, unslothai/unsloth#6197, ggml-org/llama.cpp#8676",
    ),
    _rule(
        "rotary-rule-linear",
        "Every frequency is divided by the factor of the rule.",
        _frequencies(
            lambda s, length: (
                plain(s.base, s.width or 0) / getattr(rule_of(s.rule), "factor", 1.0),
                s.frequencies(length)[1],
            )
        ),
    ),
    _rule(
        "rotary-llama3-without-blend",
        "The llama3 rule keeps or divides each frequency, and blends none.",
        _frequencies(_llama3_shares(np.round), _has_rule(Llama3)),
    ),
    _rule(
        "rotary-llama3-exchanged",
        "The llama3 rule keeps the long waves and divides the short ones.",
        _frequencies(_llama3_shares(lambda share: 1.0 - share), _has_rule(Llama3)),
    ),
    _rule(
        "rotary-yarn-truncated",
        "The yarn rule rounds its two pairs to whole numbers although truncate is False.",
        _frequencies(_truncated, _has_rule(Yarn)),
        seen_in="vllm-project/vllm#27722",
    ),
    _rule(
        "rotary-yarn-reversed",
        "The yarn rule divides the fast pairs and keeps the slow ones.",
        _frequencies(_ramp_reversed, _has_rule(Yarn)),
    ),
    _rule(
        "rotary-longrope-long-at-end",
        "The longrope rule takes the long factors from the trained length on, not only beyond it.",
        _frequencies(_long_at_end, _has_rule(LongRope)),
        seen_in="unslothai/unsloth#10681",
    ),
)
