"""One task: who takes part, who is refused, who ends the process; and the contestants of each framework."""

import importlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import worker
from benchmarks.measure import FEWEST_ROUNDS, MEMORY_CALLS
from benchmarks.peers import ENGINES, FORMS, PACKAGES, Contestant, Prepared
from benchmarks.settings import COMPILED, DIRECTIONS, IN_PLACE, Setting, Task
from benchmarks.worker import NOBODY, Worker
from mha_core import BackendError
from tests.benchmarks import made_up
from tests.benchmarks.made_up import TINY, contestant

GRADIENTS = Task(TINY, direction="gradients")


def measured(contestants, task=GRADIENTS, seconds=1e-6, lost=None):
    calling = SimpleNamespace(value=None)
    found = worker.measured(tuple(contestants), task, seconds, calling, lost or {})
    assert calling.value == NOBODY
    return {entry["name"]: entry for entry in found}


def test_everyone_is_warm_before_the_rounds_and_then_takes_turns():
    calls = []
    found = measured([contestant("ours", calls=calls), contestant("peer", calls=calls)])
    first = 2 + MEMORY_CALLS  # for the answer, memory, and the estimate
    assert calls[: 2 * first] == ["ours"] * first + ["peer"] * first
    assert calls[2 * first :][:8] == ["ours", "peer", "peer", "ours"] * 2
    assert all(len(entry["seconds"]) == FEWEST_ROUNDS and entry["difference"] < 1e-12 for entry in found.values())


def test_without_time_there_is_memory_alone():
    (entry,) = measured([contestant("ours")], seconds=0).values()
    assert entry["seconds"] == []
    assert entry["left_out"] is None


@pytest.mark.parametrize("wrong", [{"scale": 1.0}, {"twice_the_gradient": True}])
def test_a_wrong_peer_is_refused_and_not_timed(wrong):
    found = measured([contestant("ours"), contestant("wrong", **wrong)])
    assert found["ours"]["seconds"]
    assert (found["wrong"]["seconds"], found["wrong"]["failed"]) == ([], True)
    assert found["wrong"]["left_out"].startswith("refused: it is")


def test_who_is_unable_lost_or_raises_leaves_the_others_alone():
    def fail():
        raise RuntimeError("no such kernel\nand so on")

    unable, lost = contestant("unable", lacks=("gradients", "window")), contestant("lost")
    broken = Contestant("broken", lambda task: Prepared(fail, lambda found: found))
    found = measured([unable, lost, broken, contestant("peer")], lost={1: "it ended the process"})
    assert [(entry["left_out"], entry["failed"]) for entry in found.values()] == [
        ("it has no gradients", False),
        ("it ended the process", True),
        ("failed: RuntimeError: no such kernel", True),
        (None, False),
    ]
    assert [len(entry["seconds"]) for entry in found.values()] == [0, 0, 0, FEWEST_ROUNDS]


# In a process -----------------------------------------------------------------------------------------------


@pytest.fixture
def start(monkeypatch):
    """A function that starts the Worker of a framework in NumPy."""
    monkeypatch.setattr(worker, "serve", made_up.serve)
    started = []

    def start(name):
        started.append(Worker(name, 1, 1e-6, MADE_UP="1"))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_who_ends_the_process_is_named_and_the_rest_goes_on(start, capfd):
    whole = start("made-up")
    assert whole.facts == {"versions": {"made-up": "1.5"}, "dtypes": ("float32",), "lacks": [()] * 4}
    for task in (Task(TINY), GRADIENTS):
        found = {entry["name"]: entry for entry in whole.measured(task)}
        assert list(found) == [each.name for each in made_up.CONTESTANTS]
        for name in ("killed at once", "killed in the rounds"):
            why = "the process of made-up was killed (SIGKILL)"
            assert (found[name]["left_out"], found[name]["failed"]) == (why, True)
        assert found["ends"]["left_out"] == "the process of made-up ended with status 3"
        for name in ("ours", "peer"):
            assert len(found[name]["seconds"]) == FEWEST_ROUNDS
    printed = capfd.readouterr()
    assert (printed.out, "what a framework prints" in printed.err) == ("", True)


def test_another_engine_says_its_package_and_its_own_dtypes(start):
    assert start("engine").facts == {"versions": {"numpy": np.__version__}, "dtypes": ("float32",), "lacks": [()] * 4}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ends", "the process of ends ended with status 5"),
        ("broken", "broken can't be used: ModuleNotFoundError: import of benchmarks.peers.broken halted"),
    ],
)
def test_a_framework_that_can_not_start_says_why(start, name, message):
    with pytest.raises(BackendError) as raised:
        start(name)
    assert str(raised.value).startswith(message)


def test_what_ends_a_process_outside_of_any_contestant_is_an_error(start):
    fragile = start("fragile")
    assert [entry["left_out"] for entry in fragile.measured(Task(TINY))] == [None]
    with pytest.raises(BackendError, match="the process of fragile ended with status 5"):
        fragile.measured(Task(replace(TINY, name="other")))


# The frameworks ---------------------------------------------------------------------------------------------

PLAIN = Setting("plain", 3, 5, 16, 4)

TASKS = {
    "ragged": Task(replace(PLAIN, ragged=True), direction="gradients"),
    "causal": Task(replace(PLAIN, causal=True)),
    "decoding, grouped": Task(replace(PLAIN, length=1, past=4, num_kv_heads=2)),
    "window, rotary": Task(replace(PLAIN, causal=True, rotary=True, window=3), direction="gradients"),
}

SPECIAL = {"decoding, grouped", "window, rotary"}

