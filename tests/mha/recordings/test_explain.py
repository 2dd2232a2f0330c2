"""Explanation of recordings: the bug, or the wrong port, that gives the recorded outputs."""

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from conformance.diagnosis.brief import NO_CAUSE, describe
from conformance.reports.brief import MADE
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import select
from mha import Recording
from mha.cli.main import main
from mha.formats.readers.safetensors import create
from mha.projections.said import MEANT, causal_otherwise, read_otherwise
from mha.recordings import explain as explained
from mha.recordings.explain import MOST_IN_VAIN, explain, explain_layers, intended, of_weights_alone
from mha.recordings.packing_bugs import packing_bugs
from mha.recordings.recording import RecordedCall
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, save_weights
from mha_core.layouts import get
from mha_core.reference import pipeline as reference
from tests.conformance.measure.wrong import wrong_at
from tests.mha.recordings.wrong_ports import CONFIG, MASKS, layer_of, recording_of, together, wrongly_ported

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def _over_queries(state, weights):
    scores = np.where(state["allowed"], state["scores"], -1e9)
    exponentials = np.exp(scores - scores.max(axis=2, keepdims=True))
    return exponentials / exponentials.sum(axis=2, keepdims=True)


def _filled(state, weights):
    exponentials = np.exp(np.where(state["allowed"], state["scores"], -1.0))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def named(recording):
    """What explains a recording of one dtype, by name."""
    (found,) = explain(recording)
    return [explanation.name for explanation in found.explanations]


BUGS = ("scale-missing", "lens-ignored", "split-d-h", "q-k-weights-exchanged")
RULED_OUT = AttentionConfig(12, 4, num_kv_heads=2, key_dim=7, value_dim=9)
"""Its sizes rule out packings."""


@pytest.mark.parametrize(
    ("bug", "dtype", "config"),
    [
        *((bug, dtype, CONFIG) for bug in BUGS for dtype in ("float64", "float32")),
        ("scale-missing + out-proj-bias-missing", "float32", CONFIG),
        ("scale-missing", "float32", RULED_OUT),
    ],
)
def test_a_recorded_bug_is_named(bug, dtype, config):
    bugs = bug.split(" + ")
    found = named(recording_of(layer_of(dtype, config=config), *select(tuple(bugs))))
    assert set(bugs) in [set(name.split(" + ")) for name in found]


def test_a_hypothesis_must_fit_every_call():
    ignored = select(("lens-ignored",))
    open_yet = {*named(recording_of(layer_of(), *ignored, masks=MASKS[1:2]))}
    decided = {*named(recording_of(layer_of(), *ignored, masks=(*MASKS, AttentionMask(np.array([5, 4])))))}
    assert "lens-ignored" in decided < open_yet


def test_a_layer_leaves_padded_rows_as_they_are():
    """The definition sets them to 0, so that nothing of them reaches a result; in a wrong layer they may show."""
    (after,), lens = select(("mask-after-softmax",)), AttentionMask(np.array([5, 3]), causal=True)
    as_given = {"key_inputs": lambda state: state.inputs.keys, "value_inputs": lambda state: state.inputs.values}
    left = replace(after, forward={**after.forward, **as_given})
    for bug in (after, left):
        assert named(recording_of(layer_of(), bug, masks=(lens,))) == ["mask-after-softmax"]
    (found,) = explain(recording_of(layer_of(), replace(left, forward=as_given), masks=(lens,)))
    assert not found.failing  # without the mistake it is right


@pytest.mark.nightly("a recording's first wrong step is read", every=2)
@pytest.mark.parametrize(
    ("step", "change", "said"),
    [
        ("heads", lambda s, x: 0.9 * x, "outputs read back through out_proj are the right ones times 0.9."),
        ("weights", _over_queries, "summed over the queries they give 1: look at the axis of the softmax."),
        ("weights", _filled, "Excluded scores become -1, which leaves these keys a weight."),
    ],
)
def test_of_a_recording_that_nothing_explains_heads_and_weights_are_read(step, change, said):
    layer = layer_of("float64", config=AttentionConfig(24, 4, bias=True))
    (found,) = explain(recording_of(layer, wrong_at(step, change), masks=MASKS[2:]))
    text = describe(found)
    assert f"First wrong step: the {MADE[step]}" in text
    assert said in text
    assert NO_CAUSE not in text


