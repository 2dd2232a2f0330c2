"""One row: who takes part, who is refused; and the contestants of each framework."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace

import pytest

from mha.bench.contestants.contestant import CannotRun, Task, load, names, optional
from mha.bench.settings import Setting
from mha.bench.worker import Request, measure_framework, measure_row
from mha.bench.workload import make_workload
from mha_core import BackendError
from tests.mha.bench.made_up import TINY, broken_contestant, numpy_contestant, unable_contestant


def tiny_task(direction="both"):
    return Task(make_workload(TINY, "float32"), direction, "float32", "cpu")


def by_name(entries):
    return {entry.contestant.name: entry for entry in entries}


def test_everyone_is_warm_before_the_rounds_and_then_takes_turns():
    calls = []
    contestants = (numpy_contestant("ours", "ours", calls=calls), numpy_contestant("peer", calls=calls))
    entries = measure_row(contestants, tiny_task(), seconds=1e-6)
    assert calls[:4] == ["ours", "ours", "peer", "peer"]
    assert calls[4:] == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert [entry.timing.samples for entry in entries] == [3, 3]
    assert all(entry.difference < 1e-12 and entry.left_out is None for entry in entries)


@pytest.mark.parametrize("wrong", [{"scale": 1.0}, {"wrong_gradient": True}])
def test_a_wrong_peer_is_refused_and_not_timed(wrong):
    contestants = (numpy_contestant("ours", "ours"), numpy_contestant("wrong", **wrong))
    found = by_name(measure_row(contestants, tiny_task(), seconds=1e-6))
    assert found["ours"].timing is not None
    assert found["wrong"].timing is None
    assert found["wrong"].failed
    assert found["wrong"].left_out.startswith("refused: it is")


def test_who_is_unable_or_raises_leaves_the_others_alone():
    contestants = (
        unable_contestant("unable"),
        broken_contestant("broken", RuntimeError("no such kernel\nand so on")),
        numpy_contestant("peer"),
    )
    found = by_name(measure_row(contestants, tiny_task("forward"), seconds=1e-6))
    assert (found["unable"].left_out, found["unable"].failed) == ("it has no such thing", False)
    assert (found["broken"].left_out, found["broken"].failed) == ("failed: RuntimeError: no such kernel", True)
    assert found["peer"].timing is not None


@pytest.mark.parametrize("measures", [("time",), ("memory",)])
def test_time_and_memory_can_be_had_apart(measures):
    (entry,) = measure_row((numpy_contestant("ours", "ours"),), tiny_task(), 1e-6, measures)
    assert (entry.timing is None) == (measures == ("memory",))
    assert (entry.extra_memory is None) or measures == ("memory",)


def test_no_contestants_for_an_unknown_framework():
    with pytest.raises(BackendError, match=r"no benchmarks for backend 'pytroch' \(there are: jax, mxnet, tf, torch\)"):
        load("pytroch")


PLAIN = Setting("plain", 3, 5, 12, 4)

TASKS = {
    "ragged": (replace(PLAIN, ragged=True), "both"),
    "causal": (replace(PLAIN, causal=True), "forward"),
    "decoding, grouped": (replace(PLAIN, length=1, past=4, num_kv_heads=2), "forward"),
    "window, rotary": (replace(PLAIN, embed_dim=16, causal=True, rotary=True, window=3), "both"),
}


def _if_installed(library):
    return {"window, rotary"} if importlib.util.find_spec(library) else set()


WITHOUT_PARTS = {"decoding, grouped", "window, rotary"}

LEFT_OUT = {
    "nn.MultiheadAttention, eval()": {"ragged", *WITHOUT_PARTS},
    "nn.MultiheadAttention, train()": WITHOUT_PARTS,
    "Linear, scaled_dot_product_attention, cache in place": {"ragged", "causal", "window, rotary"},
    "transformers' LlamaAttention, sdpa": set(TASKS) - _if_installed("transformers"),
    "transformers' LlamaAttention, eager": set(TASKS) - _if_installed("transformers"),
    "keras_hub's LlamaAttention": set(TASKS) - _if_installed("keras_hub"),
    "keras_hub's LlamaAttention, jit_compile": set(TASKS) - _if_installed("keras_hub"),
    "linen.MultiHeadDotProductAttention": {"decoding, grouped"},
    "nnx.MultiHeadAttention": WITHOUT_PARTS,
    "keras.layers.MultiHeadAttention": WITHOUT_PARTS,
    "keras.layers.MultiHeadAttention, jit_compile": WITHOUT_PARTS,
    "keras.layers.GroupQueryAttention": set(TASKS),
    "keras.layers.GroupQueryAttention, jit_compile": set(TASKS),
    "Dense, interleaved_matmul_selfatt": WITHOUT_PARTS,
    "Dense, interleaved_matmul_encdec": set(TASKS),
    "Dense, batch_dot": {"ragged", "causal"},
    "d2l.ai's": {"causal", *WITHOUT_PARTS},
}
"""Contestant -> the tasks that it can't do; the others do all."""


