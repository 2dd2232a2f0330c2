"""Values to output: wrong layers that are on no file, written here, are found and right on fresh problems."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.measure.designs import CONFIGS, generic
from conformance.measure.probes.steps import equal_scores, one_key
from conformance.measure.search.measure import measure
from conformance.zoo.bug import Bug, BuggySubject, pipelines
from conformance.zoo.registry import select
from mha_core import AttentionConfig, AttentionMask, Trace
from mha_core.reference import forward
from mha_core.reference import pipeline as reference

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


OWN = (*one_key.PROBES, *equal_scores.PROBES)
"""The probes from the values to the output."""


class OutputOnly(BuggySubject):
    """A buggy subject that shows its output alone."""

    def prepare(self, config, weights):
        run = super().prepare(config, weights)
        return lambda inputs: Trace(output=run(inputs).output)


def step(name, change, id=None):
    """A bug by `change(state, the definition's result)`."""
    return Bug(id or name, "", "output", "", forward={name: lambda s: change(s, forward.FORWARD[name](s))})


def parameter(at, name, change):
    """A bug by which a step reads another parameter: `change(parameter, state)`."""

    def changed(state):
        if name not in state.parameters:
            return forward.FORWARD[at](state)
        kept = state.parameters
        state.parameters = {**kept, name: change(kept[name], state)}
        try:
            return forward.FORWARD[at](state)
        finally:
            state.parameters = kept

    return Bug(name, "", "output", "", forward={at: changed})


def mapped(read):
    """A bug by which query head h reads value head read(h, H, G)."""

    def heads(state):
        n, g = state.config.num_heads, state.config.num_kv_heads
        return state["kept_weights"] @ state["values"][:, [read(h, n, g) for h in range(n)]]

    return Bug("mapped", "", "heads", "", forward={"heads": heads})


SINGLES = {
    "value input times 0.83": step("value_inputs", lambda s, x: 0.83 * x),
    "values times sqrt(dv)": step("v_proj", lambda s, x: x * s.config.value_head_dim**0.5),
    "heads over sqrt(H)": step("heads", lambda s, x: x / s.config.num_heads**0.5),
    "output times Lk": step("output", lambda s, x: x * s.sizes.key_len),
    "output plus 0.31": step("output", lambda s, x: x + 0.31),
    "values plus 0.07": step("v_proj", lambda s, x: x + 0.07),
    "input channels reversed": step("value_inputs", lambda s, x: x[..., ::-1]),
    "output channels rolled": step("output", lambda s, x: np.roll(x, 2, axis=-1)),
    "merged channels reversed": step("merged", lambda s, x: x[..., ::-1]),
    "keys rolled in the values": step("new_values", lambda s, x: np.roll(x, 1, axis=2)),
    "last key left out": step("kept_weights", lambda s, x: x * (np.arange(x.shape[-1]) < max(1, x.shape[-1] - 1))),
    "first key twice": step("kept_weights", lambda s, x: x * (1.0 + (np.arange(x.shape[-1]) == 0))),
    "relu of values": step("v_proj", lambda s, x: np.maximum(x, 0.0)),
    "tanh of the output": step("output", lambda s, x: np.tanh(x)),
    "heads normalised": step("heads", lambda s, x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)),
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
    "even heads only": step("heads", lambda s, x: x * (np.arange(x.shape[1]) % 2 == 0)[:, None, None]),
    "0.25 of the mean of projected values added": step(
        "merged", lambda s, x: x + 0.25 * np.repeat(
            s["new_values"].mean(axis=2), s.config.num_heads // s.config.num_kv_heads, axis=1
        ).reshape(x.shape[0], 1, -1)
    ),
    "positions added": step("v_proj", lambda s, x: x + 0.1 * np.arange(x.shape[1])[:, None]),
    "values in float16": step("v_proj", lambda s, x: x.astype(np.float16).astype(float)),
}  # fmt: skip
"""What is wrong -> a bug; none of them is the zoo's."""


def fresh():
    """Problems of other numbers, sizes and masks than any probe's."""
    other = AttentionConfig(20, 4, num_kv_heads=2, head_dim=3, value_head_dim=4, bias=True)
    for seed, config in enumerate((CONFIGS[0], CONFIGS[2], other)):
        mask = AttentionMask(causal=True) if seed else None
        yield generic(config, seed=70 + seed, batch=2, query_len=4 + seed, key_len=7, mask=mask)


def is_right(models, bugs):
    """Whether a model gives what the bugs give, on fresh problems."""
    return any(all(_same(model, bugs, problem) for problem in fresh()) for model in models)


def _same(model, bugs, problem):
    made, got = (
        reference.run(problem.config, problem.weights, problem.inputs, forward=pipelines(*some)[0]).output
        for some in (model, bugs)
    )
    return np.allclose(made, got, rtol=1e-6, atol=1e-9 * np.abs(got).max())


@pytest.mark.parametrize("name", list(SINGLES)[::3])
def test_single(name):
    found = measure(OutputOnly(SINGLES[name]), zoo=(), probes=OWN)
    assert not found.unexplained
    assert is_right(found.models, (SINGLES[name],))


PAIRS = (
    ("value input times 0.83", "merged channels reversed"),
    ("bias of the values reversed", "bias of the output times 1.7"),
)


@pytest.mark.parametrize("names", PAIRS)
def test_pair(names):
    bugs = tuple(SINGLES[name] for name in names)
    found = measure(OutputOnly(*bugs), zoo=(), probes=OWN)
    assert not found.unexplained
    assert is_right(found.models, bugs)


def test_what_was_read_is_said_with_its_number():
    ((bug,), *_) = measure(OutputOnly(SINGLES["value input times 0.83"]), zoo=(), probes=OWN).models
    assert bug.sentence == "The value input is the definition's times 0.83."
    assert bug.stage == "values"


def test_a_right_layer_has_no_finding():
    found = measure(OutputOnly(), probes=OWN)
    assert found.models == ((),)
    assert not found.unexplained
    assert not found.silent


def test_a_bug_on_file_is_among_the_models():
    (bug,) = select(("merge-reversed",))
    assert (bug,) in measure(OutputOnly(bug), probes=OWN).models
