"""Compare: the first thing in which a port parts from its original, on a model of three layers.

The model is attention, a sum and a normalisation, three times over: what parts outside attention is made between its
layers, and what rounding does to it is real.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import mha
from conformance.subjects.load import load_subject
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import select
from mha.cli.porter.compare import compare as compare_command
from mha.cli.suite.diagnose import diagnose
from mha.comparison.text import lines
from mha.coverage import Unread
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, init_weights
from mha_core.dtypes import round_to
from mha_core.weights import check_weights

CONFIG = AttentionConfig(12, 4, bias=True)
LENGTHS = np.array([4, 7, 6])
LENS = AttentionMask(valid_lens=LENGTHS)
X = np.random.default_rng(0).normal(size=(3, 7, 12))
PADDED = np.arange(7) >= LENGTHS[:, None]
SHIFT = np.random.default_rng(1).normal(size=12)


def layers_of(dtype="float32", names=("a", "b", "c"), config=CONFIG):
    def weights(seed):
        drawn = init_weights(config, seed, bias_scale=1.0)
        return check_weights(config, {key: round_to(array, dtype) for key, array in drawn.items()})

    return [RecordedLayer(name, "mine.Attention", dtype, config, weights(i)) for i, name in enumerate(names)]


def model(layers, x=X, mask=LENS, *, epsilon=1e-5, bugs=(), between=lambda i, x: x):
    """A recording of the model with these layers; `bugs`: of the second one."""
    dtype = layers[0].dtype
    calls = []
    for i, layer in enumerate(layers):
        x = round_to(between(i, x), dtype)
        inputs = AttentionInputs(x, x, x, mask)
        run = BuggySubject(*(bugs if i == 1 else ()), dtype=dtype).prepare(layer.config, layer.weights)
        output = run(inputs).output
        calls.append(RecordedCall(i, inputs, {"output": output}))
        total = round_to(x.astype(np.float64) + output, dtype).astype(np.float64)
        centred = total - total.mean(axis=-1, keepdims=True)
        x = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + epsilon) + SHIFT
    return Recording(tuple(layers), tuple(calls), {"mine": "1.0"})


def part(original, port, **options):
    """(name of the first pair that parts, part, name), and everything that is said."""
    found = mha.compare(original, port, **options)
    said = "\n".join([*found.notes, *lines(found)])
    assert found.equal == (found.first is None and not found.unpaired), said
    if found.first is None:
        return None, said
    pair, difference = found.first
    return (pair.original, difference.part, difference.name), said


def changed(layers, position, **weights):
    """The layers with other arrays in one of them; names with _ for the dot."""
    given = {key.replace("_weight", ".weight").replace("_bias", ".bias"): array for key, array in weights.items()}
    one = replace(layers[position], weights={**layers[position].weights, **given})
    return [*layers[:position], one, *layers[position + 1 :]]


@pytest.fixture(scope="module")
def original():
    return model(layers_of())


# Nothing parts -----------------------------------------------------------------------------------------


def test_a_recording_is_equal_to_itself(original):
    found = mha.compare(original, original)
    assert found.equal
    assert not found.different
    assert [pair.state("outputs") for pair in found.pairs] == ["equal"] * 3
    assert {pair.distance for pair in found.pairs} == {0.0}


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_another_dtype_is_equal_and_said(original, dtype):
    first, said = part(original, model(layers_of(dtype)))
    assert first is None, said
    assert f"The port computes in {dtype}, the original in float32" in said


def test_one_mask_written_in_other_ways_is_equal(original):
    allowed = ~PADDED[:, None, None, :]
    infinite, finite = (np.where(allowed, 0.0, fill).astype(np.float32) for fill in (-np.inf, -1e9))
    for mask in (AttentionMask(allowed=allowed), AttentionMask(bias=infinite), AttentionMask(bias=finite)):
        first, said = part(original, model(layers_of(), mask=mask))
        assert first is None, said
    assert "excludes by a large finite number" in said
    shifted = AttentionMask(valid_lens=LENGTHS, bias=np.full((3, 1, 7, 1), 2.5, np.float32))  # alike for all keys
    assert part(original, model(layers_of(), mask=shifted))[0] is None


def test_a_finite_mask_does_not_loosen_what_is_allowed(original):
    """A bias of -1e9 has a bound of its own that would let anything pass."""
    finite = AttentionMask(bias=np.where(PADDED[:, None, None, :], -1e9, 0.0).astype(np.float32))
    wrong = model(layers_of(), mask=finite, bugs=select(("scale-num-heads",)))
    assert part(original, wrong)[0] == ("b", "outputs", "output")


def test_rows_of_padding_are_noted_and_no_difference(original):
    junk = np.where(PADDED[..., None], 3 * X + 1, X)
    first, said = part(original, model(layers_of(), junk))
    assert first is None
    assert "queries, keys, values differ in rows of padding" in said
    calls = list(original.calls)
    zeroed = np.where(PADDED[..., None], 0, calls[0].outputs["output"])
    calls[0] = replace(calls[0], outputs={"output": zeroed.astype(np.float32)})
    first, said = part(original, replace(original, calls=tuple(calls)))
    assert first is None
    assert "a: the port's own output is another in 4 rows of padding" in said


def test_what_is_not_padding_is_a_difference(original):
    """The same junk where no mask says that it is padding."""
    junk = np.where(PADDED[..., None], 3 * X + 1, X)
    none = AttentionMask()
    assert part(model(layers_of(), mask=none), model(layers_of(), junk, none))[0] == (
        "a",
        "inputs",
        "queries, keys, values",
    )


# One thing parts ------------------------------------------------------------------------------------------

CAUSAL = AttentionMask(valid_lens=LENGTHS, causal=True)


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (LENS, AttentionMask(), "it forgets the mask"),
        (LENS, AttentionMask(allowed=PADDED[:, None, None, :]), "its mask is inverted"),
        (LENS, AttentionMask(valid_lens=LENGTHS - 1), "its lengths are one short"),
        (LENS, CAUSAL, "it is causal in addition"),
        (CAUSAL, LENS, "it forgets that the mask is causal"),
        (CAUSAL, AttentionMask(causal=True), "it forgets the lengths"),
        (CAUSAL, replace(CAUSAL, query_offset=1), "its causal mask is shifted by +1"),
        (AttentionMask(bias=SHIFT[:7].astype(np.float32)), AttentionMask(), "the port has no bias"),
        (
            AttentionMask(bias=SHIFT[:7].astype(np.float32)),
            AttentionMask(bias=-SHIFT[:7].astype(np.float32)),
            "the port's bias has the other sign",
        ),
    ],
)
def test_another_mask_is_named(mine, theirs, words):
    (layer,) = layers_of(names=("a",))
    first, said = part(model([layer], mask=mine), model([layer], mask=theirs))
    assert first[:2] == ("a", "mask")
    assert words in said
    assert "The port's mask alone moves the original's output" in said


def test_a_forgotten_mask_is_said_once_for_all_layers(original):
    found = mha.compare(original, model(layers_of(), mask=AttentionMask()))
    assert [[one.part for one in pair.causes] for pair in found.pairs] == [["mask"]] * 3
    assert [pair.state("inputs") for pair in found.pairs] == ["equal", "follows", "follows"]
    assert sum("forgets the mask" in finding for finding in found.findings) == 1
    assert found.findings[0].startswith("a and 2 more: mask parts")


def test_whose_weights_a_layer_holds(original):
    a, b, c = layers_of()
    swapped = [replace(a, weights=b.weights), replace(b, weights=a.weights), c]
    first, said = part(original, model(swapped))
    assert first == ("a", "weights", "")
    assert "a: weights part: the port's layer holds the weights of the original's b." in said
    assert "b: weights part: the port's layer holds the weights of the original's a." in said


def test_what_an_array_of_another_layer_is():
    layers = layers_of()
    held = layers[1].weights
    q, k, v = (held[f"{letter}_proj.weight"] for letter in "qkv")
    packed = np.concatenate([q, k, v]).reshape(3, 4, 3, 12).swapaxes(0, 1).reshape(3, 12, 12)
    for arrays, words in (
        ({"q_proj_weight": k, "k_proj_weight": q}, "q_proj.weight holds the original's k_proj.weight."),
        (
            {"out_proj_bias": layers[0].weights["out_proj.bias"]},
            "out_proj.bias holds the original's out_proj.bias of a",
        ),
        ({"v_proj_weight": v.T}, "v_proj.weight is the original's transposed"),
        ({"v_proj_bias": np.zeros(12, np.float32)}, "v_proj.bias is missing or all zeros"),
        ({"q_proj_weight": 2 * q}, "q_proj.weight is 2 times the original's"),
        ({"q_proj_weight": round_to(q, "bfloat16")}, "q_proj.weight is the original's rounded to bfloat16"),
        ({"k_proj_weight": k[::-1].copy()}, "k_proj.weight holds the original's numbers in another order"),
        (
            dict(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), packed, strict=True)),
            "q_proj.weight, k_proj.weight, v_proj.weight together hold the original's numbers in another order",
        ),
    ):
        first, said = part(model(layers), model(changed(layers, 1, **arrays)))
        assert first[:2] == ("b", "weights"), said
        assert words in said, said


def test_settings_are_compared_for_what_they_mean(original):
    layers = layers_of()
    wrong = [replace(layer, config=replace(CONFIG, scale=1.0)) for layer in layers]
    first, said = part(original, model(wrong))
    assert first == ("a", "config", "scale")
    assert "the scale is 1; the original's is 0.57735 (the port's is none at all)" in said
    scale = np.float32(CONFIG.softmax_scale)
    within = [
        replace(
            layer,
            weights={
                **layer.weights,
                **{f"q_proj.{kind}": layer.weights[f"q_proj.{kind}"] * scale for kind in ("weight", "bias")},
            },
        )
        for layer in wrong
    ]
    first, said = part(original, model(within))
    assert first is None, said
    assert "the scale is part of the query weights" in said
    heads = [replace(layer, config=AttentionConfig(12, 2, bias=True)) for layer in layers]
    assert part(original, model(heads))[0] == ("a", "config", "num_heads")


def test_repeated_key_heads_are_the_same_layer():
    grouped = AttentionConfig(12, 4, num_kv_heads=2)
    (one,) = layers_of(names=("a",), config=grouped)
    repeated = {
        name: np.repeat(array.reshape(2, 3, 12), 2, axis=0).reshape(12, 12) if name[0] in "kv" else array
        for name, array in one.weights.items()
    }
    other = replace(one, config=AttentionConfig(12, 4), weights=repeated)
    assert part(model([one]), model([other]))[0] is None
    wrong = replace(other, weights={**repeated, "k_proj.weight": np.tile(one.weights["k_proj.weight"], (2, 1))})
    assert part(model([one]), model([wrong]))[0][:2] == ("a", "config")


def test_a_layer_that_computes_something_else(original):
    first, said = part(original, model(layers_of(), bugs=select(("lens-ignored",))))
    assert first == ("b", "outputs", "output")
    assert "b: outputs part: the port's own output differs in" in said
    assert "it is not what its inputs, mask and weights give" in said
    assert "c: given other inputs, as must be after that" in said


@pytest.mark.parametrize(("dtype", "epsilon"), [("float32", 1e-3), ("float64", 1e-6)])
def test_another_epsilon_between_layers_is_outside_attention(dtype, epsilon):
    first, said = part(model(layers_of(dtype)), model(layers_of(dtype), epsilon=epsilon))
    assert first == ("b", "inputs", "queries, keys, values")
    assert "inputs of b part, a's outputs agree: look between them" in said
    assert "as another epsilon of a normalisation does" in said


def test_inputs_that_part_at_the_first_layer(original):
    def embedded(i, x):
        return x if i else np.where(np.arange(7)[:, None] == 2, x + 0.5, x)

    first, said = part(original, model(layers_of(), between=embedded))
    assert first == ("a", "inputs", "queries, keys, values")
    assert "inputs of a part, the first call: look before it" in said
    assert "differ in 3 of 17 rows" in said


def test_what_rounding_does_between_layers_is_allowed(original):
    """Some units in the last place, in every element and every layer; ten times the allowance is not."""

    def off(units):
        rng = np.random.default_rng(3)
        return lambda i, x: x * (1 + (i > 0) * units * 2.0**-24 * rng.normal(size=x.shape))

    assert part(original, model(layers_of(), between=off(8)))[0] is None
    assert part(original, model(layers_of(), between=off(320)))[0] == ("b", "inputs", "queries, keys, values")


# Other calls ----------------------------------------------------------------------------------------------


def test_another_order_of_the_batch_is_found(original):
    turned = [2, 0, 1]
    first, said = part(original, model(layers_of(), X[turned], AttentionMask(valid_lens=LENGTHS[turned])))
    assert first is None, said
    assert "The port's batch has another order: its items [1, 2, 0] are the original's." in said

    def mixed(i, x):
        return x[turned] if i == 1 else x

    assert part(original, model(layers_of(), between=mixed))[0][:2] == ("b", "inputs")


def test_other_shapes_are_said(original):
    for x, words in ((X[:2], "another batch, so these are not the same calls"), (X[:, :5], "another length")):
        first, said = part(original, model(layers_of(), x, AttentionMask()))
        assert first == ("a", "inputs", "shapes")
        assert words in said


def test_calls_without_a_partner_are_no_parity(original):
    fewer = replace(original, calls=original.calls[:2])
    found = mha.compare(original, fewer)
    assert (found.first, found.equal, found.different) == (None, False, True)
    assert found.unpaired == ("No partner has the original's c.",)
    twice = replace(original, calls=(*original.calls, original.calls[0]))
    found = mha.compare(original, twice)
    assert "a was called once; in the port, 2 times." in found.notes
    assert found.unpaired == ("No partner has the port's a#2.",)


def test_layers_are_paired_by_name_or_in_order(original):
    other = model(layers_of(names=("x", "y", "z")))
    found = mha.compare(original, other)
    assert (found.by, found.equal) == ("order", True)
    assert [pair.name for pair in found.pairs] == ["a (the port's x)", "b (the port's y)", "c (the port's z)"]
    assert mha.compare(original, original, by="order").equal
    with pytest.raises(SpecError, match="no layer of the port has a name of the original's: x, y, z; a, b, c"):
        mha.compare(original, other, by="name")
    exchanged = model([replace(layer, name=name) for layer, name in zip(layers_of(), "bac", strict=True)])
    found = mha.compare(original, exchanged)
    assert "The calls have another order: the port calls b before a." in found.notes
    assert not found.equal


def test_names_choose_what_is_reported(original):
    wrong = model(layers_of(), epsilon=1e-3)
    assert mha.compare(original, wrong, patterns=["a"]).equal
    assert [pair.name for pair in mha.compare(original, wrong, patterns=["b", "c"]).pairs] == ["b", "c"]
    with pytest.raises(SpecError, match=r"no call is named 'd' \(there are: a, b, c\)"):
        mha.compare(original, wrong, patterns=["d"])


# A live port ----------------------------------------------------------------------------------------------


class Port:
    """A subject with weights of its own."""

    def __init__(self, own, *bugs):
        self.own_weights, self.bugs = own, bugs

    def __call__(self, dtype):
        self.subject = BuggySubject(*self.bugs, dtype=dtype)
        return self

    def __getattr__(self, name):
        return getattr(self.subject, name)


def test_a_live_port_is_given_what_was_recorded(original):
    assert mha.compare(original, lambda dtype: BuggySubject(dtype=dtype)).equal
    wrong = BuggySubject(*select(("scale-missing",)), dtype="float32")
    assert part(original, lambda dtype: wrong)[0][:2] == ("a", "outputs")
    held = {layer.name: dict(layer.weights) for layer in original.layers}
    assert mha.compare(original, Port(held)).equal
    held["b"]["v_proj.weight"] = held["b"]["v_proj.weight"].T
    assert part(original, Port(held))[0] == ("b", "weights", "v_proj.weight")
    with pytest.raises(SpecError, match="lacks the layer 'a'"):
        mha.compare(original, Port({"b": held["b"]}))


def test_a_live_port_that_gives_no_answer(original):
    broken = BuggySubject(dtype="float32")
    broken.prepare = lambda config, weights: lambda inputs: inputs.queries[:1]
    found = mha.compare(original, lambda dtype: broken)
    assert (found.equal, found.different, set(found.failed)) == (False, False, {"a", "b", "c"})
    assert found.failed["a"] == "its output is float32 (1, 7, 12); it must be float32 (3, 7, 12)"


# The commands ---------------------------------------------------------------------------------------------


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def files(original, tmp_path):
    original.save(tmp_path / "original")
    model(layers_of(), mask=AttentionMask()).save(tmp_path / "port")
    return tmp_path


def test_the_command(files):
    done = run(compare_command, files / "original", files / "original")
    assert done.exit_code == 0, done.output
    assert "Equal: 3 pairs of calls" in done.output
    done = run(compare_command, files / "original", files / "port", "--json", files / "report.json")
    assert done.exit_code == 1
    assert "Different: a is the first of 3 pairs of calls to part, in mask (allowed)." in done.output
    written = json.loads((files / "report.json").read_text())
    assert (written["equal"], written["first"]["part"]) == (False, "mask")
    assert written["pairs"][0]["states"]["mask"] == "different"
    spec = "examples.subject_numpy:attention"
    assert load_subject(spec, "float32")
    assert run(compare_command, files / "original", "--subject", spec).exit_code == 0
    assert run(compare_command, files / "original", "--subject", spec, "--dtype", "float64").exit_code == 0


def test_what_the_command_can_not_use(files):
    for arguments, words in (
        (("original", "absent"), "no such file"),
        (("original",), "Give either PORT or --subject"),
        (("original", "port", "--dtype", "float64"), "--dtype belongs to --subject"),
        (("original", "port", "--case", "x"), "no call is named 'x'"),
        (("original", "--subject", "nowhere:attention"), "nowhere"),
    ):
        paths = [files / one if one in ("original", "port", "absent") else one for one in arguments]
        done = run(compare_command, *paths)
        assert (done.exit_code, words in done.output) == (2, True), done.output


def test_modules_that_were_not_read_are_said_or_refused(original, tmp_path):
    replace(original, unread=(Unread("d", "mine.Other", "unknown"),)).save(tmp_path / "original")
    arguments = compare_command, tmp_path / "original", tmp_path / "original"
    done = run(*arguments, "--json", tmp_path / "report.json")
    assert done.exit_code == 0, done.output
    for whose in ("original", "port"):
        assert f"Of the {whose}: read 3 of 4 modules that look like attention; not: d (mine.Other)." in done.output
        assert json.loads((tmp_path / "report.json").read_text())["coverage"][whose]["unread"][0]["name"] == "d"
    assert run(*arguments, "--strict").exit_code == 2
    done = run(diagnose, tmp_path / "original", "--weights", tmp_path / "original")
    assert "read 3 of 4 modules that look like attention" in done.output


def test_diagnose_sees_a_mask_that_the_port_forgets(files):
    done = run(diagnose, files / "port", "--weights", files / "original")
    assert done.exit_code == 1, done.output
    assert "it forgets the mask" in done.output
    assert "That is by its own inputs and masks, which are not the original's" in done.output
    assert run(diagnose, files / "port", "--weights", files / "original", "--no-compare").exit_code == 0
    assert run(diagnose, files / "original", "--weights", files / "original").exit_code == 0