def is_quick(contestant):
    return contestant.kind != "variant" and "jit_compile" not in contestant.name


# From here on, layers of PyTorch and TensorFlow among themselves: their releases are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
@pytest.mark.parametrize("what", TASKS)
def test_every_contestant_agrees_with_the_reference_or_says_why_not(backend_name, what):
    assert backend_name in names()
    given, direction = TASKS[what]
    task = Task(make_workload(given, "float32"), direction, "float32", "cpu")
    # Compiling takes most of the time: the variants of ours and XLA have one task.
    contestants = [each for each in load(backend_name).CONTESTANTS if what == "causal" or is_quick(each)]
    entries = measure_row(tuple(contestants), task, seconds=1e-6)
    assert entries[0].contestant.kind == "ours"
    for entry in entries:
        name = entry.contestant.name
        assert not entry.failed, f"{name}: {entry.left_out}"
        assert (entry.timing is None) == (what in LEFT_OUT.get(name, set())), f"{name}: {entry.left_out}"
        if entry.timing is not None:
            assert entry.difference < 1e-5


@pytest.mark.same_on_newest_of("torch", "tf")
def test_decoding_grouped_heads_and_rotary_positions_have_peers_of_their_own(backend_name):
    decoder = {"embed_dim": 16, "num_kv_heads": 2, "rotary": True}
    for special, direction in (
        ({"length": 1, "past": 4}, "both"),
        ({"num_kv_heads": 2}, "forward"),
        ({**decoder, "causal": True}, "both"),
        ({**decoder, "length": 1, "past": 4}, "forward"),
    ):
        task = Task(make_workload(replace(PLAIN, **special), "float32"), direction, "float32", "cpu")
        contestants = [each for each in load(backend_name).CONTESTANTS if each.kind == "peer" and is_quick(each)]
        there = [entry for entry in measure_row(tuple(contestants), task, seconds=1e-6) if entry.timing is not None]
        assert there
        assert all(entry.difference < 1e-5 for entry in there)


def test_a_library_that_is_absent_leaves_its_layer_out_and_is_no_failure(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CannotRun, match="it needs the package 'transformers', which is not installed"):
        optional("transformers")


@pytest.mark.same_on_newest_of("torch", "tf")
def test_rows_of_a_framework(backend_name):
    framework = load(backend_name)
    request = Request(backend_name, (PLAIN,), ("forward",), ("float32", "float16"), ("cpu", "gpu:9"), seconds=1e-6)
    rows = list(measure_framework(request, _only_ours(framework)))
    float16 = ["float16"] if "float16" in framework.dtypes("cpu") else []
    assert [row["dtype"] for row in rows] == ["float32", *float16]
    assert all(row["peak"] > 1e8 and row["device"] == "cpu" for row in rows)


def _only_ours(framework):
    class Ours:
        CONTESTANTS = framework.CONTESTANTS[:1]
        devices = staticmethod(framework.devices)
        dtypes = staticmethod(framework.dtypes)

        @staticmethod
        def product(size, dtype, device):
            return framework.product(64, dtype, device)

    return Ours
