"""Faults planted around attention functions: what is said of them."""

import numpy as np
import pytest
import torch

import mha
from mha.substitution.handed import _differences
from mha_core.seam import Handover
from tests.mha.seam.faults import LLAMA, ROWS, UPDATE, judged
from tests.mha.seam.planting import Steps, inputs_of, line, model_of

pytestmark = pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")  # it says that the port is wrong

CALLED = "past_key_values.update(key_states, value_states, self.layer_idx)"
PREFILL = "key_states, value_states = kept if input_shape[1] == 1 else (key_states, value_states)"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def said_of(tmp_path, kind, family, side, *, left=False, steps=False):
    (row,) = (one for one in ROWS if (one.kind, one.family, one.side) == (kind, family, side) and one.left == left)
    assert row.steps == steps
    found = judged(row, str(tmp_path / "port.safetensors"))
    assert not found.false, found.text
    return found


def test_nan_rows_of_one_layer_accuse_no_later_one(tmp_path):
    found = said_of(tmp_path, "NaN rows", "llama", "in", left=True)
    assert found.modules == ("model.layers.0.self_attn",)
    assert "A row without an allowed key is NaN: the lowest number, which it has at each key" in found.text
    assert "NaN where an earlier layer gave NaN, which is not judged: model.layers.1.self_attn." in found.text


@pytest.mark.parametrize("kind", ["nothing changed", "NaN rows are zeros"])
def test_rows_of_padding_on_the_left_accuse_no_layer(tmp_path, kind):
    found = said_of(tmp_path, kind, "llama", "padding" if "rows" in kind else "port", left=True)
    assert found.modules == ()
    assert "is equal to the reference in all 2 cases" in found.text


def test_keys_that_were_turned_wrongly_accuse_no_layer_that_finds_them_in_its_cache(tmp_path):
    found = said_of(tmp_path, "cache off by one", "qwen3", "before", steps=True)
    assert found.modules == ("model.model.rotary_emb",)


def in_steps(tmp_path, family, plant, target):
    """What `mha.where` says of each module of a decoder in three calls."""
    model, original = model_of(family), model_of(family)
    with plant(model, target), torch.no_grad():
        whole = Steps(model)
        with mha.capture(whole, tmp_path / "port.safetensors", modules=True):
            whole(**inputs_of())
    return {one.name: one for one in mha.where(Steps(original), tmp_path / "port.safetensors").results}


def test_the_call_that_made_a_wrong_key_is_named(tmp_path):
    early = line("position_ids[..., None]", "(position_ids - int(position_ids.shape[1] == 1))[..., None]")
    found = in_steps(tmp_path, "qwen3", early, "model.rotary_emb")
    layer = found["model.model.layers.1.self_attn"]
    assert layer.status == "equal"
    assert layer.reason.startswith("its cache differs, made in call 2: keys[0, 0, 5, 0] is ")


def test_a_layer_that_leaves_other_keys_in_its_cache_is_wrong(tmp_path):
    left = (
        f"past_key_values.update(1.01 * key_states, value_states, self.layer_idx) if input_shape[1] > 1 else {CALLED}"
    )
    found = in_steps(tmp_path, "llama", line(UPDATE, f"kept = {left}; {PREFILL}"), LLAMA)
    assert [name for name, one in found.items() if one.status == "wrong"] == ["model.model.layers.1.self_attn"]
    assert "what it leaves in its cache" in found["model.model.layers.1.self_attn"].place


@pytest.mark.parametrize(
    ("kind", "family", "side", "said"),
    [
        ("scale wrong", "llama", "in", "Its attention function does not follow the definition of what it is handed: "),
        ("rotation of keys forgotten", "gpt_oss", "before", "Queries, values, mask are the original's."),
        ("tiled groups", "gpt_oss", "before", "keys are (2, 4, 7, 6), the original's (2, 2, 7, 6)"),  # without the sink
    ],
)
def test_the_side_of_the_function_is_said_of_layers_with_their_projections_too(tmp_path, kind, family, side, said):
    found = said_of(tmp_path, kind, family, side)
    assert found.side == side
    assert said in found.text


def test_what_differs_behind_the_function_is_on_neither_side(tmp_path):
    found = said_of(tmp_path, "head order changed", "llama", "behind")
    assert found.side == "neither"
    assert "What it hands to its attention function is what the original hands over." in found.text


def test_sinks_that_are_not_handed_over_are_said():
    x = np.ones((1, 2, 3, 4))
    with_sinks, without = (Handover(x, x, x, None, "float64", sinks=one).given() for one in (np.ones(2), None))
    assert list(_differences(without, with_sinks, with_sinks, 2.0**-53)) == [
        ("sinks", "it hands over no sinks, the original some")
    ]


@pytest.mark.nightly("a fault at the seam has a cause", every=2)
@pytest.mark.parametrize(
    ("kind", "family", "cause"),
    [
        ("window one key too wide", "gemma2", "The window reaches one place too far back."),
        ("sinks of another head", "gpt_oss", "Each head has the sink of the head before."),
        ("sinks dropped", "gpt_oss", "The sinks are left out of the softmax's denominator."),
        ("scale wrong", "deepseek_v3", "The scale of the scores is 1 / sqrt("),
        ("bf16 softmax", "llama", "The softmax is given scores in bfloat16, and gives weights in it."),
    ],
)
def test_a_fault_in_the_function_has_a_cause(tmp_path, kind, family, cause):
    found = said_of(tmp_path, kind, family, "in")
    assert found.cause == "planted"
    assert cause in found.text
