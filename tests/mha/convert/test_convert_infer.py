"""`mha convert --infer`: arrays of unknown names, one recorded call, and out comes a file of a known layout."""

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from mha.cli.porter.convert import convert
from mha_core import AttentionConfig, AttentionInputs, init_weights
from mha_core.layouts import get
from mha_core.reference import pipeline as reference

CONFIG = AttentionConfig(24, 4, bias={"q_proj": True, "v_proj": True, "out_proj": True})


@pytest.fixture
def nameless(tmp_path):
    """A packed layer under obscure names, and a call of it."""
    weights = {name: array.astype(np.float32) for name, array in init_weights(CONFIG, 3, bias_scale=1.0).items()}
    arrays = get("torch").write(CONFIG, weights)
    save_file({f"x{index}": array for index, array in enumerate(arrays.values())}, tmp_path / "nameless.safetensors")
    x = np.random.default_rng(0).normal(size=(2, 9, 24)).astype(np.float32)
    output = reference.run(CONFIG, weights, AttentionInputs(x, x, x)).output.astype(np.float32)
    np.savez(tmp_path / "call.npz", queries=x, output=output, causal=False)
    return tmp_path, weights


def run(folder, *options):
    return CliRunner().invoke(convert, [str(folder / "nameless.safetensors"), *options])


def test_the_mapping_is_found_and_written_in_another_layout(nameless):
    folder, weights = nameless
    out = folder / "out.safetensors"
    recorded = ("--infer", "--recorded", str(folder / "call.npz"), "--num-heads", "4")
    outcome = run(folder, *recorded, "--to", "bert", "--out", str(out))
    assert outcome.exit_code == 0, outcome.output
    assert "One mapping fits" in outcome.output
    assert "1 x proved by: 1 recorded call in float32 reproduced" in outcome.output
    found = load_file(out)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(found[f"self.{name}.weight"], weights[f"{name[0]}_proj.weight"])
    np.testing.assert_array_equal(found["output.dense.bias"], weights["out_proj.bias"])
    again = run(folder, *recorded, "--to", "bert", "--out", str(out))
    assert (again.exit_code, "is there already" in again.output) == (2, True)


def test_what_does_not_fit_writes_nothing(nameless):
    folder, _ = nameless
    source, out = folder / "nameless.safetensors", folder / "out.safetensors"
    save_file({name: np.ascontiguousarray(array[::-1] * 1.5) for name, array in load_file(source).items()}, source)
    outcome = run(folder, "--infer", "--recorded", str(folder / "call.npz"), "--num-heads", "4", "--out", str(out))
    assert outcome.exit_code == 1, outcome.output
    assert not out.exists()


def test_calls_that_are_cut_off_hold_objects_or_are_absent_are_refused(nameless):
    folder, _ = nameless
    path = folder / "call.npz"
    whole = path.read_bytes()

    def said():
        outcome = run(folder, "--infer", "--recorded", str(path))
        assert outcome.exit_code == 2, outcome.output
        return outcome.output

    path.write_bytes(whole[: len(whole) // 2])
    assert "is not a whole npz file" in said()
    np.savez(path, queries=np.array([{}], dtype=object), allow_pickle=True)
    assert "pickled" in said()
    path.unlink()
    assert "there is no file" in said()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--infer",), "--infer needs --recorded FILE, a call of the layer"),
        (("--infer", "--recorded", "call.npz", "--from", "bert"), "--infer finds layout"),
        (("--infer", "--recorded", "call.npz", "--json", "-"), "with --infer it needs --out FILE"),
    ],
)
def test_options_that_do_not_go_together(nameless, options, message):
    outcome = run(nameless[0], *options)
    assert (outcome.exit_code, message in outcome.output) == (2, True), outcome.output