LEFT_OUT = {
    "nn.MultiheadAttention, eval()": {"ragged", *SPECIAL},
    "nn.MultiheadAttention, train()": SPECIAL,
    "linen.MultiHeadDotProductAttention": SPECIAL,
    "nnx.MultiHeadAttention": SPECIAL,
    "Keras's layer": SPECIAL,
    "Keras's layer, jit_compile": SPECIAL,
    "interleaved_matmul_selfatt": SPECIAL,
    "flex_attention, compiled": {"ragged", "window, rotary"},
    "KerasHub CachedMultiHeadAttention": SPECIAL,
    "KerasHub LlamaAttention": {"ragged", "causal", "decoding, grouped"},
    "d2l.ai's": {"causal", *SPECIAL},
}
"""Contestant -> the tasks that it can't do; the others do all."""


def contestants_of(backend_name):
    assert backend_name in PACKAGES
    return importlib.import_module(f"benchmarks.peers.{backend_name}").CONTESTANTS


# From here on, layers of PyTorch and TensorFlow among themselves: their releases are the same there.
@pytest.mark.nightly("what is measured is right", but=("mxnet-ragged", "torch-ragged"))
@pytest.mark.same_on_newest_of("torch", "tf")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own import
@pytest.mark.parametrize("what", TASKS)
def test_every_contestant_agrees_with_the_reference_or_says_why_not(backend_name, what):
    # XLA compiles for most of the time: it has one task.
    contestants = [each for each in contestants_of(backend_name) if what == "causal" or "jit" not in each.name]
    found = measured(contestants, TASKS[what])
    assert next(iter(found)) == "ours"
    for name, entry in found.items():
        assert not entry["failed"], f"{name}: {entry['left_out']}"
        assert bool(entry["seconds"]) != (what in LEFT_OUT.get(name, ())), f"{name}: {entry['left_out']}"
        assert entry["left_out"] or entry["difference"] < 1e-5
    assert sum(bool(entry["seconds"]) for entry in found.values()) > 1  # there is a peer in every setting


@pytest.mark.nightly("what is measured is right", every=4)
@pytest.mark.same_on_newest_of("torch", "tf")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own import
def test_a_cache_of_a_rotary_layer_and_grouped_heads_have_peers(backend_name):
    cached = Task(replace(PLAIN, length=1, past=4, num_kv_heads=2, rotary=True), direction="gradients")
    grouped = Task(replace(PLAIN, num_kv_heads=2))
    for task in (cached, grouped):
        contestants = [each for each in contestants_of(backend_name) if "jit" not in each.name]
        there = [entry for entry in measured(contestants, task).values() if entry["seconds"]]
        assert len(there) > 1
        assert all(entry["difference"] < 1e-5 for entry in there)


FORMED = (
    Setting("compiled", 3, 5, 16, 4, causal=True, form=COMPILED),
    Setting("donated", 3, 1, 16, 4, past=4, form=IN_PLACE),
    Setting("donated", 3, 1, 16, 4, past=4, num_kv_heads=2, rotary=True, form=IN_PLACE),
)


@pytest.mark.nightly("what is measured is right", every=4)
@pytest.mark.same_on_newest_of("torch", "tf")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own import
def test_contestants_in_the_form_of_a_framework_agree_with_the_reference(backend_name):
    for setting in FORMED:
        for direction in setting.directions if setting.form == FORMS.get(backend_name) else ():
            found = measured(contestants_of(backend_name), Task(setting, direction=direction)).values()
            assert [entry["left_out"] for entry in found if entry["failed"]] == []
            there = [entry for entry in found if entry["seconds"]]
            assert [there[0]["name"], len(there) > 1] == ["ours", True]
            assert all(entry["difference"] < 1e-5 for entry in there)


# Other engines ----------------------------------------------------------------------------------------------

WIDE = Setting("wide", 3, 5, 32, 4)

OF_ENGINES = {
    "plain": (WIDE, {"MultiHeadAttention", "Attention"}),
    "ragged": (replace(WIDE, ragged=True), {"MultiHeadAttention", "Attention"}),
    "grouped": (replace(WIDE, num_kv_heads=2), {"Attention"}),
    "causal": (replace(WIDE, causal=True), {"GroupQueryAttention", "MultiHeadAttention", "Attention"}),
    "decoding": (replace(WIDE, length=1, past=4), {"GroupQueryAttention"}),
    "window, rotary": (
        replace(WIDE, embed_dim=64, num_kv_heads=2, causal=True, rotary=True, window=3),
        {"GroupQueryAttention"},
    ),
    "cache": (
        replace(WIDE, batch=1, length=1, embed_dim=64, past=4, num_kv_heads=2, rotary=True),
        {"GroupQueryAttention"},
    ),
}
"""A setting, and the operators of onnxruntime that can do it; MLX can do all, with gradients too."""


@pytest.mark.nightly("what is measured is right")
@pytest.mark.same_on_newest  # their releases are the same there
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own import
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", OF_ENGINES)
def test_an_engine_agrees_with_the_reference_in_what_it_can_do(backend_names, engine, what):
    if "torch" not in backend_names:
        pytest.skip("ours is measured in PyTorch")
    for package in ENGINES[engine]:
        pytest.importorskip(package)
    setting, operators = OF_ENGINES[what]
    contestants = importlib.import_module(f"benchmarks.peers.{engine}").CONTESTANTS
    for direction in DIRECTIONS:
        found = measured(contestants, Task(setting, direction=direction))
        assert [entry["left_out"] for entry in found.values() if entry["failed"]] == []
        assert all(entry["left_out"] or entry["difference"] < 1e-5 for entry in found.values())
        there = {name for name, entry in found.items() if entry["seconds"]}
        in_onnxruntime = operators if direction == "forward" else set()
        assert there == {"ours", *(in_onnxruntime if engine == "onnxruntime" else {"mx.fast's attention"})}
