"""`mha.capture` of models of transformers, by the adapters that the recipes give it."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from conformance.precision import Precision  # noqa: E402
from mha import capturing  # noqa: E402
from mha.recipes import attention_layers  # noqa: E402
from mha.recipes.adapter import ADAPTERS  # noqa: E402
from mha.recipes.judge import judge_original  # noqa: E402
from mha_core import SpecError  # noqa: E402
from tests.porting.hf_models import batch_of, model_of  # noqa: E402


@pytest.fixture(autouse=True)
def registered():
    for adapter in ADAPTERS:
        capturing.register(adapter)
    yield
    for adapter in ADAPTERS:
        capturing.unregister(adapter)


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
    with pytest.raises(SpecError, match="BartAttention is in training mode"), capturing.capture(model):
        model(**batch_of("bart"))
