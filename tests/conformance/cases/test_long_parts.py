"""Faults of layers with rotary positions or a query-key norm in long calls are seen, and guesses from sizes."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.bounds.precision import Precision
from conformance.cases.table import all_cases
from conformance.runner import run_case
from mha_core import RotaryInputs, Trace
from mha_core.call.masks import allowed_keys
from mha_core.reference import pipeline as reference

pytestmark = pytest.mark.same_on_newest  # no framework takes part


class Wrong:
    """The reference, with a fault: (config, weights, inputs) -> its output."""

    name, dtype, device, precision = "wrong", "float64", "cpu", Precision.of("float64")

    def __init__(self, fault):
        self.fault = fault

    def prepare(self, config, weights):
        return lambda inputs: Trace(output=self.fault(config, weights, replace(inputs, cotangent=None)))


def right(config, weights, inputs):
    return reference.run(config, weights, inputs).output


def is_seen(fault, cases):
    return any(run_case(case, Wrong(fault)).status == "different" for case in cases)


def where(condition, wrong):
    """A fault that acts where a call is so."""
    return lambda config, weights, inputs: (wrong if condition(config, inputs) else right)(config, weights, inputs)


def key_len(config, inputs):
    return inputs.check(config).key_len


def past_len(config, inputs):
    return inputs.check(config).past_len


def beyond(limit, lost):
    """A fault that makes keys from `limit` on zero, or those before."""

    def wrong(config, weights, inputs):
        hidden = np.arange(key_len(config, inputs)) >= limit
        allowed = np.ones_like(hidden) if inputs.mask.allowed is None else inputs.mask.allowed
        return right(config, weights, replace(inputs, mask=replace(inputs.mask, allowed=allowed & (hidden == lost))))

    return wrong


def channels_of_half(config, weights, inputs):
    """The scale of half the width."""
    return right(replace(config, scale=(config.head_dim / 2) ** -0.5), weights, inputs)


def first_items(config, weights, inputs):
    """Items from the ninth on are the first's."""
    output = np.array(right(config, weights, inputs))
    output[8:] = output[:1]
    return output


def first_key_head(config, weights, inputs):
    """A cache of which each head reads the first."""
    first = inputs.past_keys[:, :1].repeat(config.num_kv_heads, axis=1)
    return right(config, weights, replace(inputs, past_keys=first))


def no_window(config, weights, inputs):
    return right(config, weights, replace(inputs, mask=replace(inputs.mask, window=None)))


def clamped_bias(config, weights, inputs):
    """Keys with finfo.min keep some weight."""
    bias = np.maximum(inputs.mask.bias, -3.0)
    return right(config, weights, replace(inputs, mask=replace(inputs.mask, bias=bias)))


def nan_rows(config, weights, inputs):
    empty = ~allowed_keys(inputs.mask, inputs.check(config), config.num_heads).any(axis=(1, 3))
    return np.where(empty[..., None], np.nan, right(config, weights, inputs))


def clamped(config, weights, inputs):
    """A table of 4,096 positions, the last of which stands for all beyond."""
    sizes = inputs.check(config)
    queries = np.minimum(inputs.mask.query_offset + np.arange(sizes.query_len), 4095)
    given = RotaryInputs(queries, np.arange(sizes.past_len, sizes.key_len))
    return right(config, weights, replace(inputs, rotary=given))


def no_rule(config, weights, inputs):
    return right(replace(config, rotary=replace(config.rotary, rule=None)), weights, inputs)


def of_rule(name):
    return lambda config, inputs: config.rotary and config.rotary.rule and config.rotary.rule.rope_type == name


def has_bias(config, inputs):
    return inputs.mask.bias is not None and bool((inputs.mask.bias < -1e38).any())


def is_far(config, inputs):
    return np.max(inputs.mask.query_offset) >= 4096 and inputs.rotary is None


FAULTS = {
    "heads 64 wide": where(lambda config, inputs: config.head_dim >= 64, channels_of_half),
    "keys from the 129th on": where(lambda config, inputs: key_len(config, inputs) > 128, beyond(128, lost=False)),
    "items from the ninth on": first_items,
    "key heads of a past over 96": where(lambda config, inputs: past_len(config, inputs) > 96, first_key_head),
    "a past over 96": where(lambda config, inputs: past_len(config, inputs) > 96, beyond(96, lost=True)),
    "a window": no_window,
    "finfo.min": where(has_bias, clamped_bias),
    "rows without a key": nan_rows,
}
"""What goes wrong in a layer with the part, and in none without it."""

OF_ROTARY = {
    "positions over 4,096": where(is_far, clamped),
    "the dynamic rule": where(of_rule("dynamic"), no_rule),
    "the linear rule": where(of_rule("linear"), no_rule),
}


@pytest.mark.parametrize("part", ["rotary", "query_key_norm"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_long_calls_is_seen_in_each_part(name, part):
    """No case without the part, or without the other one's, is needed."""
    cases = [case for case in all_cases() if getattr(case.config, part) is not None]
    assert is_seen(FAULTS[name], cases)


@pytest.mark.parametrize("name", OF_ROTARY)
def test_a_fault_of_far_positions_is_seen(name):
    assert is_seen(OF_ROTARY[name], [case for case in all_cases() if case.config.rotary is not None])


def exchanged_axes(config, weights, inputs):
    """Heads that stand second are taken for positions: outputs of one head's and of another position are exchanged."""
    trace = reference.run(config, weights, inputs)
    heads = trace.heads.swapaxes(1, 2)
    merged = heads.swapaxes(1, 2).reshape(*heads.shape[:2], -1)
    return merged @ weights["out_proj.weight"].T + weights["out_proj.bias"]


def transposed_keys(config, weights, inputs):
    """Rotated keys (L, d) are multiplied as they are, where they need no transposition to fit."""
    trace = reference.run(config, weights, inputs)
    scores = trace.queries @ trace.keys * config.softmax_scale
    allowed = allowed_keys(inputs.mask, inputs.check(config), config.num_heads)
    raised = np.where(allowed, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0.0)
    heads = raised / np.maximum(raised.sum(axis=-1, keepdims=True), 1e-300) @ trace.values
    merged = heads.swapaxes(1, 2).reshape(*inputs.queries.shape[:2], -1)
    return merged @ weights["out_proj.weight"].T + weights["out_proj.bias"]


def unprojected(config, weights, inputs):
    """Queries as wide as a head are taken for projected ones."""
    return right(config, {**weights, "q_proj.weight": np.eye(config.head_dim)}, inputs)


def plain(config):
    return config.projections and config.score == "scaled_dot" and config.rotary is config.query_key_norm is None


GUESSES = {
    "heads for positions": (
        lambda config, sizes: sizes.query_len == sizes.key_len == config.num_heads == config.num_kv_heads > 1,
        exchanged_axes,
    ),
    "channels for positions": (
        lambda config, sizes: sizes.query_len == sizes.key_len == config.head_dim > 1 and config.num_heads > 1,
        transposed_keys,
    ),
    "inputs for heads": (lambda config, sizes: config.head_dim == config.query_dim > 1, unprojected),
}
"""What is guessed -> (where the sizes fit, what is then computed)."""


@pytest.mark.parametrize("name", GUESSES)
def test_axes_that_are_guessed_from_sizes_are_seen(name):
    fits, wrong = GUESSES[name]
    fault = where(lambda config, inputs: fits(config, inputs.check(config)), wrong)
    assert is_seen(fault, [case for case in all_cases() if plain(case.config)])
