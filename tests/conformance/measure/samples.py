"""Samples of a change that is known: arrays of random numbers at four settings, and what a function makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.measure.designs import CONFIGS
from conformance.measure.grammar.sample import Change, Sample, Setting
from conformance.measure.read.fit import fit
from mha_core.call.sizes import CallSizes

SCORES = ("item", "head", "query", "key")

LENGTHS = ((1, 3, 5), (2, 4, 6), (1, 5, 8), (3, 3, 9))
"""(batch, query length, key length) of each sample."""

OTHERS = ((2, 6, 7), (3, 2, 4))
"""Those of samples that `fit` has not seen."""

Made = Callable[[NDArray, Setting], NDArray]


def shape_of(setting: Setting, axes: Sequence[str]) -> tuple[int, ...]:
    config, sizes = setting.config, setting.sizes
    lengths = {
        "item": sizes.batch,
        "head": config.num_heads,
        "query": sizes.query_len,
        "key": sizes.key_len,
        "channel": config.head_dim,
        "merged channel": config.num_heads * config.head_dim,
    }
    return tuple(lengths[axis] for axis in axes)


def samples_of(
    made: Made,
    axes: Sequence[str] = SCORES,
    *,
    noise: float = 1e-13,
    seed: int = 0,
    lengths: Sequence[tuple[int, int, int]] = LENGTHS,
) -> list[Sample]:
    found = []
    for k, sizes in enumerate(lengths):
        setting = Setting(CONFIGS[k], CallSizes(*sizes))
        rng = np.random.default_rng([seed, *sizes])
        expected = rng.normal(size=shape_of(setting, axes))
        measured = np.asarray(made(expected, setting), np.float64)
        measured = measured * (1.0 + noise * rng.uniform(-1.0, 1.0, measured.shape))
        found.append(Sample(measured, expected, tuple(axes), setting))
    return found


def first_found(made: Made, axes: Sequence[str] = SCORES, *, seed: int = 0, thoroughly: bool = False) -> Change:
    """The first change that `fit` names; it must make the same of arrays and sizes that it has not seen."""
    found = fit(samples_of(made, axes, seed=seed), thoroughly=thoroughly)
    assert found, "no change was found"
    for sample in samples_of(made, axes, seed=seed + 1, lengths=OTHERS):
        array = found[0].apply(sample.expected, sample.axes, sample.setting)
        assert sample.is_given_by(array), f"{found[0].words} is not so at other sizes"
    return found[0]