def test_a_mask_that_was_read_is_named_as_the_layer_does(tmp_path):
    allowed = np.random.default_rng(5).random((2, 1, 3, 5)) < 0.5
    wrong = recording_of(layer_of(), *select(("allowed-ignored",)), masks=(AttentionMask(allowed=allowed),))
    for assumed, words in (
        (f"batch_first=True, pad {MEANT[True]}", "pad (read as `allowed`) is ignored."),
        (f"pad or mask {MEANT[True]}", ": allowed is ignored."),  # which of them is not known
        ("", ": allowed is ignored."),
    ):
        path = tmp_path / "calls.safetensors"
        replace(wrong, calls=tuple(replace(call, assumed=assumed) for call in wrong.calls)).save(path, overwrite=True)
        ended = CliRunner().invoke(main, ["diagnose", str(path)])
        assert ended.exit_code == 1
        assert words in ended.stdout


def test_each_wrong_packing_is_named():
    """Every order that is known is found again from outputs alone, and no other one with it."""
    layer = layer_of(config=AttentionConfig(24, 4, bias=True))  # heads as wide as two orders of pairs need
    for bug in packing_bugs():
        assert named(recording_of(layer, bug)) == [bug.id]


@pytest.mark.parametrize(
    ("wrong", "cause", "said"),
    [
        (
            {"k_proj": "v_proj", "v_proj": "k_proj"},
            "packed-order-qvk",
            "k_proj.weight holds the original's v_proj.weight; k_proj.bias holds",
        ),
        (
            {"q_proj": [0, 4, 1, 5, 2, 6, 3, 7]},
            "rows-of-pairs-joined",
            "q_proj.weight holds the original's numbers in another order: the rows of each head as "
            "[0, 4, 1, 5, 2, 6, 3, 7]; q_proj.bias holds",
        ),
        (
            {"k_proj": [0, 4, 1, 5, 2, 6, 3, 7]},
            "rows-of-pairs-apart",
            "k_proj.weight holds the original's numbers in another order: the rows of each head as [0, 4, 1",
        ),
    ],
)
def test_what_a_port_with_grouped_heads_holds_is_named_and_explains_it(wrong, cause, said, tmp_path):
    """Keys and values of grouped heads have the same sizes; rows of heads are permuted for rotary positions."""
    config = AttentionConfig(32, 4, num_kv_heads=2, bias=True)
    layer, path = layer_of(config=config), tmp_path / "source.safetensors"
    held = dict(layer.weights)
    for own, other in wrong.items():
        for kind in ("weight", "bias"):
            array = layer.weights[f"{own}.{kind}"]
            heads = array.reshape(-1, 8, *array.shape[1:])
            moved = layer.weights[f"{other}.{kind}"] if isinstance(other, str) else heads[:, other].reshape(array.shape)
            held[f"{own}.{kind}"] = moved
    save_weights(path, config, layer.weights)
    meant, (line,) = intended(recording_of(replace(layer, weights=held)), path)
    assert said in line
    assert named(meant) == [cause]


PROJECTED = ("q_proj", "k_proj", "v_proj")
CHANNELS = np.arange(12).reshape(4, 3).T.ravel()
"""(d, h): where each of the right channels stands."""


@pytest.mark.nightly("a recording's cause is named", but=("False",))
@pytest.mark.parametrize("of_the_output", [False, True])
def test_channels_in_the_other_order_are_named(of_the_output):
    layer = layer_of()
    held = {name: array[CHANNELS] if name[:6] in PROJECTED else array for name, array in layer.weights.items()}
    cause = "channels-d-h-read-as-h-d"
    if of_the_output:
        held["out_proj.weight"] = held["out_proj.weight"][:, CHANNELS]
        cause += " + output-channels-d-h-read-as-h-d"
    assert named(recording_of(layer, held=held)) == [cause]


def test_weights_in_another_order_beside_right_biases_are_named():
    layer = layer_of()
    for order, cause in (
        (lambda w: w.T.copy(), "each-weight-read-as-in-out"),
        (lambda w: w[CHANNELS], "channels-d-h-read-as-h-d-in-weights"),
        (lambda w: w[np.argsort(CHANNELS)], "channels-h-d-read-as-d-h-in-weights"),
    ):
        held = {**layer.weights, **{f"{name}.weight": order(layer.weights[f"{name}.weight"]) for name in PROJECTED}}
        assert named(recording_of(layer, held=held)) == [cause]


