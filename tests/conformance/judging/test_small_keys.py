"""Layers that keep something by a key that is too small, or guess an axis from its size: sequences show each.

The cases of one call show none of them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.cases.table import select_asked
from conformance.runner import run_case
from mha_core import RotaryInputs
from mha_core.call.rotary import tables_of_call
from tests.conformance.judging.keeping import Fault, masked

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def sizes(inputs):
    return inputs.queries.shape[:-1], inputs.keys.shape[:-1]


def kept_source(name: str, key: Callable[..., Any] = sizes, when: Callable[..., bool] = lambda config: True) -> Any:
    """A layer that keeps one source of the mask by a key of the call, if its config is such."""

    def keeps(kept, inputs, right):
        source = getattr(inputs.mask, name)
        if source is None or not when(kept["now"]):
            return right(inputs)
        held = kept.setdefault(
            (key(inputs), np.shape(source)), source.copy() if isinstance(source, np.ndarray) else source
        )
        return right(masked(inputs, **{name: held}))

    return keeps


def kept_setting(name: str, field: str | None, key: Callable[..., Any]) -> Any:
    """A layer that keeps a setting, of a part or its own, by a key of the config."""

    def keeps(kept, inputs, right):
        config = kept["now"]
        part = getattr(config, name)
        if part is None:
            return right(inputs)
        held = kept.setdefault(("setting", key(config)), part if field is None else getattr(part, field))
        return right(
            inputs, config=replace(config, **{name: held if field is None else replace(part, **{field: held})})
        )

    return keeps


def kept_weights(name: str) -> Any:
    """A layer that keeps parameters by their shape."""

    def keeps(kept, inputs, right):
        own = kept["given"]
        held = {name: kept.setdefault((name, own[name].shape), own[name])} if name in own else {}
        return right(inputs, weights={**own, **held})

    return keeps


def kept_tables(key: Callable[..., Any]) -> Any:
    """A layer that keeps its tables of angles by a part of them."""

    def keeps(kept, inputs, right):
        config = kept["now"]
        if config.rotary is None:
            return right(inputs)
        made = tables_of_call(config.rotary, inputs.rotary, inputs.mask.query_offset, inputs.check(config))
        held = kept.setdefault((made.queries.cos.shape, made.keys.cos.shape, key(made)), made)
        return right(replace(inputs, rotary=RotaryInputs(None, None, *held.queries, *held.keys)))

    return keeps


def first_rows(inputs):
    mask = inputs.mask
    return sizes(inputs), *(None if x is None else x[..., :1, :].tobytes() for x in (mask.allowed, mask.bias))


def by_identity(name):
    """A layer that takes an array for the one that it was when it first saw it."""

    def keeps(kept, inputs, right):
        source = getattr(inputs.mask, name)
        if not isinstance(source, np.ndarray):
            return right(inputs)
        _, held = kept.setdefault((id(source), source.shape), (source, source.copy()))
        return right(masked(inputs, **{name: held}))

    return keeps


def of_width(config):
    return config.head_dim


MASKS, SETTINGS, EQUAL = "sequence-second-masks", "sequence-settings", "sequence-equal-sizes"

KEPT = {
    "causal under a softcap": (Fault(kept_source("causal", when=lambda c: c.softcap), ""), MASKS),
    "a window with rotary positions": (Fault(kept_source("window", when=lambda c: c.rotary), ""), MASKS),
    "an offset beside a norm": (Fault(kept_source("query_offset", when=lambda c: c.query_key_norm), ""), MASKS),
    "a bias without projections": (Fault(kept_source("bias", when=lambda c: not c.projections), ""), MASKS),
    "`allowed` of an additive score": (Fault(kept_source("allowed", when=lambda c: c.score == "additive"), ""), MASKS),
    "`allowed` by its first row": (Fault(kept_source("allowed", first_rows), ""), MASKS),
    "a bias by its first row": (Fault(kept_source("bias", first_rows), ""), MASKS),
    "eps": (Fault(kept_setting("query_key_norm", "eps", of_width), "", shared=True), SETTINGS),
    "a base": (Fault(kept_setting("rotary", "base", of_width), "", shared=True), SETTINGS),
    "a side": (Fault(kept_setting("rotary", "start", of_width), "", shared=True), SETTINGS),
    "a softcap": (Fault(kept_setting("softcap", None, of_width), "", shared=True), SETTINGS),
    "weights of a norm": (Fault(kept_weights("q_norm.weight"), "", shared=True), SETTINGS),
    "a bias of a norm": (Fault(kept_weights("q_norm.bias"), "", shared=True), SETTINGS),
    "tables by cosines": (Fault(kept_tables(lambda t: t.queries.cos.tobytes()), ""), "sequence-positions"),
    "tables by item 0": (Fault(kept_tables(lambda t: t.keys.cos[:1].tobytes()), ""), "sequence-positions"),
    "`allowed` by identity": (Fault(by_identity("allowed"), ""), "sequence-same-arrays"),
    "a bias by identity": (Fault(by_identity("bias"), ""), "sequence-same-arrays"),
}


def read_as(name: str, other: Callable[..., Any]) -> Any:
    """A layer that reads a source of the mask as `other(array, inputs, config)` has it; None: as it is."""

    def guesses(kept, inputs, right):
        source = getattr(inputs.mask, name)
        found = other(source, inputs, kept["now"]) if isinstance(source, np.ndarray) else None
        return right(inputs if found is None else masked(inputs, **{name: found}))

    return guesses


def turned_tables(one: int, other: int) -> Any:
    """A layer that exchanges two axes of its tables, where they are equally long."""

    def guesses(kept, inputs, right):
        config = kept["now"]
        if config.rotary is None:
            return right(inputs)
        made = tables_of_call(config.rotary, inputs.rotary, inputs.mask.query_offset, inputs.check(config))
        same = made.queries.cos.shape[one] == made.queries.cos.shape[other] == made.keys.cos.shape[one]
        turned = made.map(lambda x: x.swapaxes(one, other) if same else x)
        return right(replace(inputs, rotary=RotaryInputs(None, None, *turned.queries, *turned.keys)))

    return guesses


def turned_inputs(name: str, one: int, other: int) -> Any:
    """A layer that exchanges two axes of an array, where they are equally long."""

    def guesses(kept, inputs, right):
        x = getattr(inputs, name)
        alike = x is not None and x.ndim > max(one, other) and x.shape[one] == x.shape[other]
        return right(replace(inputs, **{name: x.swapaxes(one, other)}) if alike else inputs)

    return guesses


def of_items(array, inputs, config):
    return array[:, None] if array.ndim == 3 and len(array) == len(inputs.queries) > 1 else None


def of_heads(array, inputs, config):
    return array.swapaxes(0, 1) if array.ndim == 4 and array.shape[:2] == (config.num_heads, 1) else None


def of_padding(array, inputs, config):
    return array[:, None, None] if array.ndim == 2 and len(array) == len(inputs.queries) > 1 else None


def of_queries(array, inputs, config):
    return array[:, None] if array.ndim == 1 and len(array) == inputs.queries.shape[-2] > 1 else None


GUESSED = {
    "a bias (H, Lq, Lk) as (B, Lq, Lk)": read_as("bias", of_items),
    "`allowed` (H, Lq, Lk) as (B, Lq, Lk)": read_as("allowed", of_items),
    "a bias of items as one of heads": read_as("bias", of_heads),
    "`allowed` (Lq, Lk) as (B, Lk)": read_as("allowed", of_padding),
    "a bias (Lk,) as (Lq,)": read_as("bias", of_queries),
    "tables by pair": turned_tables(1, 2),
    "tables by token": turned_tables(0, 1),
    "split heads by token": turned_inputs("keys", 1, 2),
    "split heads by channel": turned_inputs("queries", 2, 3),
    "a past by token": turned_inputs("past_values", 1, 2),
    "inputs by channel": turned_inputs("values", 1, 2),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_by_a_small_key_is_seen(name):
    fault, sequence = KEPT[name]
    (asked,) = select_asked((sequence,))
    result = run_case(asked, fault.subject())
    assert result.status == "different"
    if sequence == MASKS:  # what layers share is wrong in a layer prepared anew as well
        assert "It keeps the" in result.kept, result.kept


@pytest.mark.parametrize("name", GUESSED)
def test_an_axis_that_is_guessed_is_seen_where_sizes_are_equal(name):
    (asked,) = select_asked((EQUAL,))
    result = run_case(asked, Fault(GUESSED[name], "").subject())
    assert result.status == "different"
    assert not result.kept, "it is wrong in a layer prepared anew as well"
    (other,) = select_asked(("prime",))
    assert run_case(other, Fault(GUESSED[name], "").subject()).status == "equal"
