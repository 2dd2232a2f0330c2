"""`mha infer`: exit statuses, what it writes, and what it and `mha.infer` refuse."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from mha.cli.porter.infer import infer as command
from mha.infer import Observed, infer, to_dict
from mha_core import SpecError, load_weights
from tests.mha.infer.recorded_layers import CONFIG, call, drawn, scrambled


@pytest.fixture
def files(tmp_path):
    weights = drawn(CONFIG)
    save_file(scrambled(weights), tmp_path / "arrays.safetensors")
    np.savez(tmp_path / "record.npz", **call(CONFIG, weights))
    return tmp_path


def run(files, *arguments):
    return CliRunner().invoke(
        command, [str(files / "arrays.safetensors"), "--recorded", str(files / "record.npz"), *arguments]
    )


def test_the_command_writes_canonical_weights(files):
    out, report = files / "out.safetensors", files / "report.json"
    result = run(files, "--num-heads", "3", "--out", str(out), "--json", str(report))
    assert result.exit_code == 0, result.output
    assert "One mapping fits the recorded output" in result.output
    config, weights = load_weights(out)
    assert config.num_heads == 3
    np.testing.assert_array_equal(weights["v_proj.weight"], drawn(CONFIG)["v_proj.weight"])
    assert json.loads(report.read_text())["verdict"] == "unique"
    again = run(files, "--out", str(out))
    assert again.exit_code == 2
    assert "is there already" in again.output


def test_the_command_writes_nothing_if_nothing_fits(files):
    np.savez(files / "record.npz", **call(CONFIG, drawn(CONFIG, seed=9)))
    result = run(files, "--num-heads", "3", "--out", str(files / "out.safetensors"))
    assert result.exit_code == 1, result.output
    assert not (files / "out.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("arrays.safetensors", "is not a whole"), ("record.npz", "is not a whole npz file")],
)
def test_the_command_refuses_a_truncated_file(files, name, message):
    whole = (files / name).read_bytes()
    (files / name).write_bytes(whole[: len(whole) // 2])
    result = run(files)
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_the_command_refuses_python_objects_and_absent_files(files):
    np.savez(files / "record.npz", queries=np.array([{}], dtype=object), allow_pickle=True)
    assert run(files).exit_code == 2
    (files / "record.npz").unlink()
    result = run(files)
    assert result.exit_code == 2
    assert "there is no file" in result.output


def test_a_result_is_json(files):
    weights = drawn(CONFIG)
    found = to_dict(infer(scrambled(weights), call(CONFIG, weights), num_heads=3))
    assert json.loads(json.dumps(found))["fits"][0]["num_heads"] == 3


# Bad input ----------------------------------------------------------------------------------------

X = np.ones((2, 5, 12))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"queries": X}, "a record needs 'output'"),
        ({"queries": X, "output": X, "mask": X}, "a record has no array 'mask' (it may have: queries, keys"),
        ({"queries": X, "output": X[:, :3]}, "output must have shape (B, Lq, Do) with (B, Lq)=(2, 5), as queries."),
        ({"queries": X, "output": X * np.nan}, "output must have a row of finite numbers. Got none."),
        ({"queries": X, "output": X, "keys": X[:1]}, "keys must have the batch size of queries."),
        ({"queries": X, "output": X.astype(int)}, "output must be floating-point"),
        ({"queries": X, "output": X, "valid_lens": np.array([6, 1])}, "valid_lens must lie in 0..5"),
    ],
)
def test_a_record_that_is_none(record, message):
    with pytest.raises(SpecError) as caught:
        Observed.of(record)
    assert message in str(caught.value)


def test_arrays_that_can_be_no_layer():
    record = {"queries": X, "output": X}
    with pytest.raises(SpecError, match="no array has an axis as wide as an input or the output of the record"):
        infer({"a": np.ones((3, 4))}, record)
    with pytest.raises(SpecError, match="no arrays have shapes of queries, keys, values and output together"):
        infer({"a": np.ones((12, 5))}, record)
    with pytest.raises(SpecError, match="a record needs a query with a key that it may attend to."):
        infer(dict(drawn(CONFIG)), {**record, "valid_lens": np.array([0, 0])})
    with pytest.raises(SpecError, match="with num_heads=5"):
        infer(dict(drawn(CONFIG)), record, num_heads=5)
