"""Capture, attention functions and `mha where` of models of transformers, at the function that they look up."""

import time
import warnings
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from click.testing import CliRunner  # noqa: E402

import mha  # noqa: E402
from conformance.bounds.tolerance import AllowedError  # noqa: E402
from mha.cli.suite.diagnose import diagnose  # noqa: E402
from mha.coverage import UnreadWarning  # noqa: E402
from mha.recordings.replay import judge_recording  # noqa: E402
from mha.seam.function import attention_function  # noqa: E402
from mha_core import SpecError  # noqa: E402
from tests.mha.seam.planting import function, inputs_of, model_of  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there

LAYERS = ("model.layers.0.self_attn", "model.layers.1.self_attn")
BATCH = inputs_of(left=True)


def outputs_of(model, **more):
    with torch.no_grad():
        return model(**BATCH, **more)[0]


def captured(model, path=None, *, padded=True, **asked):
    """The recording, and the warnings."""
    batch = BATCH if padded else {"input_ids": BATCH["input_ids"]}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with torch.no_grad(), mha.capture(model, path, **asked) as seen:
            model(**batch)
    told = [str(one.message) for one in said if issubclass(one.category, UnreadWarning)]
    return None if asked.get("modules") else seen.recording, told


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["gpt_oss", "t5", "vaultgemma", "diffllama"])
def test_calls_are_recorded_and_follow_the_definition(name, implementation):
    if (name, implementation) in (("gpt_oss", "sdpa"), ("vaultgemma", "sdpa")):
        pytest.skip("sdpa has neither sinks nor a softcap")
    model = model_of(name, implementation)
    before = outputs_of(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreadWarning)
        with mha.capture(model, layers=["*"]) as seen:
            after = model(**BATCH)[0]
    assert torch.equal(before, after)
    recording = seen.recording
    assert len(recording.calls) in (2, 4)  # DiffLlama calls twice
    assert {result.status for result in judge_recording(recording)} == {"equal"}


def test_no_bounds_are_computed_of_calls_that_are_right(monkeypatch):
    monkeypatch.setattr(AllowedError, "_look_at", lambda *_, **__: pytest.fail("it computed the bounds"))
    _, told = captured(model_of("gpt_oss"))
    assert "recorded at the attention function" in told[0]


@pytest.mark.nightly("recording at the seam takes at most 1.5 times the model's own run besides it")
def test_recording_costs_little():
    """Of a model with the sizes of SmolLM2, on 64 tokens, in processor time."""
    sizes = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    config = hf.CwmConfig(
        **sizes, num_hidden_layers=30, intermediate_size=1536, vocab_size=49152, tie_word_embeddings=True
    )
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    given = {"input_ids": torch.arange(64)[None] + 9, "use_cache": False}

    def seconds(record):
        start = time.process_time()
        with torch.no_grad(), mha.capture(model) if record else nullcontext():
            model(**given)
        return time.process_time() - start

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [(seconds(False), seconds(True)) for _ in range(4)][1:]
    plain, recorded = (min(column) for column in zip(*found, strict=True))
    assert recorded <= 2.5 * plain


def test_what_is_not_recorded_is_said():
    recording, (told,) = captured(model_of("gpt_oss"))
    assert [layer.name for layer in recording.layers] == list(LAYERS)
    assert all(layer.is_at_seam and not layer.config.projections for layer in recording.layers)
    assert (
        recording.layers[0].kind
        == "transformers.models.gpt_oss.modeling_gpt_oss.GptOssAttention, its attention function"
    )
    assert told == (
        "recorded at the attention function, without projections, norms and rotation (`mha where` compares those with "
        f"a port's): {', '.join(LAYERS)}"
    )


def test_sinks_are_one_more_key():
    model = model_of("gpt_oss")
    recording, _ = captured(model)
    inputs = recording.calls[1].inputs
    assert inputs.keys.shape == (2, 2, 8, 6)
    assert not inputs.keys[:, :, -1].any()
    wanted = model.model.layers[1].self_attn.sinks.detach().numpy()
    assert (inputs.mask.bias[0, :, 3, -1] == wanted).all()


def test_the_float32_softmax_of_an_eager_function_in_float64_is_said():
    model = model_of("vaultgemma", dtype=torch.float64)
    _, (told,) = captured(model, padded=False)
    assert "; their softmax is in float32: model.layers.0.self_attn" in told


def test_a_function_that_computes_something_else_is_refused_with_its_place(tmp_path):
    model, name, path = model_of("t5"), "encoder.block.0.layer.0.SelfAttention", tmp_path / "port.safetensors"
    with function("* scaling", "* 2.0 * scaling")(model, name):
        with pytest.raises(SpecError, match=f"nothing to record: {name}: what its atten"):
            captured(model, layers=[name])
        captured(model, path, modules=True)
    found = mha.where(model_of("t5"), path).diagnosed[name]
    assert "Its attention function does not follow the definition of what it is handed: " in found
    assert "What it hands to its attention function is what the original hands over." in found
    said = CliRunner().invoke(diagnose, [str(path)])
    assert said.exit_code == 1, said.output


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"temperature": 2.0}, "was called with 'temperature', which has no translation"),
        ({"dropout": 0.3}, "dropout=0.3 is active; call model.eval()"),
        ({"attention_mask": object()}, "its mask is a object, which has no numbers to read"),
        ({"cache": object()}, "its cache is paged"),
    ],
)
def test_what_has_no_translation_is_refused(more, words):
    x = torch.ones(1, 2, 3, 4)
    given = {"attention_mask": None, "scaling": 0.5, **more}
    with pytest.raises(SpecError, match=words):
        attention_function()(torch.nn.Module(), x, x, x, **given)


def test_a_backend_stands_in_the_place_of_a_models_own_function(backend_name):
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(f"mha-{backend_name}", attention_function(backend_name))
    AttentionMaskInterface.register(f"mha-{backend_name}", sdpa_mask)
    model = model_of("gpt_oss")
    wanted = outputs_of(model)[:, -1]
    model.set_attn_implementation(f"mha-{backend_name}")
    torch.testing.assert_close(outputs_of(model)[:, -1], wanted, atol=2e-5, rtol=0.0)
    with torch.no_grad():
        there = model.generate(**BATCH, max_new_tokens=3, do_sample=False)
        model.set_attn_implementation("eager")
        assert torch.equal(there, model.generate(**BATCH, max_new_tokens=3, do_sample=False))


def test_a_bug_of_the_zoo_can_stand_there():
    x = torch.randn(1, 2, 3, 4)
    right, wrong = (
        attention_function(bug=bug)(torch.nn.Module(), x, x, x, None, scaling=0.5)[0] for bug in (None, "scale-missing")
    )
    assert not torch.allclose(right, wrong)
    with pytest.raises(SpecError, match="a bug is put into the reference"):
        attention_function("torch", bug="scale-missing")
    with pytest.raises(SpecError, match="no gradients in PyTorch"):
        attention_function()(torch.nn.Module(), x.requires_grad_(), x, x, None, scaling=0.5)