def test_of_a_large_batch_two_items_decide(monkeypatch):
    """The second call is wrong in its item 4 alone; all sources of its mask go with the items."""
    monkeypatch.setattr("mha.recordings.explain.SMALL", 0)
    layer = layer_of()
    rng = np.random.default_rng(0)
    x, keys = rng.normal(size=(6, 3, 12)), rng.normal(size=(6, 5, 12))
    mask = AttentionMask(
        valid_lens=np.array([3, 4, 5, 5, 2, 5]),
        allowed=rng.random((6, 1, 3, 5)) < 0.9,
        bias=rng.normal(size=(4, 3, 5)),
        causal=True,
        query_offset=np.array([2, 3, 2, 4, 3, 2]),
    )
    calls = []
    for sources in (AttentionMask(), mask):
        inputs = AttentionInputs(x, keys, keys, sources, dropout_keep=None).rounded("float32")
        right = reference.run(CONFIG, layer.weights, inputs).output
        wrong = BuggySubject(*select(("lens-ignored",))).prepare(CONFIG, layer.weights)(inputs).output
        only = np.where(np.arange(6)[:, None, None] == 4, wrong, right)
        calls.append(RecordedCall(0, inputs, {"output": only.astype(np.float32)}))
    (found,) = explain(Recording((layer,), tuple(calls)))
    assert found.failing == ("layer#2",)
    assert found.mismatch.total == 2 * 3 * 12
    assert found.mismatch.index[0] == 0


@pytest.mark.nightly("a recording's cause is named")
def test_of_pairs_that_give_the_same_the_smaller_change_is_said():
    """A causal mask that is inverted and transposed lacks its diagonal; the row that this empties shows the fill."""
    pair = ("causal-without-diagonal", "fill-1e9-averaged")
    (found,) = explain(recording_of(layer_of(), *select(pair), masks=MASKS[2:]))
    pairs = [{bug.id for bug in one.bugs} for one in found.explanations]
    assert set(pair) in pairs
    assert not {"mask-inverted", "mask-inverted-filled", "mask-transposed"} & set().union(*pairs)


@pytest.mark.nightly("a recording's cause is named")
def test_how_a_layer_reads_its_mask_is_no_cause_beside_another_one_unless_it_was_said():
    """Nothing tells it where no reading gives what was recorded; what somebody said counts."""
    layer = layer_of()
    allowed = np.random.default_rng(5).random((2, 1, 3, 5)) < 0.5
    wrong = recording_of(layer, *select(("merge-without-transpose",)), masks=(AttentionMask(allowed=allowed),))
    calls = []
    for call in wrong.calls:
        mask = call.inputs.mask
        if mask.allowed is not None:
            mask = replace(mask, allowed=~mask.allowed)
        calls.append(replace(call, inputs=replace(call.inputs, mask=mask)))
    read = replace(wrong, calls=tuple(calls))
    assumed = f"batch_first=True, keep {MEANT[False]}"
    guessed = replace(read, calls=tuple(replace(call, assumed=assumed) for call in calls))
    assert [one.otherwise for one in explain_layers(guessed)] == [{"": read_otherwise}]
    assert named(guessed) == ["merge-without-transpose"]
    for others in (calls, [replace(call, assumed="batch_first=True") for call in calls]):
        found = named(replace(read, calls=tuple(others)))
        assert "mask-inverted + merge-without-transpose" in found
        assert "merge-without-transpose" not in found


def layers_with(*bugs):
    """A recording of a layer for each of these names of a bug; "" is right, and "unknown" a bug that nobody has."""
    made = []
    for index, bug in enumerate(bugs):
        known = () if bug in ("", "unknown") else select((bug,))
        one = recording_of(layer_of(name=f"blocks.{index}", seed=index), *known, masks=MASKS[1:2])
        squared = replace(one.calls[0], outputs={"output": one.calls[0].outputs["output"] ** 2})
        made.append(replace(one, calls=(squared,)) if bug == "unknown" else one)
    return together(*made)


