r"""A past of keys and values: as they are given, in front of the new ones.

Where query i may attend to key i alone, the heads are the values, of the past and new ones:

    o_i = W_o R v_i + b_o

and where scores show, differences of logarithms of weights tell the keys up to one, by least squares:

    log a_ij - log a_il = c q_i . (k_j - k_l)

A change of an array of the past, of the new ones beside it, or of both is fitted to what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.experiments.candidates.calls.pasts import (
    AXES,
    exchanged_pasts,
    joined_otherwise,
    on_joined,
    on_new,
    on_past,
    orders_of_past,
)
from conformance.experiments.changes.fit import fit
from conformance.experiments.changes.sample import Change, Sample, Setting
from conformance.experiments.designs import changed, generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from conformance.experiments.solving.solved import samples_of
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, AttentionMask

LENGTHS = ((3, 4), (4, 3), (2, 4), (5, 2))
"""(past, new) keys of each layer's calls."""


def with_past(
    config: AttentionConfig, past: int, new: int, *, batch: int = 1, mask: AttentionMask | None = None
) -> Problem:
    """A problem of random numbers with a past, and as many queries as keys."""
    problem = generic(config, batch=batch, query_len=past + new, key_len=new)
    rng = np.random.default_rng([past, new, batch, config.head_dim, config.value_head_dim])
    of_each = (batch, config.num_kv_heads, past)
    return changed(
        problem,
        mask=AttentionMask() if mask is None else mask,
        past_keys=rng.normal(size=(*of_each, config.head_dim)),
        past_values=rng.normal(size=(*of_each, config.value_head_dim)),
    )


@lru_cache(maxsize=256)
def _generic(config: AttentionConfig, past: int, new: int, batch: int = 1) -> Problem:
    return with_past(config, past, new, batch=batch)


@lru_cache(maxsize=256)
def _own_key(config: AttentionConfig, past: int, new: int) -> Problem:
    """Query i attends to key i alone, so that nothing of the keys can show."""
    mask = AttentionMask(allowed=np.eye(past + new, dtype=bool))
    return changed(_generic(config, past, new), mask=mask)


@lru_cache(maxsize=256)
def _padded(config: AttentionConfig, past: int, new: int, batch: int) -> Problem:
    """Lengths within the past and beyond it."""
    lens = np.array([past - 1, past + 1, past + new, 1][:batch])
    return changed(_generic(config, past, new, batch), mask=AttentionMask(valid_lens=lens))


@lru_cache(maxsize=256)
def _causal(config: AttentionConfig, past: int, new: int) -> Problem:
    """New queries behind a past, which see it and one another up to themselves."""
    return changed(_generic(config, past, new), mask=AttentionMask(causal=True, query_offset=past - 1))


def _each(lab: Lab, made: Callable[[AttentionConfig, int, int], Problem]) -> list[Problem]:
    return [made(config, *LENGTHS[place % len(LENGTHS)]) for place, config in enumerate(lab.configs)]


def _values_alone(lab: Lab) -> Sequence[Problem]:
    return _each(lab, _own_key)


def _joined(lab: Lab) -> Sequence[Problem]:
    return _each(lab, _generic)


BATCHES = (2, 3, 4)


def _of_items(lab: Lab) -> Sequence[Problem]:
    some = list(zip(lab.configs, LENGTHS, BATCHES, strict=False))
    found = [_generic(config, *lengths, batch) for config, lengths, batch in some]
    return found + [_padded(config, *lengths, batch) for config, lengths, batch in some[1:]]


def _masked(lab: Lab) -> Sequence[Problem]:
    return _each(lab, _causal)[:3]


# Readings -----------------------------------------------------------------------------------------


def _fitted(view: View, step: str, problems: Sequence[Problem]) -> Iterator[Bug]:
    """Changes that are read off: of the past, of the new ones, of both."""
    samples = samples_of(view, problems, step, AXES, -2 if step == "keys" else None)
    if step == "keys":  # known up to a vector that is the same for all
        samples = [replace(one, measured=one.measured + (one.expected - one.measured)[:, :, -1:]) for one in samples]
    past = [_part(one, slice(one.setting.sizes.past_len)) for one in samples]
    new = [_part(one, slice(one.setting.sizes.past_len, None)) for one in samples]
    if not samples:
        return
    if not any(sample.differs for sample in new):
        for change in _changes(past):
            yield on_past(step, change)
            yield on_past(step, change, padding_first=True)
    elif not any(sample.differs for sample in past):
        for change in _changes(new):
            yield on_new(step, change)
    else:
        for change in _changes(samples):
            yield on_joined(step, change)
        for first in _changes(past)[:3]:
            for second in _changes(new)[:3]:
                yield _both(step, first, second)


def _part(sample: Sample, part: slice) -> Sample:
    return replace(sample, measured=sample.measured[:, :, part], expected=sample.expected[:, :, part])


def _both(step: str, past: Change, new: Change) -> Bug:
    """A change of the past and another one of the new keys or values, as one bug."""

    def apply(array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        at = setting.sizes.past_len
        parts = past.apply(array[:, :, :at], axes, setting), new.apply(array[:, :, at:], axes, setting)
        return np.concatenate(parts, axis=2)

    words = f"{past.words} in the past, and {new.words} behind it"
    return on_joined(step, Change(f"past-{past.slug}-new-{new.slug}", words, apply))


def _changes(samples: Sequence[Sample]) -> list[Change]:
    with any_numbers:
        return fit(samples)


def _otherwise(steps: tuple[str, ...]) -> Callable[[View], Iterator[Bug]]:
    def propose(view: View) -> Iterator[Bug]:
        yield from joined_otherwise(steps)
        problems = [one for one in view.problems if one.inputs.mask.valid_lens is None]
        for step in steps:
            if not view.explained:
                yield from _fitted(view, step, problems)
        yield from exchanged_pasts()
        for step in steps:
            yield from orders_of_past(step, view.problems)

    return propose


def _of_values(view: View) -> Iterator[Bug]:
    """What differs in the values; else in the keys, which show where a row's weights are not its own alone."""
    yield from _otherwise(("values",))(view)
    if not view.explained:
        yield from joined_otherwise(("keys",))
        yield from orders_of_past("keys", view.problems)


PROBES: tuple[Probe, ...] = (
    Probe(
        "past-values",
        "A past, and a mask by which each query attends to one key alone: its value is the head's, of a past or not.",
        r"o_i = W_o R v_i + b_o, \quad v = (v^{past}, W_v x + b_v)",
        _values_alone,
        _of_values,
    ),
    Probe(
        "past",
        "A past and generic scores: past keys and values in front of the new ones.",
        r"\log a_{ij} - \log a_{il} = c\, q_i^\top (k_j - k_l), \quad k = (k^{past}, W_k x + b_k)",
        _joined,
        _otherwise(("keys", "values")),
        unknown="what a past does",
    ),
    Probe(
        "past-of-items",
        "Two to four items, each with a past of its own, also with lengths.",
        r"k_b = (k^{past}_b, W_k x_b + b_k), \quad v_b = (v^{past}_b, W_v x_b + b_v)",
        _of_items,
        _otherwise(("keys", "values")),
        unknown="whether each item has its own past",
    ),
    Probe(
        "past-and-causal",
        "A past and a causal mask whose offset is its length.",
        r"m_{ij} = [j \le i + o]",
        _masked,
        _otherwise(("keys", "values")),
    ),
)
