"""Values to output: wrong layers that are on no file, written here, are found and right on fresh problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.designs import CONFIGS, generic
from conformance.measure.outcome import Measured
from conformance.zoo.bug import Bug
from conformance.zoo.registry import select
from mha_core import AttentionConfig, AttentionMask
from mha_core.reference import forward
from mha_core.reference.state import State
from tests.conformance.measure.wrong import is_right, measured, said, wrong_at

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

OWN = (
    *("no-values", "equal-channels", "value-input", "value-channels", "one-key*", "output-bias", "value-bias"),
    *("same-value", "equal-scores*", "chosen-keys"),
)
"""The probes from the values to the output."""


def parameter(at: str, name: str, change: Callable[[NDArray, State], NDArray]) -> Bug:
    """A bug by which a step reads another parameter: `change(parameter, state)`."""

    def changed(state: State) -> NDArray:
        if name not in state.parameters:
            return forward.FORWARD[at](state)
        kept = state.parameters
        state.parameters = {**kept, name: change(kept[name], state)}
        try:
            return forward.FORWARD[at](state)
        finally:
            state.parameters = kept

    return Bug(name, "", "output", "", forward={at: changed})


def mapped(read: Callable[[int, int, int], int]) -> Bug:
    """A bug by which query head h reads value head read(h, H, G)."""

    def heads(state: State) -> NDArray:
        n, g = state.config.num_heads, state.config.num_kv_heads
        return state["kept_weights"] @ state["values"][:, [read(h, n, g) for h in range(n)]]

    return Bug("mapped", "", "heads", "", forward={"heads": heads})


SINGLES = {
    "value input times 0.83": wrong_at("value_inputs", lambda s, x: 0.83 * x),
    "values times sqrt(dv)": wrong_at("v_proj", lambda s, x: x * s.config.value_head_dim**0.5),
    "heads over sqrt(H)": wrong_at("heads", lambda s, x: x / s.config.num_heads**0.5),
    "output times Lk": wrong_at("output", lambda s, x: x * s.sizes.key_len),
    "output plus 0.31": wrong_at("output", lambda s, x: x + 0.31),
    "values plus 0.07": wrong_at("v_proj", lambda s, x: x + 0.07),
    "input channels reversed": wrong_at("value_inputs", lambda s, x: x[..., ::-1]),
    "output channels rolled": wrong_at("output", lambda s, x: np.roll(x, 2, axis=-1)),
    "merged channels reversed": wrong_at("merged", lambda s, x: x[..., ::-1]),
    "keys rolled in the values": wrong_at("projected_values", lambda s, x: np.roll(x, 1, axis=2)),
    "last key left out": wrong_at("kept_weights", lambda s, x: x * (np.arange(x.shape[-1]) < max(1, x.shape[-1] - 1))),
    "first key twice": wrong_at("kept_weights", lambda s, x: x * (1.0 + (np.arange(x.shape[-1]) == 0))),
    "relu of values": wrong_at("v_proj", lambda s, x: np.maximum(x, 0.0)),
    "tanh of the output": wrong_at("output", lambda s, x: np.tanh(x)),
    "heads normalised": wrong_at("heads", lambda s, x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)),
    "bias of the output times 1.7": parameter("output", "out_proj.bias", lambda b, s: 1.7 * b),
    "bias of the values reversed": parameter("v_proj", "v_proj.bias", lambda b, s: b[::-1]),
    "bias of the values over Lk": parameter("v_proj", "v_proj.bias", lambda b, s: b / s.sizes.key_len),
    "rows of W_o rolled": parameter("output", "out_proj.weight", lambda w, s: np.roll(w, 1, axis=0)),
    "columns of W_v reversed": parameter("v_proj", "v_proj.weight", lambda w, s: w[:, ::-1]),
    "W_v without its diagonal": parameter("v_proj", "v_proj.weight", lambda w, s: w * (1 - np.eye(*w.shape))),
    "heads of W_o reversed": parameter(
        "output",
        "out_proj.weight",
        lambda w, s: w.reshape(len(w), s.config.num_heads, -1)[:, ::-1].reshape(w.shape),
    ),
    "groups reversed": mapped(lambda h, n, g: g - 1 - h // (n // g)),
    "head min(h, G - 1)": mapped(lambda h, n, g: min(h, g - 1)),
    "even heads only": wrong_at("heads", lambda s, x: x * (np.arange(x.shape[1]) % 2 == 0)[:, None, None]),
    "0.25 of the mean of projected values added": wrong_at(
        "merged", lambda s, x: x + 0.25 * np.repeat(
            s["projected_values"].mean(axis=2), s.config.num_heads // s.config.num_kv_heads, axis=1
        ).reshape(x.shape[0], 1, -1)
    ),
    "positions added": wrong_at("v_proj", lambda s, x: x + 0.1 * np.arange(x.shape[1])[:, None]),
    "values in float16": wrong_at("v_proj", lambda s, x: x.astype(np.float16).astype(float)),
}  # fmt: skip
"""What is wrong -> a bug; none of them is the zoo's."""


def fresh() -> Iterator[Problem]:
    """Problems of other numbers, sizes and masks than any probe's."""
    other = AttentionConfig(20, 4, num_kv_heads=2, head_dim=3, value_head_dim=4, bias=True)
    for seed, config in enumerate((CONFIGS[0], CONFIGS[2], other)):
        mask = AttentionMask(causal=True) if seed else None
        yield generic(config, seed=70 + seed, batch=2, query_len=4 + seed, key_len=7, mask=mask)


PAIRS = (
    ("value input times 0.83", "merged channels reversed"),
    ("bias of the values reversed", "bias of the output times 1.7"),
)


@cache
def diagnosed(*names: str) -> Measured:
    """What a layer with these faults shows, for every test that looks at it."""
    return measured(*(SINGLES[name] for name in names), probes=OWN)


@pytest.mark.parametrize("names", [*((name,) for name in list(SINGLES)[::3]), *PAIRS], ids=" and ".join)
def test_what_is_on_no_file_is_measured(names: tuple[str, ...]) -> None:
    bugs = [SINGLES[name] for name in names]
    found = diagnosed(*names)
    assert is_right(found, bugs, fresh(), among=99), said(found)


def test_what_was_read_is_said_with_its_number() -> None:
    ((bug,), *_) = diagnosed("value input times 0.83").models
    assert "times 0.83" in bug.sentence
    assert bug.stage == "values"


def test_a_bug_on_file_is_among_the_models() -> None:
    (bug,) = select(("merge-reversed",))
    assert (bug,) in measured(bug, probes=OWN, zoo=None).models