@pytest.fixture
def searches(monkeypatch):
    """The layers on which the whole zoo was tried, a small one, as they come."""
    zoo, seen, right = tuple(select(("scale-missing", "lens-ignored", "causal-ignored"))), [], explained.find_bugs

    def noted(subject, cases, *, bugs, progress):
        seen.extend([case.id for case in cases] * (bugs == zoo))
        return right(subject, cases, bugs=bugs, progress=progress)

    monkeypatch.setattr(explained, "all_bugs", lambda: zoo)
    monkeypatch.setattr(explained, "packing_bugs", tuple)
    monkeypatch.setattr(explained, "bugs_of_functions", lambda recording: ())
    monkeypatch.setattr(explained, "find_bugs", noted)
    return seen


def test_layers_with_one_fault_are_searched_once(searches):
    (found,) = explain_layers(layers_with(*["lens-ignored"] * 5))
    assert [names for names, _ in found.found] == [tuple(f"blocks.{index}" for index in range(5))]
    assert searches == ["blocks.0"]


def test_of_layers_that_nothing_explains_few_are_searched(searches):
    recording = layers_with(*["unknown"] * (MOST_IN_VAIN + 2))
    (found,) = explain_layers(replace(recording, calls=recording.calls * 2))
    assert [names for names, _ in found.found] == [(f"blocks.{index}",) for index in range(MOST_IN_VAIN)]
    assert len(searches) == 2 * MOST_IN_VAIN
    left = [f"blocks.{MOST_IN_VAIN + index}" for index in (0, 1)]
    assert list(found.beyond.items()) == [(name, f"{name}#*") for name in left]


def test_of_right_layers_all_calls_are_told_together():
    ((names, diagnosis),) = explain_layers(layers_with("", ""))[0].found
    assert names == diagnosis.passing == ("blocks.0", "blocks.1")


def test_a_layer_that_nothing_explains_may_be_causal_if_nobody_said_that_it_is_not(tmp_path, monkeypatch):
    """A causal mask with an error of its own is no reading of a layer, which was then taken not to be causal."""
    monkeypatch.setattr(explained, "_bugs_for", lambda recording: select(("scale-missing", "causal-one-ahead")))
    wrong = recording_of(layer_of(), *select(("causal-one-ahead",)), masks=MASKS[2:], alike=True)
    (call,) = wrong.calls
    call = replace(call, inputs=replace(call.inputs, mask=AttentionMask()))
    said, path = replace(wrong, calls=(call,)), tmp_path / "port.safetensors"
    assert not explain(said)[0].explanations
    replace(said, calls=(replace(call, assumed="causal=False, by_head=False"),)).save(path)
    (found,) = explain_layers(Recording.load(path))
    assert found.otherwise == {"": causal_otherwise}
    ((_, diagnosis),) = found.found
    assert [one.name for one in diagnosis.explanations] == ["causal-one-ahead"]
    printed = " ".join(CliRunner().invoke(main, ["diagnose", str(path)]).output.split())
    assert "Nothing said this of the layer: causal=True, by_head=False. It is taken so:" in printed
    assert "A causal query sees one place ahead" in printed


def test_weights_that_no_bug_exchanges_are_the_cause_of_a_layer_that_is_right_by_them(tmp_path):
    original = layer_of()
    held = {**original.weights, "v_proj.bias": original.weights["k_proj.bias"]}
    recording_of(replace(original, weights=held), masks=MASKS[:1]).save(tmp_path / "port.safetensors")
    recording_of(original, masks=MASKS[:1]).save(tmp_path / "original.safetensors")
    command = ["diagnose", str(tmp_path / "port.safetensors"), "--weights"]
    result = CliRunner().invoke(main, [*command, str(tmp_path / "original.safetensors")])
    assert result.exit_code == 1
    assert "v_proj.bias holds the original's k_proj.bias" in " ".join(result.output.split())
    assert "It is right by the weights that it holds, so that these are the cause" in result.output
    assert NO_CAUSE not in result.output
    result = CliRunner().invoke(main, [*command, str(tmp_path / "none.pt")])
    assert (result.exit_code, result.output.strip()) == (2, f"Error: no such file: {tmp_path / 'none.pt'}")


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_what_is_held_rules_out_that_the_code_is_wrong(bias, tmp_path):
    """Scores that are transposed give what exchanged weights give; the weights that are held say that it is these."""
    original = layer_of()
    right = {name: array * (bias if name.endswith(".bias") else 1.0) for name, array in original.weights.items()}
    other = {"q_proj.weight": right["k_proj.weight"], "k_proj.weight": right["q_proj.weight"]}
    path = tmp_path / "source.safetensors"
    save_weights(path, CONFIG, right)
    call = {"masks": (AttentionMask(),), "alike": True}
    held = recording_of(replace(original, weights={**right, **other}), **call)
    found = explain_layers(intended(held, path)[0])
    ((_, diagnosis),) = of_weights_alone(found, held)[0].found
    assert [one.name for one in diagnosis.explanations] == ["q-k-weights-exchanged"]
    assert bias or "scores-transposed" in [one.name for one in found[0].found[0][1].explanations]
    wrong = recording_of(replace(original, weights=right), *select(("q-k-weights-exchanged",)), **call)
    found = explain_layers(intended(wrong, path)[0])  # it holds the right weights, so it may be the code
    assert of_weights_alone(found, wrong) == found


