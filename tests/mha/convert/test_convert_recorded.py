"""`mha convert --recorded`: what the original computed is reproduced from its file, or nothing is written."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mha.convert.convert import convert
from mha.convert.verify import VerificationFailed
from mha.infer import evidence
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, load_weights
from mha_core.reference import pipeline as reference
from tests.mha.convert.weight_files import (
    CONFIG,
    GROUPED,
    PREFIXES,
    arrays_of,
    assert_holds,
    mha,
    refused,
    two_layers,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("without_frameworks")


def inputs_of(length=5, keys=7, seed=0, mask=None, dtype="float32"):
    rng = np.random.default_rng(seed)
    arrays = (rng.normal(size=(2, size, 12)).astype(dtype) for size in (length, keys, keys))
    return AttentionInputs(*arrays, mask or AttentionMask(valid_lens=np.array([keys, max(1, keys - 3)])))


def record(path, *layers, inputs=None, config=CONFIG, wrong=0.0):
    """What `mha.capture` would have written of layers (name, seed), which are right but for `wrong`."""
    inputs = inputs or inputs_of()
    kept, calls = [], []
    for index, (name, seed) in enumerate(layers):
        weights = weights_of(config, seed)
        output = reference.run(config, weights, inputs).output.astype("float32")
        output[-1, -1, 3] += wrong
        kept.append(RecordedLayer(name, "mine.Attention", "float32", config, weights))
        calls.append(RecordedCall(index, inputs, {"output": output}))
    Recording(tuple(kept), tuple(calls), {"mine": "1"}).save(path, overwrite=True)
    return path


def test_layers_that_give_what_was_recorded_are_proved(source, tmp_path):
    calls = record(tmp_path / "calls.safetensors", ("layers.1.attn", 1), ("layers.0.attn", 0))
    arguments = ["--to", "bert", "--out", tmp_path / "o.npz", "--all", "--num-heads", 3, "--json", tmp_path / "o.json"]
    result = mha(source, *arguments, "--recorded", calls)
    assert result.exit_code == 0, result.output
    assert "2 x proved: a recorded call of the original was reproduced" in result.output
    assert "2 x torch to bert, proved: " in result.output
    told = json.loads((tmp_path / "o.json").read_text())
    assert told["standing"] == "proved"
    assert [layer["standing"] for layer in told["layers"]] == ["proved"] * 2
    assert {layer["config"]["num_heads"] for layer in told["layers"]} == {3}, "the recording says how many heads"
    assert "1 recorded call in float32 reproduced, worst error 0." in told["layers"][0]["why"]
    printed = mha(source, *arguments[:-1], "-", "--recorded", record(calls, (PREFIXES[0], 0)), "--moved", "--force")
    assert [layer["standing"] for layer in json.loads(printed.output)["layers"]] == ["proved", "moved"], printed.output
    assert json.loads(printed.output)["standing"] == "mixed"


@pytest.mark.parametrize(("layout", "other"), [("nanogpt", "gpt-bigcode"), ("gpt-bigcode", "nanogpt")])
def test_of_layouts_that_names_leave_open_the_one_that_gives_what_was_recorded_is_taken(layout, other, tmp_path):
    """nanoGPT's c_attn is [q; k; v], GPT-BigCode's goes head by head: names and sizes are the same."""
    save_file(two_layers(layout), tmp_path / "a.safetensors")
    arguments = (tmp_path / "a.safetensors", "--all", "--to", "bert", "--out", tmp_path / "b.npz")
    result = mha(*arguments, "--moved", "--num-heads", 3)
    assert result.exit_code == 2
    assert "fits several layouts; say which (--from): gpt-bigcode, nanogpt. A recorded call" in result.output
    heads_too = "gpt-bigcode, nanogpt, and how many heads there are (--num-heads). A recorded call"
    assert heads_too in mha(*arguments, "--moved").output
    calls = record(tmp_path / "calls.safetensors", (PREFIXES[1], 1), (PREFIXES[0], 0))
    result = mha(*arguments, "--recorded", calls)
    assert result.exit_code == 0, result.output
    assert f"2 x {layout} to bert, proved: " in result.output
    assert_holds(tmp_path / "b.npz", two_layers("bert"))
    result = mha(*arguments, "--recorded", calls, "--from", other, "--force")
    assert result.exit_code == 1
    assert f"{PREFIXES[0]} does not give what was recorded of {PREFIXES[0]}" in result.output


@pytest.mark.parametrize(("seed", "wrong", "also"), [(1, 0.0, True), (0, 1e-3, False)])
def test_a_layer_that_gives_something_else_is_refused_with_status_1(seed, wrong, also, source, tmp_path):
    """Another layer's call, whose weights were recorded with it; and one number that is off."""
    calls = record(tmp_path / "calls.safetensors", ("layers.0.attn", seed), wrong=wrong)
    result = mha(source, "--to", "bert", "--out", tmp_path / "o.npz", "--prefix", PREFIXES[0], "--recorded", calls)
    assert result.exit_code == 1, result.output
    assert f"{PREFIXES[0]} does not give what was recorded of layers.0.attn: output" in result.output
    assert "nothing was written" in result.output
    assert ("the recorded layer holds other weights, in every array: is the call of" in result.output) == also
    assert ("\nThe recorded layer holds the same weights: it computes something else" in result.output) != also
    assert sorted(os.listdir(tmp_path)) == ["calls.safetensors", "source.safetensors"]


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_scale_that_was_recorded_becomes_the_layers(scale, tmp_path):
    """No array shows it: GPT-Neo's layers do not scale, and have the names of BART's."""
    config = replace(CONFIG, scale=scale)
    save_file(arrays_of("canonical"), tmp_path / "a.safetensors")
    calls = record(tmp_path / "calls.safetensors", ("attn", 0), config=config)
    convert(tmp_path / "a.safetensors", to_layout="canonical", out=tmp_path / "b.safetensors", recorded=calls)
    assert load_weights(tmp_path / "b.safetensors")[0] == config
    refused(tmp_path / "a.safetensors", f"Got scale={scale}", to_layout="torch", recorded=calls)
    call = Recording.load(calls).calls[0]
    given = {name: getattr(call.inputs, name) for name in ("queries", "keys", "values")}
    np.savez(tmp_path / "c.npz", **given, **call.outputs, causal=False, valid_lens=call.inputs.mask.valid_lens)
    asked = {"to_layout": "bert", "recorded": tmp_path / "c.npz", "num_heads": 3, "error": VerificationFailed}
    refused(tmp_path / "a.safetensors", "the layer does not give what was recorded of it: output", **asked)


