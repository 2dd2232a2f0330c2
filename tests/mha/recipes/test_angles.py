"""The base by which a decoder turns: its recipe's config carries it, and a wrong one in a port is named."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from click.testing import CliRunner  # noqa: E402

import mha  # noqa: E402
from mha.cli.main import main  # noqa: E402
from mha.recipes import attention_layers  # noqa: E402
from mha_core import Rotary, RotaryInputs, save_weights  # noqa: E402
from mha_core.call.rotary import tables_of_call  # noqa: E402
from mha_core.parts.rotary import positions_in  # noqa: E402
from tests.mha.recipes.test_decoders import FAMILIES, calls_of, model_of  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there

AXES = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text")
BACKWARDS = ("nanochat",)
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.nightly("each family is read as it computes", every=4)
@pytest.mark.parametrize("model_type", [name for name in FAMILIES if name not in (*AXES, *BACKWARDS)])
def test_a_model_turns_as_the_config_of_its_recipe_says(model_type):
    model = model_of(model_type)
    turning = [site for site in attention_layers(model, probe=False) if site.config.rotary is not None]
    for site in turning[:1]:
        first, decoded = calls_of(model, [site])[site.name]
        for call, offset in ((first, 0), (decoded, 7)):
            made = call.inputs.rotary.tables().queries
            found = positions_in(made, site.config.rotary, call.sizes.key_len)
            assert found is not None, site.config.rotary
            assert (found == np.arange(offset, offset + found.shape[1])).all()
            wrong = replace(site.config.rotary, base=site.config.rotary.base * 3)
            assert site.config.rotary.width == 2 or positions_in(made, wrong, call.sizes.key_len) is None


def test_configs_carry_base_and_rule():
    def of(name, number=0):
        return attention_layers(model_of(name), probe=False)[number].config.rotary

    assert of("llama") == Rotary(6, base=50.0, rule={"rope_type": "linear", "factor": 3.0})
    assert of("llama:3") == Rotary(6, base=50.0, rule={"rope_type": "llama3", **LLAMA3})
    assert of("mixtral").base == 1e6
    assert of("gemma3_text").base == 1e4  # of its layers with a window
    assert of("phi3:long").rule.rope_type == "longrope"
    assert of("gptj") == Rotary(4, interleaved=True)
    assert [of(name) for name in (*AXES[:1], *BACKWARDS)] == [Rotary(8), Rotary(8)]  # by angles of their own


@pytest.fixture(scope="module")
def ported(tmp_path_factory):
    """A layer of base 500000, and recordings: of the original, and of a port that turns by 10000."""
    folder = tmp_path_factory.mktemp("bases")
    ids = torch.tensor([[5, 9, 3, 17, 4, 11]])
    for name, base in (("original", 5e5), ("port", 1e4)):
        model = model_of("mistral")
        model.config.rope_parameters["rope_theta"] = base
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
        (site,) = attention_layers(model)
        save_weights(folder / f"{name}.weights.safetensors", site.config, site.weights)
        with torch.no_grad(), mha.capture(model, folder / f"{name}.safetensors"):
            model(ids)
    return folder


def asked(*arguments):
    ended = CliRunner().invoke(main, list(map(str, arguments)))
    return ended.exit_code, " ".join(ended.output.split())


def test_where_names_a_wrong_base_of_two_recordings(ported):
    status, said = asked("where", ported / "original.safetensors", ported / "port.safetensors")
    assert status == 1
    assert "by base 10000 and no rule, the original's by base 500000 and no rule" in said


def test_diagnose_names_a_wrong_base_by_the_original_s_weights(ported):
    status, said = asked("diagnose", ported / "port.safetensors", "--weights", ported / "original.weights.safetensors")
    assert status == 1, said
    assert "turns by base 10000 and no rule;" in said
    assert "says base 500000 and no rule." in said
    assert "The base is 10000 whatever the config says." in said
    status, said = asked("diagnose", ported / "port.safetensors", "--weights", ported / "port.weights.safetensors")
    assert status == 0, said
    assert "turns by" not in said
    status, said = asked("diagnose", ported / "port.safetensors", "--weights", ported / "original.safetensors")
    assert status == 1
    assert "by base 10000 and no rule, the original's by base 500000" in said


def test_angles_that_no_setting_gives_are_no_pass(ported, tmp_path):
    recording = mha.Recording.load(ported / "port.safetensors")
    (call,), (layer,) = recording.calls, recording.layers
    config = replace(layer.config, rotary=Rotary(8, base=700.0, rule={"rope_type": "linear", "factor": 3.0}))
    half = np.float32(0.5) * tables_of_call(config.rotary, call.inputs.rotary, 0, None).queries.cos
    other = replace(call, inputs=replace(call.inputs, rotary=RotaryInputs(cos=half, sin=call.inputs.rotary.sin)))
    replace(recording, calls=(other,)).save(tmp_path / "port.safetensors")
    save_weights(tmp_path / "weights.safetensors", config, layer.weights)
    status, said = asked("diagnose", tmp_path / "port.safetensors", "--weights", tmp_path / "weights.safetensors")
    assert status == 2
    assert "turns by angles that base 700 and rule 'linear' of" in said
