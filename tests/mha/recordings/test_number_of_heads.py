"""Weights that do not say how many heads their layer has, and settings that differ from the original's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from conformance.zoo.registry import select
from mha.cli.main import main
from mha.recordings import explain as explained
from mha_core import AttentionConfig, save_weights
from mha_core.reference import pipeline as reference
from tests.mha.recordings.wrong_ports import MASKS, layer_of, recording_of

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


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