@pytest.mark.parametrize("causal", [True, False, None])
def test_one_call_as_infer_takes_it_proves_one_layer(causal, tmp_path):
    save_file(arrays_of("torch"), tmp_path / "a.safetensors")
    x = inputs_of(6, 6).queries
    mask = AttentionMask(causal=causal is not False)
    output = reference.run(CONFIG, weights_of(CONFIG, 0), AttentionInputs(x, x, x, mask)).output.astype("float32")
    np.savez(tmp_path / "call.npz", queries=x, output=output, **({} if causal is None else {"causal": causal}))
    more = {"recorded": tmp_path / "call.npz", "num_heads": 3}
    done = convert(tmp_path / "a.safetensors", to_layout="bert", out=tmp_path / "b.npz", **more)
    words = "no mask" if causal is False else "causal"
    assert done.layers[0].standing.word == "proved"
    assert f"1 recorded call in float32 reproduced with the mask '{words}'" in done.layers[0].standing.why
    with pytest.raises(VerificationFailed):
        convert(tmp_path / "a.safetensors", to_layout="bert", out=tmp_path / "c.npz", **{**more, "num_heads": 6})
    wide = AttentionConfig(18, 3, bias=True)
    save_file(arrays_of("torch", wide), tmp_path / "a.safetensors")
    refused(tmp_path / "a.safetensors", "12", to_layout="bert", **more)
    assert not (tmp_path / "c.npz").exists()


