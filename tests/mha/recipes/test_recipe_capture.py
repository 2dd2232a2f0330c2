"""`mha.capture` of models of transformers, by the adapters that the recipes give it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from conformance.bounds.precision import Precision  # noqa: E402
from mha.recipes import attention_layers, record  # noqa: E402
from mha.recipes.adapter import ADAPTERS  # noqa: E402
from mha.recipes.judge import judge_original  # noqa: E402
from mha.recordings import capture as capturing  # noqa: E402
from mha_core import SpecError  # noqa: E402
from tests.mha.recipes.hf_models import batch_of, model_of  # noqa: E402

pytestmark = pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there


@pytest.fixture(autouse=True)
def registered():
    for adapter in ADAPTERS:
        capturing.register(adapter)
    yield
    for adapter in ADAPTERS:
        capturing.unregister(adapter)


@pytest.mark.nightly("each family is read as it computes", every=2)
@pytest.mark.parametrize("name", ["bert", "bert-cross", "gpt2-cross", "vit", "bart", "whisper"])
def test_every_layer_of_a_model_is_recorded_and_agrees_with_the_definition(name, tmp_path):
    model = model_of(name, "eager")
    with torch.no_grad(), capturing.capture(model, tmp_path / "calls.safetensors") as found:
        model(**batch_of(name))
    layers = attention_layers(model)
    recording = type(found.recording).load(tmp_path / "calls.safetensors")
    assert [layer.name for layer in recording.layers] == [site.name for site in layers]
    for layer, site in zip(recording.layers, layers, strict=True):
        assert layer.config == site.config
        assert all(np.array_equal(layer.weights[key], array) for key, array in site.weights.items())
    for problem in recording.problems:
        assert set(problem.recorded) == {"weights", "output"}
        assert judge_original(problem, Precision.of("float32")).equal


def test_a_model_in_training_is_refused():
    model = model_of("bart").train()
    for module in model.modules():
        if hasattr(module, "dropout"):
            module.dropout = 0.3
    with pytest.raises(SpecError, match="BartAttention is in training mode; call model.eval"), capturing.capture(model):
        model(**batch_of("bart"))


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "bart"])
def test_autocast_is_refused_wherever_a_call_is_read(name):
    model = model_of(name)
    layers = attention_layers(model)

    def call():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(**batch_of(name))

    with torch.no_grad():
        with pytest.raises(SpecError, match="torch.autocast is on: "), capturing.capture(model):
            call()
        with pytest.raises(SpecError, match=f"a call of {layers[0].name} can't be read: torch.autocast is on"):
            record(layers, call)


def test_flex_attention_is_refused_by_name():
    model = model_of("bert")
    model.set_attn_implementation("flex_attention")
    (site, _), states = attention_layers(model, probe=False), torch.zeros(1, 3, 12)
    with pytest.raises(SpecError, match="implementation 'flex_attention' is not understood"):
        record([site], lambda: site.core(states, attention_mask=object()))  # where the model gives a BlockMask
    with pytest.raises(SpecError, match="implementation 'flex_attention' is not understood"), capturing.capture(model):
        pass  # at its attention function a call would be seen


def test_a_layer_of_several_dtypes_is_refused():
    model = model_of("bert")
    site = attention_layers(model)[0]
    site.core.double()
    site.core.register_forward_pre_hook(lambda module, args: tuple(x.double() for x in args))
    site.core.register_forward_hook(lambda module, args, output: tuple(x if x is None else x.float() for x in output))
    ids = batch_of("bert")["input_ids"]
    with torch.no_grad(), pytest.raises(SpecError, match="mixed precision can't be recorded: it has float32, float64"):
        record([site], lambda: model(input_ids=ids))


def test_a_mask_that_is_no_tensor_is_refused():
    model = model_of("bert")
    site = attention_layers(model)[0]
    with pytest.raises(SpecError, match="a call of encoder.layer.0.attention can't be read: a list is no tensor"):
        record([site], lambda: site.core(torch.zeros(1, 3, 12), attention_mask=[1, 1, 0]))