def two_layers(names, seeds=(0, 1)):
    layers = [layer_of(name=name, seed=seed) for name, seed in zip(names, seeds, strict=True)]
    return together(*(recording_of(layer, masks=MASKS[:1]) for layer in layers))


def test_layers_of_the_original_are_taken_by_name_or_in_order(tmp_path):
    path = tmp_path / "original.safetensors"
    two_layers(("a", "b")).save(path)
    _, lines = intended(two_layers(("b", "a"), seeds=(1, 0)), path)
    assert lines == [f"b, a hold the weights of {path}."]
    _, lines = intended(two_layers(("layer_0", "layer_1")), path)
    assert lines == [f"layer_0, layer_1 hold the weights of {path}."]
    _, lines = intended(two_layers(("a", "b"), seeds=(0, 2)), path)
    assert lines == [
        f"a holds the weights of {path}.",
        f"b holds other weights than {path}: {', '.join(layer_of().weights)} (all of its matrices: is it a file of "
        "this model, in this state of training?).",
    ]
    with pytest.raises(SpecError, match="must have the layers that were recorded, or as many. It has 'a', 'b'"):
        intended(recording_of(layer_of()), path)
    path.unlink()
    port = recording_of(replace(layer_of(), weights=wrongly_ported(layer_of())))
    replace(port, layers=(layer_of(),)).save(path)
    with pytest.raises(SpecError, match="holds outputs that are not those of its weights"):
        intended(recording_of(layer_of()), path)
    save_weights(path, CONFIG, layer_of().weights)
    with pytest.raises(SpecError, match="as many. It has ''; recorded were 'a', 'b'"):
        intended(two_layers(("a", "b")), path)


