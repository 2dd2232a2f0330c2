"""Recording: what goes into the file comes out of it to the bit, and what is no whole recording is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mha import Recording
from mha.recordings.array_pool import ArrayPool
from mha.recordings.recording import METADATA_KEY, RecordedCall, check_target
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError, init_weights, save_weights
from mha_core.reference import pipeline as reference
from tests.mha.recordings import wrong_ports
from tests.mha.recordings.wrong_ports import recording_of, together

B, LQ, LK = 2, 3, 5
CONFIG = AttentionConfig(
    12, 4, num_kv_heads=2, query_dim=7, key_dim=9, value_dim=11, output_dim=13, bias={"q_proj": True}, dropout=0.25
)


def layer_of(dtype="float64", name="encoder.attention", config=CONFIG, seed=0):
    return wrong_ports.layer_of(dtype, name, seed, config)


def one(dtype="float64", mask=None, seed=0, **more):
    return recording_of(layer_of(dtype, seed=seed), masks=(mask or AttentionMask(),), **more)


def saved(recording, folder):
    path = folder / "calls.safetensors"
    recording.save(path)
    return path


def rng_mask(*shape):
    return np.random.default_rng(3).random(shape) < 0.7


MASKS = {
    "none": AttentionMask(),
    "lens": AttentionMask(valid_lens=np.array([4, 2])),
    "lens per query": AttentionMask(valid_lens=np.array([[4, 2, 1], [5, 0, 3]], dtype=np.int32)),
    "allowed": AttentionMask(allowed=rng_mask(B, 1, LQ, LK)),
    "bias": AttentionMask(bias=np.random.default_rng(4).normal(size=(4, LQ, LK))),
    "causal": AttentionMask(causal=True, query_offset=2),
    "offsets": AttentionMask(causal=True, query_offset=np.array([0, 2])),
    "window": AttentionMask(window=(1, None)),
    "all": AttentionMask(
        np.array([5, 3]), rng_mask(LQ, LK), np.full((1, 1, 1, LK), 0.5), True, np.array([1, 2]), (2, 0)
    ),
}


def same(left, right):
    """To the bit, with shapes and dtypes."""
    if not hasattr(left, "dtype"):
        return left == right
    left, right = np.asarray(left), np.asarray(right)
    return (left.shape, left.dtype, left.tobytes()) == (right.shape, right.dtype, right.tobytes())


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mask", MASKS)
def test_everything_comes_back_to_the_bit(mask, dtype, tmp_path):
    keep = rng_mask(B, 4, LQ, LK)
    recording = one(dtype, mask=MASKS[mask], dropout_keep=keep)
    loaded = Recording.load(saved(recording, tmp_path))
    assert (loaded.versions, loaded.names) == ({"mine": "1.0"}, ("encoder.attention",))
    (was,), (layer,) = recording.layers, loaded.layers
    assert (layer.name, layer.kind, layer.dtype, layer.config) == (was.name, was.kind, dtype, CONFIG)
    assert list(layer.weights) == list(was.weights)
    assert all(same(layer.weights[name], was.weights[name]) for name in was.weights)
    (was,), (call,) = recording.calls, loaded.calls
    for name, value in {**vars(was.inputs), **vars(was.inputs.mask), **was.outputs}.items():
        if name != "mask":
            found = {**vars(call.inputs), **vars(call.inputs.mask), **call.outputs}[name]
            assert same(found, value), name


def test_a_cache_comes_back(tmp_path):
    past = {name: np.random.default_rng(5).normal(size=(B, 2, 6, 3)) for name in ("past_keys", "past_values")}
    loaded = Recording.load(saved(one(mask=AttentionMask(causal=True, query_offset=6), **past), tmp_path))
    assert same(loaded.calls[0].inputs.past_keys, past["past_keys"])
    assert loaded.cases()[0].key_len == 6 + LK


def test_equal_arrays_are_stored_once(tmp_path):
    config = AttentionConfig(6, 2)
    layer = layer_of(config=config)
    x = np.random.default_rng(0).normal(size=(B, LQ, 6))
    calls = []
    for _ in range(3):
        output = reference.run(config, layer.weights, AttentionInputs(x, x, x)).output
        calls.append(RecordedCall(0, AttentionInputs(x, x, x), {"output": output}))
        x = output
    path = saved(Recording((layer,), tuple(calls)), tmp_path)
    assert len(load_file(path)) == 4 + 1 + 3  # weights, the first input, outputs
    loaded = Recording.load(path)
    assert same(loaded.calls[2].inputs.values, calls[1].outputs["output"])


def test_arrays_of_the_same_bytes_are_not_equal_for_that():
    pool = ArrayPool()
    arrays = np.zeros((2, 3)), np.zeros((3, 2)), np.zeros(6), np.zeros(12, np.float32), np.zeros((2, 3))
    names = [pool.add(f"x{position}", array, "float64")["array"] for position, array in enumerate(arrays)]
    assert names == ["x0", "x1", "x2", "x3", "x0"]


def test_bfloat16_takes_half_the_room_of_float32(tmp_path):
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        arrays = load_file(saved(one(dtype), tmp_path))
        sizes[dtype] = sum(array.nbytes for array in arrays.values())
        (tmp_path / "calls.safetensors").unlink()
    assert sizes["bfloat16"] * 2 == sizes["float32"]


def test_numbers_that_are_not_bfloat16_are_refused():
    recording = one("float32")
    for parameters in (None, "float32"):
        layers = (replace(recording.layers[0], dtype="bfloat16", parameters=parameters),)
        with pytest.raises(SpecError, match="must hold numbers of bfloat16"):
            replace(recording, layers=layers)


def test_calls_are_named_after_their_layers():
    recording = together(*(recording_of(layer_of(name=name), masks=(AttentionMask(),)) for name in ("a", "b", "")))
    first, second, third = recording.calls
    assert replace(recording, calls=(first, second, first, third)).names == ("a#1", "b", "a#2", "layer")


def test_a_recording_is_written_where_it_may_be(tmp_path):
    path = saved(one(), tmp_path)
    before = path.read_bytes()
    with pytest.raises(SpecError, match="is already there; overwrite=True replaces it"):
        one(seed=9).save(path)
    assert path.read_bytes() == before
    one(seed=9).save(path, overwrite=True)
    assert path.read_bytes() != before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    with pytest.raises(SpecError, match="a recording needs an existing folder. There is no"):
        one().save(tmp_path / "absent" / "calls.safetensors")
    for name in ("calls.npz", "calls.pt"):
        with pytest.raises(SpecError, match=r"a recording is a \.safetensors file\. Got .*: write calls\.safetensors"):
            check_target(tmp_path / name, overwrite=True)


def test_weights_that_were_meant(tmp_path):
    recording = one("float32")
    meant = init_weights(CONFIG, seed=7, bias_scale=1.0)
    changed = recording.with_weights({"encoder.attention": (CONFIG, meant)})
    assert same(changed.layers[0].weights["k_proj.weight"], meant["k_proj.weight"].astype(np.float32))
    assert changed.calls == recording.calls
    with pytest.raises(SpecError, match="no layer is named 'decoder'"):
        recording.with_weights({"decoder": (CONFIG, meant)})


def edited(path, change):
    """The file with its description changed."""
    arrays = load_file(path)
    with safe_open(path, framework="numpy") as file:
        description = json.loads(file.metadata()[METADATA_KEY])
    change(description, arrays)
    save_file(arrays, path, metadata={METADATA_KEY: json.dumps(description)})
    return path


OUTPUT = "calls.0.output"
BROKEN = {
    "newer": (lambda d, a: d.update(format=2), "it has format 2, and this version reads up to 1"),
    "no format": (lambda d, a: d.pop("format"), "it lacks 'format'"),
    "odd format": (lambda d, a: d.update(format="1"), "its format must be a positive integer. Got '1'"),
    "no calls": (lambda d, a: d.update(calls=[]), "needs at least one call"),
    "no layers": (lambda d, a: d.update(layers=[]), "one of 0 layers"),
    "other layer": (lambda d, a: d["calls"][0].update(layer=-1), "one of 1 layers by position. Got -1"),
    "no output": (lambda d, a: d["calls"][0].update(outputs={}), "has no output"),
    "no array": (lambda d, a: a.pop("calls.0.keys"), "it lacks 'calls.0.keys'"),
    "no queries": (lambda d, a: d["calls"][0]["inputs"].pop("queries"), "queries"),
    "unknown mask": (lambda d, a: d["calls"][0]["mask"].update(alibi=True), "AttentionMask has no field 'alibi'"),
    "unknown config": (lambda d, a: d["layers"][0]["config"].update(rope=1), "config has no field 'rope'"),
    "unknown dtype": (lambda d, a: d["layers"][0].update(dtype="int4"), "dtype 'int4' is not known"),
    "missing weight": (lambda d, a: d["layers"][0]["weights"].pop("q_proj.bias"), "weights lack 'q_proj.bias'"),
    "other shape": (lambda d, a: a.update({OUTPUT: np.zeros((B, LQ, 12))}), "output must have shape (2, 3, 13)"),
    "other dtype": (
        lambda d, a: a.update({OUTPUT: np.zeros((B, LQ, 13), np.float32)}),
        "output of a layer in float64 must be float64. Got float32",
    ),
    "unknown stage": (
        lambda d, a: d["calls"][0]["outputs"].update(present={"array": "calls.0.keys"}),
        "has an output 'present', which is not known",
    ),
    "no object": (lambda d, a: d.update(layers=3), "a recording that can't be used"),
    "list for inputs": (lambda d, a: d["calls"][0].update(inputs=[]), "can't be used"),
    "list for a layer": (lambda d, a: d.update(layers=[[]]), "can't be used"),
    "half an offset": (lambda d, a: d["calls"][0]["mask"].update(query_offset=1.7), "query_offset must be an"),
    "1 for causal": (lambda d, a: d["calls"][0]["mask"].update(causal=1), "causal must be True or False"),
    "False for layer 0": (lambda d, a: d["calls"][0].update(layer=False), "one of 1 layers by position. Got False"),
    "True for format 1": (lambda d, a: d.update(format=True), "its format must be a positive integer. Got True"),
    "escape": (lambda d, a: d["layers"][0].update(name="a\x1b[2J"), "must be a printable text"),
    "long kind": (lambda d, a: d["layers"][0].update(kind="x" * 5000), "a printable text of at most 1000 characters"),
    "odd version": (lambda d, a: d["versions"].update(mine=1), "a version must be a printable text"),
    "huge": (lambda d, a: d["layers"][0]["config"].update(scale=10**400), "beyond the range of integers"),
    "float8": (lambda d, a: d["calls"][0]["outputs"]["output"].update({"as": "float8"}), "by its name, and as"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_contradicts_itself_is_refused(name, tmp_path):
    change, message = BROKEN[name]
    path = edited(saved(one(mask=MASKS["causal"]), tmp_path), change)
    with pytest.raises(SpecError) as caught:
        Recording.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_weights(path, CONFIG, init_weights(CONFIG, seed=0))
    said = r"weights.safetensors is no recording: weights are read by `mha convert \S+ --list`; a recording is written"
    with pytest.raises(SpecError, match=said):
        Recording.load(path)
    with pytest.raises(FileNotFoundError, match=r"no such file: \S+; did you mean weights.safetensors"):
        Recording.load(tmp_path / "weight.safetensors")
    (tmp_path / "mine.py").write_text("def attention(weights): ...")
    with pytest.raises(FileNotFoundError, match=r"no such file: \S+; a recording is written in Python"):
        Recording.load(tmp_path / "mines.safetensors")
    with pytest.raises(SpecError, match=r"mine.py is no recording: it is Python code: `mha check --subject \S+"):
        Recording.load(tmp_path / "mine.py")
    save_file({"x": np.zeros(1)}, path, metadata={METADATA_KEY: "{"})
    with pytest.raises(SpecError, match="can't be used"):
        Recording.load(path)
