"""`mha invariants`: its answer, files, exit status, and what it refuses in one line."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

import mha
from conformance.subjects.load import load_subject
from mha.cli.main import main
from mha.cli.porter.invariants import NO_OPTIMIZATIONS, quickly_compiled
from mha.invariance.trial import Size
from mha_core import SpecError
from tests.mha.schemas.test_schemas import check_form


def right(x):
    return np.cumsum(x, axis=1)


def leaking(x, mask=None):
    kept = x if mask is None else np.where(mask[..., None], x, 0.1 * x)
    return x + kept.mean(1, keepdims=True)


def attending(x, padding=None):
    hidden = np.zeros(x.shape[:2], bool) if padding is None else padding
    return x + np.where(hidden[..., None], 0.5 * x, x).sum(1, keepdims=True)


def idle(x, attn_mask=None, key_padding_mask=None):
    hidden = np.zeros(x.shape[:2], bool) if key_padding_mask is None else key_padding_mask
    return x + np.where(hidden[..., None], 0.0, x).sum(1, keepdims=True)


def lengthy(x):
    return np.cumsum(x, axis=1) / x.shape[1]


def step(tokens, state):
    total = np.cumsum(tokens, axis=1) + (0.0 if state is None else state)
    return total, total[:, -1:]


def wrong_step(tokens, state):
    total, _ = step(tokens, state)
    return total, total[:, :1]


def pair():
    return right, np.arange(24.0).reshape(2, 3, 4)


def broken_pair():
    return lengthy, np.arange(24.0).reshape(2, 3, 4)


def broken_by_name():
    return lengthy, {"x": np.arange(24.0).reshape(2, 3, 4)}


class Sized:
    def __init__(self, width):
        self.width = width


def all_nan(x):
    return x * np.nan


def unused(x, is_causal=False):
    return x + x.mean(1, keepdims=True)


def switched(x, is_causal=False):
    return right(x) if is_causal else unused(x)


def broken():
    raise RuntimeError("no file")


def refuses(x):
    raise ValueError("never")


number = 3


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(name, *options):
    """The exit status and the text of the command on one of the models here, or on MODULE:NAME."""
    done = CliRunner().invoke(main, ["invariants", name if ":" in name else named(name), *options])
    return done.exit_code, done.output


def named(name):
    return f"{__name__}:{name}"


def test_what_holds_ends_with_0():
    status, said = run("right", "--json", "found.json")
    assert status == 0, said
    assert "relations that were asked hold." in said
    assert "Not asked: all of decoding: nothing in its call looks like a cache" in said
    found = json.loads(Path("found.json").read_text())
    check_form("invariants", found)
    assert found["holds"]


OF_CONTENT = "padding-content: What stands in padding on the right changes nothing."


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("leaking", OF_CONTENT),
        ("attending", OF_CONTENT),  # its mask is called padding
        ("idle", "mask-hides-attn_mask: What attn_mask hides changes nothing elsewhere;"),  # beside one that works
    ],
)
def test_what_is_broken_ends_with_1_and_is_in_the_files(name, sentence):
    status, said = run(name, "--json", "found.json", "--junit", "found.xml")
    assert status == 1, said
    assert f"BROKEN {sentence}" in said
    found = json.loads(Path("found.json").read_text())
    check_form("invariants", found)
    broken = {one["id"]: one for one in found["results"] if one["status"] == "broken"}
    if name == "idle":
        assert len(broken) == said.count("BROKEN") == 1
    else:
        assert (broken["padding-content"]["batch"], broken["padding-content"]["length"]) == (1, 3)
    suite = ElementTree.parse("found.xml").getroot()[0]
    assert int(suite.attrib["failures"]) == len(broken)


def test_length_is_seen():
    broken = {one.id for one in mha.invariants(lengthy).of("broken")}
    assert broken == {"causality-shorter"}


def test_what_is_said_to_be_causal_may_be_so_by_an_argument():
    status, said = run("switched", "--causal")
    assert (status, "BROKEN" in said, "causal by is_causal" in said) == (0, False, True)
    assert "not causal with is_causal=True either" in run("unused")[1]


def test_a_step_of_ones_own_is_asked():
    status, said = run("right", "--cache", named("step"))
    assert status == 0
    assert "taken for causal by what it does" in said.splitlines()[0]
    assert re.search(r"all of padding, .*mask-none, .*: it has no mask argument$", said, re.M)
    assert "decoding-steps" in said.partition("Hold")[2]
    status, said = run("right", "--cache", named("wrong_step"))
    assert status == 1
    assert "BROKEN decoding-chunks-2" in said
    assert "decoding-steps" in said.partition("Hold")[2]


def test_inputs_that_come_with_the_model_or_in_a_file():
    assert run("pair")[0] == 0
    np.savez("given.npz", x=np.arange(24.0).reshape(2, 3, 4))
    assert run("right", "--inputs", "given.npz")[0] == 0


@pytest.mark.parametrize(
    ("name", "options", "relation"),
    [
        ("lengthy", (), "causality-shorter"),
        ("broken_pair", (), "causality-shorter"),
        ("broken_by_name", (), "causality-shorter"),
        ("right", ("--cache", "wrong_step"), "decoding-chunks-2"),
    ],
)
def test_the_printed_code_runs_as_it_stands(name, options, relation, capsys):
    options = [one if one.startswith("-") else named(one) for one in options]
    run(name, *options, "--json", "found.json")
    found = json.loads(Path("found.json").read_text())
    (one,) = (one for one in found["results"] if one["id"] == relation)
    exec(one["code"], {})
    assert float(capsys.readouterr().out) == pytest.approx(one["error"], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothing", (), "has no 'nothing'"),
        ("Sized", (), "is a class that takes arguments: name a function that makes one (def make(): return Sized("),
        ("all_nan", (), "can't be asked: every number of its outputs is NaN or infinite"),
        ("broken", (), "can't be made: it raised RuntimeError: no file ("),
        ("refuses", (), "can't be asked: ValueError: never. Say what it is called with: --inputs FILE.npz"),
        ("number", (), "a model of PyTorch, Keras, Flax or Gluon, or a function, is asked: name one"),
        ("right", ("--time-limit", "0"), "limit must be a positive number of seconds, at most 1e6. Got 0.0."),
        ("right", ("--inputs", "none.npz"), "none.npz"),
    ],
)
def test_what_can_not_be_asked_is_said_in_one_line(name, options, message):
    status, said = run(name, *options)
    assert status == 2
    assert message in said
    assert "Traceback" not in said


def test_a_relation_that_takes_too_long_is_named_and_the_others_go_on():
    import time

    seen = []

    def slow(x, mask=None):
        if mask is not None and len(seen) > 400:
            time.sleep(3.0)
        seen.append(1)
        return np.cumsum(x if mask is None else np.where(mask[..., None], x, 0.0), axis=1)

    known = mha.invariants(slow)
    calls = len(seen)
    seen.clear()
    seen.extend([1] * (401 - calls // 4))
    report = mha.invariants(slow, limit=1.0)
    assert known.holds
    assert any(one.reason == "it took over 1 s" for one in report.of("not asked"))
    assert report.of("holds")


def test_inputs_without_a_length_are_refused():
    with pytest.raises(SpecError, match=r"inputs must have an array of shape \(batch, length, ...\)\. Got none\."):
        mha.invariants(lambda x: x, np.arange(3.0))


def masked(x, mask):
    """Attention without projections: any mask that is broadcast to (B, H, L, L) or (L, L)."""
    scores = np.where(mask, x @ x.swapaxes(1, 2) if mask.ndim < 4 else (x @ x.swapaxes(1, 2))[:, None], -1e9)
    exp = np.exp(scores - scores.max(-1, keepdims=True))
    return (exp / exp.sum(-1, keepdims=True)).reshape(*x.shape[:2], x.shape[1]) @ x


def placed(x, positions):
    return x + positions[:, None]


def biased(x, bias):
    assert bias.shape[0] == 4 * len(x)
    return x + bias[0].sum(-1)[:, None]


CAUSAL = np.tri(7, dtype=bool)


@pytest.mark.parametrize(
    ("model", "other"),
    [
        (masked, CAUSAL),
        (masked, CAUSAL[None]),
        (masked, CAUSAL[None, None]),
        (masked, np.broadcast_to(CAUSAL, (3, 1, 7, 7))),
        (masked, np.arange(7)[None, None, None] < np.array([7, 4, 6])[:, None, None, None]),
        (placed, np.linspace(0.0, 1.0, 7)),
    ],
)
@pytest.mark.parametrize("width", [5, 7])
def test_what_is_given_beside_the_sequences_is_cut_with_them(model, other, width):
    x = np.random.default_rng(0).standard_normal((3, 7, width))
    report = mha.invariants(model, (x, other))
    assert report.holds
    asked = {one.id for one in report.of("holds")}
    assert {"batch-alone", "batch-order", "state-longer"} <= asked
    assert "it raises" not in " ".join(report.lines())
    if model is masked:
        reasons = {one.id: one.reason for one in report.of("not asked")}
        assert reasons["mask-none"] == "it has no mask argument besides mask, which the inputs give"


def test_what_can_not_be_cut_is_named():
    report = mha.invariants(biased, (np.ones((3, 7, 5)), np.ones((12, 7, 7))))
    reason = next(one.reason for one in report.of("not asked") if one.id == "batch-alone")
    assert reason.startswith("asked of 1 of 3 items and 7 of 7 positions, it raises AssertionError")
    assert reason.endswith("; not cut, as no axis tells how: bias (12, 7, 7)")


def test_a_mask_of_as_many_items_as_positions_is_refused():
    with pytest.raises(SpecError, match="another number of items than of positions: of mask it can't be told"):
        mha.invariants(masked, (np.ones((4, 4, 5)), np.tri(4, dtype=bool)))


def test_short_inputs_are_named():
    report = mha.invariants(right, np.ones((1, 1, 3)))
    reasons = {one.id: one.reason for one in report.of("not asked")}
    assert reasons["causality-later"] == "inputs of 1 positions and 1 items are too small: it takes 2 and 1"
    assert reasons["batch-order"] == "its inputs have one item"


def test_the_fixture(mha_invariants):
    mha_invariants(right).assert_holds()
    with pytest.raises(AssertionError, match="BROKEN batch-alone"):
        mha_invariants(lambda x: x - x.mean(0)).assert_holds()


def test_the_smallest_inputs_are_shown():
    (one,) = (one for one in mha.invariants(lambda x: x - x.mean(0)).of("broken") if one.id == "batch-alone")
    assert one.size == Size(2, 2)


def pooled(x):
    return x.mean(1)


def two(x, other):
    return x + other


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (pooled, r"it gives no array of shape \(batch, length, \.\.\.\), but \(2, 16\)\. Say what it is called with"),
        (two, "it takes other too, of which nothing is known. Say what it is called with: --inputs"),
        (lambda x: None, "but none at all"),
        (lambda weights, queries, keys, values, mask: queries, "is judged by `mha check --subject MODULE:NAME`"),
    ],
)
def test_a_call_that_is_not_known_is_refused(model, message):
    with pytest.raises(SpecError, match=message):
        mha.invariants(model)


def test_a_random_model_is_said_to_be_one():
    report = mha.invariants(lambda x: x + np.random.rand(*x.shape))
    assert [one.id for one in report.of("broken")] == ["random-twice"]
    assert {one.reason for one in report.of("not asked")} == {"two calls of it differ"}


def test_a_model_on_meta_is_refused():
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        layer = torch.nn.Linear(4, 4)
    with pytest.raises(SpecError, match="weight is on the meta device, where it has no numbers"):
        mha.invariants(layer)


def test_a_module_without_forward_is_told_so():
    """It was sent to --inputs, which can't help."""
    pytest.importorskip("torch")
    Path("bare.py").write_text("import torch\n\n\nclass Bare(torch.nn.Module):\n    pass\n\n\nmade = Bare()\n")
    np.savez("x.npz", x=np.ones((2, 5, 12), np.float32))
    for options in ((), ("--inputs", "x.npz")):
        status, said = run("bare:made", *options)
        assert status == 2
        assert said.strip().endswith("bare.Bare can't be asked: Bare has no method forward")
    with pytest.raises(SpecError, match="'bare:made': Bare has no method forward; a layer of torch is judged in a"):
        load_subject("bare:made", "float32")


def test_jax_compiles_quickly_meanwhile_and_afterwards_as_before():
    jax = pytest.importorskip("jax")
    before = jax.config.read(NO_OPTIMIZATIONS)
    with quickly_compiled():
        assert jax.config.read(NO_OPTIMIZATIONS)
    assert jax.config.read(NO_OPTIMIZATIONS) == before
