"""Several recorded calls and several layers in one file of plain arrays, and what such calls could not have shown."""

import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from mha.convert.convert import convert
from mha.convert.verify import VerificationFailed
from mha_core import AttentionInputs, AttentionMask
from mha_core.reference import pipeline as reference
from tests.mha.convert.weight_files import CONFIG, PREFIXES, mha, refused, weights_of

pytestmark = pytest.mark.usefixtures("without_frameworks")


def call(seed, length, *, causal=False, wrong=0.0):
    """Queries and the output of the layer with the weights of `seed`."""
    x = np.random.default_rng(length).normal(size=(2, length, 12)).astype("float32")
    inputs = AttentionInputs(x, x, x, AttentionMask(causal=causal))
    output = reference.run(CONFIG, weights_of(CONFIG, seed), inputs).output + wrong
    return {"queries": x, "output": output.astype("float32")}


def named(**calls):
    """Arrays by layer/call/name; `layer0_a` is call "a" of the first layer."""
    found = {}
    for key, arrays in calls.items():
        found |= {f"{PREFIXES[int(key[5])]}/{key[7:]}/{name}": array for name, array in arrays.items()}
    return found


ARGUMENTS = {"to_layout": "bert", "every": True, "num_heads": 3}


def test_one_file_of_arrays_proves_every_layer(source, tmp_path):
    np.savez(tmp_path / "calls.npz", **named(layer0_0=call(0, 5), layer0_1=call(0, 7), layer1_0=call(1, 5)))
    done = convert(source, out=tmp_path / "o.npz", recorded=tmp_path / "calls.npz", **ARGUMENTS)
    assert [layer.standing.why.split(" in ")[0] for layer in done.layers] == ["2 recorded calls", "1 recorded call"]
    save_file(named(layer0_0=call(0, 5), layer1_0=call(1, 5)), tmp_path / "calls.safetensors")
    done = convert(source, out=tmp_path / "p.npz", recorded=tmp_path / "calls.safetensors", **ARGUMENTS)
    assert {layer.standing.word for layer in done.layers} == {"proved"}


def test_a_later_call_that_differs_refuses_the_layer(source, tmp_path):
    np.savez(tmp_path / "calls.npz", **named(layer0_a=call(0, 5), layer0_b=call(0, 7, wrong=1e-3)))
    with pytest.raises(VerificationFailed, match=r"what was recorded of encoder.layers.0.attn/b: output"):
        convert(source, out=tmp_path / "o.npz", recorded=tmp_path / "calls.npz", moved=True, **ARGUMENTS)


def test_calls_in_several_files_come_together(source, tmp_path):
    files = [tmp_path / f"{index}.npz" for index in range(3)]
    for file, arrays in zip(files, (call(0, 5), call(0, 7), call(0, 7, wrong=1e-3)), strict=True):
        np.savez(file, **arrays)
    arguments = {"to_layout": "bert", "prefix": PREFIXES[0], "num_heads": 3}
    done = convert(source, out=tmp_path / "o.npz", recorded=files[:2], **arguments)
    assert done.layers[0].standing.why.startswith("2 recorded calls in float32 reproduced with the mask 'no mask'")
    with pytest.raises(VerificationFailed):
        convert(source, out=tmp_path / "p.npz", recorded=files, **arguments)


def test_calls_that_do_not_say_whether_they_are_causal_are_so_alike(source, tmp_path):
    """Each by itself fits one of the masks, and no layer is causal in one call and not in the next."""
    np.savez(tmp_path / "calls.npz", **named(layer0_0=call(0, 5, causal=True), layer0_1=call(0, 7)))
    with pytest.raises(VerificationFailed, match=r"encoder.layers.0.attn/(0|1): output"):
        convert(source, out=tmp_path / "o.npz", recorded=tmp_path / "calls.npz", moved=True, **ARGUMENTS)
    calls = named(layer0_0=call(0, 5, causal=True), layer0_1=call(0, 7))
    stated = {f"{PREFIXES[0]}/{index}/causal": np.array(not index) for index in range(2)}
    np.savez(tmp_path / "stated.npz", **calls, **stated)
    done = convert(source, out=tmp_path / "o.npz", recorded=tmp_path / "stated.npz", moved=True, **ARGUMENTS)
    assert done.layers[0].standing.word == "proved"
    assert not done.layers[0].standing.causal


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"queries": 0, "a/0/queries": 0}, "must hold arrays of one call .* Got 'queries' among others"),
        ({"0/queries": 0}, "Got '0/queries' among others"),
        ({"a/0/queries": 0}, "a/0: a record needs 'output'"),
        ({"a/0/queries": 0, "a/0/output": 0, "a/0/mask": 0}, "a/0: a record has no array 'mask'"),
    ],
)
def test_arrays_that_are_no_calls_are_refused(arrays, message, source, tmp_path):
    np.savez(tmp_path / "calls.npz", **{name: np.ones((1, 2, 3)) for name in arrays})
    refused(source, message, recorded=tmp_path / "calls.npz", **ARGUMENTS)


def test_calls_of_a_layer_are_in_one_dtype(source, tmp_path):
    wide = {name: array.astype("float64") for name, array in named(layer0_1=call(0, 7)).items()}
    np.savez(tmp_path / "calls.npz", **named(layer0_0=call(0, 5)), **wide)
    refused(source, "must be in one dtype. Got float32 and float64", recorded=tmp_path / "calls.npz", **ARGUMENTS)


def test_beside_proved_stands_what_the_calls_could_not_have_shown(source, tmp_path):
    """A softcap of 300, and a window of 9: neither changes what these calls gave."""
    np.savez(tmp_path / "calls.npz", **named(layer0_0=call(0, 5), layer1_0=call(1, 5)))
    arguments = ["--to", "bert", "--all", "--num-heads", 3, "--recorded", tmp_path / "calls.npz"]
    said = mha(source, *arguments, "--out", tmp_path / "n.npz").output
    assert re.search(r"These 2 calls would not have shown \d+ of \d+ bugs \(--unseen lists them\)\.\n", said)
    assert "nor a setting" not in said
    said = mha(source, *arguments, "--out", tmp_path / "o.npz", "--unseen").output
    assert "These 2 calls would not have shown " in said
    settings = said[said.index("  nor a setting that no array shows: ") :]
    assert "a softcap of " in settings
    assert "; a scale that depends on the number of keys (here always 5); " in settings
    assert "a window or positions beyond 5 keys" in settings
    said = mha(source, *arguments, "--out", tmp_path / "p.npz", "--no-unseen").output
    assert "would not have shown" not in said
