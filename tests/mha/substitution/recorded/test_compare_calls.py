"""Two recordings: pairs, calls without a partner, and what `mha where` and `mha diagnose --weights` say and refuse."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import mha
from conformance.zoo.registry import select
from mha.cli.main import main
from mha.coverage import Unread
from mha.substitution.recorded.walk import recordings_apart
from mha_core import AttentionMask, SpecError
from tests.mha.substitution.recorded.three_layers import X, changed, layers_of, model, part, said_of


def test_other_shapes_are_said(original):
    for x, words in ((X[:2], "another batch, so these are not the same calls"), (X[:, :5], "another length")):
        first, said = part(original, model(layers_of(), x, AttentionMask()))
        assert first == ("a", "inputs", "shapes")
        assert words in said


def test_calls_without_a_partner_are_no_parity(original):
    fewer = replace(original, calls=original.calls[:2])
    found = mha.where(original, fewer)
    assert (found.first, found.equal, found.uncovered) == (None, False, ("c",))
    assert "No partner has the original's c: nothing was compared there." in found.notes
    assert said_of(found).endswith("Open: 2 pairs agree, and c has no partner.")
    twice = replace(original, calls=(*original.calls, original.calls[0]))
    found = mha.where(original, twice)
    assert "a was called once; in the port, 2 times." in found.notes
    assert "No partner has the port's a#2: nothing was compared there." in found.notes


def test_no_layer_is_acquitted_that_stands_before_a_difference_and_was_not_compared(original):
    def without(recording, position):
        fewer = recording.calls[:position] + recording.calls[position + 1 :]
        return replace(recording, calls=fewer, unread=(Unread("b2", "mine.Other", "unknown"),))

    first, said = part(original, without(model(layers_of(), bugs=select(("lens-ignored",))), 1))
    assert first == ("c", "inputs", "queries, keys, values")
    assert (
        "c (mine.Attention) differs in inputs: nothing was compared at attention that may stand before it (b of the "
        "original, without a partner; b2 of the port, not read): look there first. Its queries" in said
    )
    assert "outputs agree" not in said
    assert "Of the port: read 3 of 4 modules that look like attention; not: b2 (mine.Other): nothing here knows" in said
    assert said.endswith("is the first of 2 pairs to differ, in inputs (queries, keys, values). Not compared: b.")
    moved = model(layers_of(), between=lambda i, x: x if i < 2 else x + 0.5)
    assert "c (mine.Attention) differs in inputs: b's outputs agree: look between them. Its" in part(original, moved)[1]
    # A layer without a partner that stands behind the difference has nothing to do with it.
    moved = model(layers_of(), between=lambda i, x: x if i < 1 else x + 0.5)
    assert (
        "b (mine.Attention) differs in inputs: a's outputs agree"
        in part(original, replace(moved, calls=moved.calls[:2]))[1]
    )


def test_an_array_is_said_to_be_of_its_own_layer_where_others_hold_the_same(original):
    layers = layers_of()
    copies = [replace(layer, weights=layers[0].weights) for layer in layers]
    own = layers[0].weights
    wrong = changed(copies, 1, k_proj_weight=own["v_proj.weight"], v_proj_weight=own["k_proj.weight"])
    _, said = part(model(copies), model(wrong))
    assert "the weights of k_proj and v_proj are exchanged." in said
    assert "of a" not in said.partition("b (mine.Attention)")[2].partition("c: given")[0]


def test_layers_are_paired_by_name_by_a_map_or_in_order(original):
    other = model(layers_of(names=("x", "y", "z")))
    found = mha.where(original, other)
    assert ({one.how for one in found.results}, found.equal) == ({"order"}, True)
    assert found.pairs == {"a": "x", "b": "y", "c": "z"}
    assert all(0.0 < one.bound < 1.0 for one in found.results)
    exchanged = model([replace(layer, name=name) for layer, name in zip(layers_of(), "bac", strict=True)])
    found = mha.where(original, exchanged)
    assert "The calls have another order: the port calls b before a." in found.notes
    assert not found.equal
    found = mha.where(original, exchanged, pairs={"a": "b", "b": "a"})
    assert (found.equal, found.pairs, found.results[0].how) == (True, {"a": "b", "b": "a", "c": "c"}, "the map")
    with pytest.raises(SpecError, match="the map names 'd', and no layer of the port that was called has that name"):
        mha.where(original, exchanged, pairs={"a": "d"})


def test_names_choose_what_is_reported(original):
    wrong = model(layers_of(), epsilon=1e-3)
    assert recordings_apart(original, wrong, patterns=["a"]).equal
    assert [one.name for one in recordings_apart(original, wrong, patterns=["b", "c"]).results] == ["b", "c"]


# The commands ---------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def files(original, tmp_path):
    replace(original, unread=(Unread("d", "mine.Other", "unknown"),)).save(tmp_path / "original.safetensors")
    model(layers_of(), mask=AttentionMask()).save(tmp_path / "port.safetensors")
    return [tmp_path / "original.safetensors", tmp_path / "port.safetensors"]


def test_where_takes_two_files(files, tmp_path):
    done = run("where", files[0], files[0])
    assert done.exit_code == 0, done.output
    assert "Equal: 3 pairs agree, in inputs, masks, settings, weights and outputs." in done.output
    assert "These 3 calls would not have shown" in done.output
    for whose in ("original", "port"):
        assert (
            f"Of the {whose}: read 3 of 4 modules that look like attention; not: d (mine.Other): nothing here knows"
            in done.output
        )
    written = {flag: tmp_path / f"report{flag}" for flag in ("--json", "--html", "--junit")}
    done = run("where", *files, *(each for pair in written.items() for each in pair))
    assert done.exit_code == 1
    assert "Wrong: a is the first of 3 pairs to differ, in mask (allowed)." in done.output
    assert "\na wrong in mask\nb wrong in mask\nc wrong in mask\n" in done.output
    assert "would not have shown" not in done.output
    found = json.loads(written["--json"].read_text())
    assert (found["equal"], found["original"], found["wrong"]) == (False, "recording", ["a", "b", "c"])
    assert [one["part"] for one in found["modules"][1]["differences"]] == ["inputs", "mask"]
    assert "it forgets the mask" in written["--html"].read_text()
    assert written["--junit"].read_text().count("it forgets the mask") == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("original", "absent.safetensors"), "no such file: absent.safetensors"),
        (("absent.safetensors", "original"), "no such file: absent.safetensors"),
        (("original", "port", "--inputs", "x.npz"), "--inputs and --python belong to a live ORIGINAL"),
        (("original", "weights"), "is no recording"),
    ],
)
def test_what_the_command_can_not_use(files, tmp_path, arguments, words):
    from mha_core import save_weights

    layer = layers_of()[0]
    save_weights(tmp_path / "weights.safetensors", layer.config, layer.weights)
    paths = [tmp_path / f"{one}.safetensors" if one in ("original", "port", "weights") else one for one in arguments]
    done = run("where", *paths)
    assert (done.exit_code, words in done.output) == (2, True), done.output


def test_diagnose_sees_a_mask_that_the_port_forgets(files):
    original, port = files
    done = run("diagnose", port, "--weights", original)
    assert done.exit_code == 1, done.output
    assert "it forgets the mask" in done.output
    assert "That is of its attention, on the inputs and masks that it was given." in done.output
    assert run("diagnose", port, "--weights", original, "--no-compare").exit_code == 0
    done = run("diagnose", original, "--weights", original)
    assert done.exit_code == 2
    assert "Not judged: 1 of 4 modules that look like attention: " in done.output
    assert run("diagnose", original, "--weights", original, "-c", "*").exit_code == 0


def test_where_says_which_command_knows_why_a_layers_own_output_is_wrong(tmp_path, original):
    wrong = original.calls[0]
    output = {**wrong.outputs, "output": 2 * wrong.outputs["output"]}
    port = replace(original, calls=(replace(wrong, outputs=output), *original.calls[1:]))
    files = [tmp_path / "original.safetensors", tmp_path / "port.safetensors"]
    original.save(files[0])
    port.save(files[1])
    assert f"is wrong: mha diagnose {files[1]}\n" in run("where", *files, "--no-unseen").output
    assert "mha diagnose" not in run("where", *files[::-1], "--no-unseen").output


def test_a_guessed_mask_that_the_output_contradicts_is_not_accused():
    causal, none = AttentionMask(causal=True), AttentionMask()
    original = model(layers_of(), mask=causal)
    ahead = model(layers_of(), mask=causal, bugs=select(("causal-one-ahead",)))

    def guessed(assumed):
        calls = [
            replace(call, inputs=replace(call.inputs, mask=none), assumed=assumed) if call.layer == 1 else call
            for call in ahead.calls
        ]
        return part(original, replace(ahead, calls=tuple(calls)))

    assert guessed("")[0] == ("b", "mask", "allowed")
    first, said = guessed("causal=False")
    assert first == ("b", "outputs", "output")
    assert "forgets" not in said
    assert "b: whether it is causal was guessed, and its output does not confirm that: masks were not compared." in said
