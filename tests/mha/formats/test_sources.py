"""What `mha convert` takes as source, with --infer or without: shards and folders, by one rule, or a clear refusal."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from mha.formats import open_checkpoint
from mha.formats.survey import survey_file
from mha.infer import source_arrays
from mha_core import SpecError
from tests.mha.convert.weight_files import (
    PREFIXES,
    arrays_of,
    assert_holds,
    mha,
    move,
    two_layers,
    verify_in_numpy,
    write,
)

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture(autouse=True)
def without_frameworks(monkeypatch):
    verify_in_numpy(monkeypatch)


def sharded(folder, layout="torch", suffix=".safetensors", stem="model"):
    """Two layers in two shards, one of them cut in the middle; gives the index."""
    arrays = two_layers(layout)
    names = list(arrays)
    where = {name: f"{stem}-0000{1 + (number > len(names) // 2)}-of-00002{suffix}" for number, name in enumerate(names)}
    for shard in dict.fromkeys(where.values()):
        write(folder / shard, {name: arrays[name] for name in names if where[name] == shard}, layout)
    index = folder / f"{stem}{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 7}, "weight_map": where}))
    return index


@pytest.mark.parametrize("by_folder", [True, False])
@pytest.mark.parametrize(("stem", "suffix"), [("model", ".safetensors"), ("pytorch_model", ".bin")])
def test_a_model_in_shards_is_one_source(stem, suffix, by_folder, tmp_path):
    if suffix == ".bin":
        pytest.importorskip("torch")
    index = sharded(tmp_path, suffix=suffix, stem=stem)
    source = tmp_path if by_folder else index
    assert [layer.prefix for layer in survey_file(source).layers] == list(PREFIXES)
    assert survey_file(source).line() == "read 2 of 2 modules that look like attention"
    done = move(source, to_layout="bert", out=tmp_path / "out.npz", num_heads=3, every=True)
    assert [layer.prefix for layer in done.layers] == list(PREFIXES)
    assert_holds(tmp_path / "out.npz", two_layers("bert"))
    found = source_arrays(source)
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in two_layers("torch").items()
    }


def test_arrays_of_shards_are_read_when_they_are_asked_for(tmp_path):
    index = sharded(tmp_path)
    with open_checkpoint(index) as checkpoint:
        assert len(checkpoint.entries) == len(two_layers("torch"))
        last = list(checkpoint.entries)[-1]
        (tmp_path / SECOND).unlink()
        checkpoint.array(next(iter(checkpoint.entries)))
        with pytest.raises(SpecError, match="can't be read"):
            checkpoint.array(last)


def test_one_shard_alone_names_the_layer_at_its_end(tmp_path):
    sharded(tmp_path)
    with pytest.raises(SpecError, match=r"' lacks .* one of several shards: name their folder or their index"):
        move(tmp_path / FIRST, to_layout="bert", out=tmp_path / "out.npz", num_heads=3, every=True)
    result = mha(tmp_path / FIRST, "--list")
    assert (result.exit_code, "incomplete" in result.output) == (0, True)


def change(index, **changes):
    """Rewrite some of the index: name of an array -> its shard; None takes it out."""
    content = json.loads(index.read_text())
    content["weight_map"] |= changes
    content["weight_map"] = {name: shard for name, shard in content["weight_map"].items() if shard is not None}
    index.write_text(json.dumps(content))


def test_a_lost_shard_and_a_lost_array_are_named(tmp_path):
    index = sharded(tmp_path)
    change(index, **{"encoder.9.query.weight": FIRST})
    for source in (index, tmp_path):
        with pytest.raises(SpecError) as caught:
            survey_file(source)
        assert f"the shard {FIRST} does not hold 1 arrays: encoder.9.query.weight, which" in str(caught.value)
    (tmp_path / SECOND).unlink()
    result = mha(tmp_path, "--list")
    assert result.exit_code == 2
    last = list(two_layers("torch"))[-1]
    assert f"the shard {SECOND} is not there; it holds" in result.output
    assert last in result.output
    assert len(result.output.splitlines()) == 1


def test_an_array_in_two_shards_is_refused_and_one_that_the_index_leaves_out_is_not(tmp_path):
    index = sharded(tmp_path)
    name = next(iter(two_layers("torch")))
    change(index, **{name: None})
    assert len(survey_file(index).layers) == 2
    with open_checkpoint(tmp_path / SECOND) as checkpoint:
        arrays = {other: checkpoint.array(other) for other in checkpoint.entries}
    save_file({**arrays, name: np.ones((3, 5), "float32")}, tmp_path / SECOND)
    with pytest.raises(SpecError, match=f"'{name}' is in two shards, {FIRST} and {SECOND}"):
        survey_file(index)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object. Got [1]."),
        ("{}", '"weight_map" must say which array is in which file'),
        ('{"weight_map": []}', '"weight_map" must say which array is in which file'),
        ('{"weight_map": {"a": 3}}', "must name a file *.safetensors beside it for 'a'. Got 3."),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "Got '../secret.safetensors'."),
        ('{"weight_map": {"a": "/etc/passwd"}}', "Got '/etc/passwd'."),
        ('{"weight_map": {"a": "model.safetensors.index.json"}}', "Got 'model.safetensors.index.json'."),
        ('{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}', "'a' stands there twice"),
        ('{"weight_map": ' + "[" * 20_000 + "]" * 20_000 + "}", "nested deeper than"),
    ],
)
def test_an_index_that_is_none_is_refused_in_one_line(text, message, tmp_path):
    (tmp_path / INDEX).write_text(text)
    result = mha(tmp_path / INDEX, "--list")
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output
    assert message in result.output


def test_an_index_can_not_be_written_and_not_name_itself(tmp_path):
    save_file(arrays_of("torch"), tmp_path / "a.safetensors")
    with pytest.raises(SpecError, match="an index names the shards of a model; write one file"):
        move(tmp_path / "a.safetensors", to_layout="bert", out=tmp_path / INDEX, num_heads=3)
    messages = {"a.index.json.index.json": "must end in .index.json once", "a.index.json": "no such file"}
    for name, message in messages.items():
        (tmp_path / name).write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(SpecError, match=message):
            survey_file(tmp_path / name)


def test_a_folder_gives_the_file_that_transformers_would_take_and_says_what_it_passed_over(tmp_path):
    save_file(arrays_of("torch", prefix="attn"), tmp_path / "model.safetensors")
    for name in ("pytorch_model.bin", "tf_model.h5", "training_args.bin", "config.json", "vocab.txt"):
        (tmp_path / name).write_text("{}")
    result = mha(tmp_path, "--list")
    assert result.exit_code == 0, result.output
    assert "'attn'" in result.output
    said = "files beside it that were not read: pytorch_model.bin"
    assert f"(of model.safetensors; {said}" in result.output
    listed = json.loads(mha(tmp_path, "--list", "--json", "-").output)
    assert "pytorch_model.bin" in listed["passed_over"]


@pytest.mark.parametrize("name", ["adapter.npz", "my.safetensors", "model.weights.h5"])
def test_the_only_file_of_weights_in_a_folder_is_its_source_whatever_it_is_called(name, tmp_path):
    if name.endswith("h5"):
        pytest.importorskip("h5py")
    write(tmp_path / name, arrays_of("keras", prefix="layers/attn"), "keras")
    (tmp_path / "optimizer.pt").write_text("of the training")
    assert [layer.prefix for layer in survey_file(tmp_path).layers] == ["layers/attn"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["model.safetensors", INDEX], f"has both model.safetensors and {INDEX}, the whole and the index of shards"),
        (["a.safetensors", "b.safetensors"], "several files of weights; name the one to read: a.safetensors, b.safet"),
        ([FIRST, SECOND], f"name the one to read: {FIRST}, {SECOND}"),
        (["config.json"], "has no file of weights (looked for: model.safetensors, pytorch_model.bin"),
        ([], "has no file of weights"),
    ],
)
def test_a_folder_that_leaves_a_choice_is_refused(names, message, tmp_path):
    for name in names:
        (tmp_path / name).write_text("")
    result = mha(tmp_path, "--list")
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output
    assert message in result.output
    assert sorted(os.listdir(tmp_path)) == sorted(names)