def test_a_canonical_file_of_several_layers_is_taken_by_name(tmp_path):
    """As `mha convert --all --to canonical` writes it."""
    path, layers = tmp_path / "canonical.safetensors", two_layers("ab").layers
    with create(path, layout="canonical", configs={one.name: one.config for one in layers}, metadata={}) as add:
        for one in layers:
            for name, array in one.weights.items():
                add(f"{one.name}.{name}", array)
    _, lines = intended(two_layers(("b", "a"), seeds=(1, 0)), path)
    assert lines == [f"b, a hold the weights of {path}."]
    with pytest.raises(SpecError, match=r"It has 'a', 'b'; recorded were ''. `mha convert \S+ --moved --prefix NAME"):
        intended(recording_of(layer_of()), path)
    save_file(layer_of().weights, path)  # arrays alone: the number of heads is that of the recorded layer
    assert intended(recording_of(layer_of()), path)[1] == [f"The layer holds the weights of {path}."]
    save_file({"q_proj.weight": np.ones((3, 5), np.float32)}, path)
    with pytest.raises(SpecError, match=r"no layer of a layout that is known.*give a recording of the original$"):
        intended(recording_of(layer_of()), path)
    save_file({name: np.zeros((5, 3), np.float32) for name in layer_of().weights if name.endswith("weight")}, path)
    with pytest.raises(SpecError, match=r"that were recorded \(.* must have .*\): .*, or what `mha convert"):
        intended(recording_of(layer_of()), path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(SpecError, match="is not a whole safetensors file: it is cut off") as raised:
        intended(recording_of(layer_of()), path)
    assert "mha convert" not in str(raised.value)


@pytest.mark.parametrize(("layout", "other"), [("nanogpt", "gpt-bigcode"), ("gpt-bigcode", "nanogpt")])
def test_of_packings_that_names_leave_open_the_one_whose_weights_are_held_is_taken(layout, other, tmp_path):
    """A right layer of nanoGPT was said to read GPT-BigCode's weights wrongly."""
    path = tmp_path / "c_attn.safetensors"
    save_file(get(layout).write(CONFIG, layer_of().weights), path)
    _, lines = intended(recording_of(layer_of()), path)
    assert lines[0] == f"The layer holds the weights of {path}."
    assert lines[1].startswith(f"Names do not tell which layout {path} has, {layout} or {other}: taken is {layout}, ")
    assert f"If the original has {other}: `mha convert {path} --from {other} --all --moved --num-heads" in lines[1]
    with pytest.raises(SpecError, match="gpt-bigcode or nanogpt, and the recorded layers hold neither more than"):
        intended(recording_of(layer_of(seed=1)), path)


def _diagnosed(port, original, *more):
    result = CliRunner().invoke(main, ["diagnose", str(port), "--weights", str(original), "--no-unseen", *more])
    return result.exit_code, " ".join(result.output.split())


def test_a_port_with_another_number_of_heads_is_not_right_by_weights_that_do_not_say_it(tmp_path, monkeypatch):
    """It has the same weights: a port with 4 heads of an original with 6 was said to be right."""
    monkeypatch.setattr(explained, "_bugs_for", lambda recording: select(("scale-missing",)))
    original, other = (layer_of(config=AttentionConfig(12, heads, bias=True)) for heads in (6, 4))
    port, bare, canonical, calls = (tmp_path / f"{name}.safetensors" for name in ("port", "bare", "canonical", "calls"))
    recording_of(other, masks=MASKS[:1]).save(port)
    recording_of(original, masks=MASKS[:1]).save(calls)
    save_file(original.weights, bare)
    save_weights(canonical, original.config, original.weights)
    status, said = _diagnosed(port, bare)
    assert (status, "nothing to explain" in said) == (2, False), said
    assert (
        f"Not proved: num_heads=4 is the recording's own: nothing in {bare} confirms it (1, 2, 3, 6, 12 would fit as "
        "well). Say --num-heads, or give a recording of the original."
    ) in said
    assert _diagnosed(port, bare, "--num-heads", "4")[0] == 0
    settings = {bare: ("the original", ["--num-heads", "6"]), canonical: (canonical, []), calls: (calls, [])}
    for path, (has, more) in settings.items():
        status, said = _diagnosed(port, path, *more)
        assert (status, "not proved" in said.lower()) == (1, False)
        assert f"by the settings that it has, so that these are the cause: num_heads is 4; {has} has 6. r" in said, said
        assert said.count("num_heads is 4") == 1 + (path == calls)
        assert "head_dim" not in said
        assert "scale" not in said, "it follows from the number of heads"
    said = f"Error: num_heads must be 6, as {canonical} says. Got 4."
    assert _diagnosed(port, canonical, "--num-heads", "4") == (2, said)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"num_attention_heads": 6}')
    beside = bare.rename(tmp_path / "model" / "model.safetensors")
    assert f"num_heads is 4; {beside} has 6" in _diagnosed(port, beside)[1]


def test_weights_and_settings_that_both_differ_are_both_said(tmp_path, monkeypatch):
    monkeypatch.setattr(explained, "_bugs_for", lambda recording: select(("scale-missing",)))
    original, other = (layer_of(config=AttentionConfig(12, heads, bias=True)) for heads in (6, 4))
    held = {**other.weights, "v_proj.bias": other.weights["v_proj.bias"] + 1.0}
    recording = recording_of(replace(other, weights=held), masks=MASKS[:1])
    per_head = reference.run(other.config, held, recording.calls[0].inputs).weights.astype(np.float32)
    call = replace(recording.calls[0], outputs={**recording.calls[0].outputs, "weights": per_head})
    replace(recording, calls=(call,)).save(tmp_path / "port.safetensors")  # weights of 4 heads have another shape
    save_weights(tmp_path / "original.safetensors", original.config, original.weights)
    status, said = _diagnosed(tmp_path / "port.safetensors", tmp_path / "original.safetensors")
    assert status == 1
    assert "by the weights and settings that it has, so that these are the cause: num_heads is 4; " in said, said