def test_a_call_so_small_that_a_matrix_does_not_show_proves_nothing(tmp_path):
    """Large biases show the scale of the scores there, and a transposed matrix of queries came out as proved."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(size=array.shape) * (3.0 if name.endswith("bias") else 0.4)
        for name, array in weights_of(CONFIG, 0).items()
    }
    small = (1e-4 * rng.normal(size=(2, 6, 12))).astype("float32")
    inputs = AttentionInputs(small, small, small + rng.normal(size=small.shape).astype("float32"))
    turned = {**weights, "q_proj.weight": weights["q_proj.weight"].T.copy()}
    arguments = {"to_layout": "torch", "out": tmp_path / "o.npz", "recorded": tmp_path / "c.npz", "num_heads": 3}
    output = reference.run(CONFIG, weights, inputs).output.astype("float32")
    np.savez(tmp_path / "c.npz", queries=inputs.queries, keys=inputs.keys, values=inputs.values, output=output)
    save_file({name: array.astype("float32") for name, array in turned.items()}, tmp_path / "a.safetensors")
    said = r"proves nothing: (q|k)_proj.weight of half the size would give the same"
    refused(tmp_path / "a.safetensors", said, **arguments)


def test_a_call_that_could_not_show_another_scale_proves_nothing(source, tmp_path):
    calls = record(tmp_path / "calls.safetensors", ("layers.0.attn", 0), inputs=inputs_of(1, 1))
    arguments = {"to_layout": "bert", "out": tmp_path / "o.npz", "prefix": PREFIXES[0], "recorded": calls}
    refused(source, r"of encoder.layers.0.attn proves nothing: scores of half the size", **arguments)
    refused(source, "proves nothing", **arguments, moved=True)
    assert not (tmp_path / "o.npz").exists()


def test_what_was_not_recorded_is_refused_or_moved(source, tmp_path):
    calls = record(tmp_path / "calls.safetensors", (PREFIXES[1], 1))
    arguments = {"to_layout": "bert", "out": tmp_path / "o.npz", "every": True, "num_heads": 3, "recorded": calls}
    refused(source, r"the layer at prefix 'encoder.layers.0.attn' is neither proved nor known", **arguments)
    done = convert(source, **arguments, moved=True)
    assert [layer.standing.word for layer in done.layers] == ["moved", "proved"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("attn",), "the recorded layer 'attn' could be any of 'encoder.layers.0.attn', 'encoder.layers.1.attn'"),
        (("x", "y", "z"), "no recorded layer has the name of one in the file, and there are 3 and 2 of them"),
        (("0.attn", "layers.0.attn"), "at prefix 'encoder.layers.0.attn' was recorded as '0.attn' and as 'layers.0.at"),
    ],
)
def test_layers_that_do_not_pair_are_refused(names, message, source, tmp_path):
    calls = record(tmp_path / "calls.safetensors", *((name, seed) for seed, name in enumerate(names)))
    refused(source, message, to_layout="bert", every=True, recorded=calls)


def test_layers_of_other_names_go_by_their_order(tmp_path):
    """Ten comes after nine, whatever the order of names in the file."""
    config = AttentionConfig(6, 2)
    arrays = {key: a for i in range(11) for key, a in arrays_of("bert", config, f"layer.{i}", seed=i).items()}
    save_file(dict(sorted(arrays.items())), tmp_path / "a.safetensors")
    x = np.random.default_rng(1).normal(size=(1, 4, 6)).astype("float32")
    names = [(f"stack_{'abcdefghijk'[i]}", i) for i in range(11)]
    calls = record(tmp_path / "calls.safetensors", *names, inputs=AttentionInputs(x, x, x), config=config)
    done = convert(tmp_path / "a.safetensors", to_layout="torch", out=tmp_path / "o.npz", every=True, recorded=calls)
    assert {layer.standing.word for layer in done.layers} == {"proved"}


@pytest.mark.parametrize("bias", [False, True])
def test_a_large_call_is_judged_piece_by_piece(bias, source, tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    mask = AttentionMask(
        valid_lens=np.array([7, 4]), causal=True, bias=rng.normal(size=(3, 1, 7)).astype("float32") if bias else None
    )
    right, wrong = (
        record(tmp_path / f"{off}.safetensors", ("layers.0.attn", 0), inputs=inputs_of(mask=mask), wrong=off)
        for off in (0.0, 1e-3)
    )
    monkeypatch.setattr(evidence, "AT_ONCE", 200)
    arguments = {"to_layout": "bert", "out": tmp_path / "o.npz", "prefix": PREFIXES[0]}
    assert convert(source, **arguments, recorded=right).layers[0].standing.word == "proved"
    with pytest.raises(VerificationFailed):
        convert(source, **arguments, recorded=wrong, force=True)


@pytest.mark.parametrize(("name", "message"), [("none.npz", "there is no file"), ("source.safetensors", "a record")])
def test_what_is_no_recording_is_refused(name, message, source, tmp_path):
    refused(source, message, to_layout="bert", every=True, recorded=tmp_path / name)


def test_what_is_wrong_in_a_file_of_calls_names_the_file(source, tmp_path):
    path, x = tmp_path / "calls.npz", inputs_of().queries
    for names, words in (({"x": x}, "a record has no array 'x'"), ({"a/0/x": x}, "a/0: a record has no array 'x'")):
        np.savez(path, **names)
        refused(source, f"^{re.escape(str(path))}: {words}", to_layout="bert", every=True, recorded=path)
    np.savez(path, x=x)
    result = mha(source, "--infer", "--recorded", path)
    assert (result.exit_code, f"{path}: a record has no array 'x'" in result.output.replace("\n", "")) == (2, True)


def test_a_file_of_ours_knows_no_more_than_what_was_known_when_it_was_written(source, tmp_path):
    moved, proved, again = (tmp_path / f"{name}.safetensors" for name in ("moved", "proved", "again"))
    calls = record(tmp_path / "calls.safetensors", (PREFIXES[0], 0))
    arguments = {"to_layout": "canonical", "prefix": PREFIXES[0], "num_heads": 3}
    convert(source, out=moved, moved=True, **arguments)
    convert(source, out=proved, recorded=calls, **arguments)
    refused(moved, "neither proved nor known: mha convert wrote it and says: moved, as layout can", to_layout="bert")
    done = convert(proved, to_layout="bert", out=again)
    assert done.layers[0].standing.word == "known"
    assert "mha convert wrote it and says: proved, 1 recorded call in float32" in done.layers[0].standing.why
    assert convert(again, to_layout="torch", out=tmp_path / "o.npz").layers[0].standing.word == "known"
    save_file(load_file(again), again)
    refused(again, "neither proved nor known: there is no config.json beside it", to_layout="torch", force=True)


def named(role, kind):
    return f"{PREFIXES[0]}.self.{role}.{kind}"


def packings(held):
    """Rows in the order k, q, v, and rows head by head, in place of those of the first layer."""
    turned, packed, roles = {}, {}, ("query", "key", "value")
    for kind in ("weight", "bias"):
        own = [held[named(role, kind)] for role in roles]
        heads = np.stack([array.reshape(3, -1, *array.shape[1:]) for array in own], 1)
        thirds = np.split(heads.reshape(-1, *heads.shape[3:]), 3)
        for role, exchanged, third in zip(roles, (own[1], own[0], own[2]), thirds, strict=True):
            turned[named(role, kind)], packed[named(role, kind)] = exchanged, third
    return turned, packed


def test_what_a_file_would_prove_if_it_were_read_otherwise_is_named(tmp_path):
    """Matrices in the memory of their transposes, as safetensors' NumPy writer makes of W.T: the shape of the view, and
    the numbers as the array holds them; and rows in another order, beside biases as they are due, or the reverse.
    """
    held = two_layers("bert")
    calls = record(tmp_path / "calls.safetensors", (PREFIXES[0], 0), (PREFIXES[1], 1))

    def message(arrays, calls=calls, num_heads=3):
        save_file(arrays, tmp_path / "model.safetensors")
        asked = {"to_layout": "canonical", "every": True, "num_heads": num_heads, "recorded": calls}
        with pytest.raises(VerificationFailed) as refused:
            convert(tmp_path / "model.safetensors", out=tmp_path / "out.npz", **asked)
        return str(refused.value)

    views = {name: np.ascontiguousarray(x.T).T if x.ndim == 2 else x for name, x in held.items()}
    assert "\nIt does with each matrix transposed: the file has them as (in, out) where" in message(views)
    kernels = {name: np.ascontiguousarray(x.T) for name, x in held.items()}
    assert message(kernels) == message(views)  # the bytes are the same
    backwards = message({name: np.ascontiguousarray(x[::-1]) for name, x in held.items()})
    assert "each matrix" not in backwards
    assert "Is the call of these very weights? " in backwards
    assert "\nIt does with num_heads=3, not 4" in message(held, num_heads=4)
    assert "\nIt does with num_heads=3, not 6, and with each matrix transposed: " in message(kernels, num_heads=6)
    turned, packed = packings(held)

    def of(kind, arrays):
        return {name: array for name, array in arrays.items() if name.endswith(kind)}

    key, bias = named("key", "weight"), f"{PREFIXES[0]}.output.dense.bias"
    for changed, said in (
        ({key: np.ascontiguousarray(held[key].T)}, "k_proj.weight transposed: "),
        (turned, "the rows in the order k, q, v, not q, k, v: add --infer"),
        (packed, "the rows packed head by head, (heads, 3, head_dim), not in three blocks"),
        (of("weight", turned), "the rows of the weights alone in the order k, q, v, not q, k"),
        (of("weight", packed), "the rows of the weights alone packed head by head, "),
        (of("bias", packed), "the rows of the biases alone packed head by head, "),
        ({bias: held[bias] + 1}, "one vector more in every row of the output: out_proj.bias or v_proj.bias is another"),
    ):
        assert f"\nIt does with {said}" in message({**held, **changed})

    held, x = arrays_of("canonical", GROUPED), np.random.default_rng(2).normal(size=(2, 5, 20)).astype("float32")
    calls = record(tmp_path / "two.safetensors", ("attn", 0), inputs=AttentionInputs(x, x, x), config=GROUPED)
    views = {name: np.ascontiguousarray(x.T).T if x.ndim == 2 else x for name, x in held.items()}
    assert "It does with each matrix in the memory order of its transpose: the file was" in message(views, calls, 4)
    assert "\nIt does with num_heads=4, not 2" in message(held, calls, 2)


@pytest.mark.parametrize("causal", [True, False])
def test_a_record_that_says_the_wrong_causality_is_named(causal, tmp_path):
    held = {name: array for name, array in two_layers("bert").items() if name.startswith(PREFIXES[0])}
    save_file(held, tmp_path / "model.safetensors")
    calls = tmp_path / "calls.safetensors"
    record(calls, (PREFIXES[0], 0), inputs=inputs_of(keys=5, mask=AttentionMask(causal=causal)))
    recording = Recording.load(calls)
    (call,) = recording.calls
    other = replace(call, inputs=replace(call.inputs, mask=AttentionMask(causal=not causal)))
    replace(recording, calls=(other,)).save(calls, overwrite=True)
    asked = {"to_layout": "canonical", "every": True, "num_heads": 3, "recorded": calls}
    with pytest.raises(VerificationFailed, match=f"\nIt does with causal={causal}, not {not causal} as in the record$"):
        convert(tmp_path / "model.safetensors", out=tmp_path / "out.npz", **asked)


def test_what_capture_wrote_of_one_layer_is_taken_by_infer(tmp_path):
    from mha.convert.original import observed_in

    one = record(tmp_path / "one.safetensors", (PREFIXES[0], 0))
    found = observed_in(one)
    call = Recording.load(one).calls[0]
    ((words, mask),) = found.masks.items()
    assert words == "the recorded mask"
    np.testing.assert_array_equal(mask.valid_lens, call.inputs.mask.valid_lens)
    np.testing.assert_array_equal(found.output, call.outputs["output"])
    both = record(tmp_path / "both.safetensors", (PREFIXES[0], 0), (PREFIXES[1], 1))
    said = "holds calls of 2 layers .*, and one is to be found: record it alone, mha.capture"
    with pytest.raises(SpecError, match=said):
        observed_in(both)
    save_file(two_layers("bert"), tmp_path / "model.safetensors")
    result = mha(tmp_path / "model.safetensors", "--infer", "--recorded", one)
    assert (result.exit_code, "One mapping fits the recorded output" in result.output) == (0, True), result.output
    refused = mha(one, "--list")
    assert (refused.exit_code, "holds recorded calls, and SOURCE is a file of weights" in refused.output) == (2, True)
