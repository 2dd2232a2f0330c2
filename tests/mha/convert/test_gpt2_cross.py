"""GPT-2's cross-attention: its layer in a file, converted, computes what transformers computes."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from mha.convert.convert import convert
from mha.formats.survey import survey_file
from mha_core import AttentionInputs, load_weights
from mha_core.reference import pipeline as reference
from tests.mha.convert.weight_files import verify_in_numpy

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.parametrize("layout", ["torch", "bert"])
def test_the_converted_cross_attention_is_that_of_transformers(layout, tmp_path, monkeypatch):
    from tests.mha.recipes.hf_models import model_of

    verify_in_numpy(monkeypatch)
    model = model_of("gpt2-cross", dtype="float64")
    model.save_pretrained(tmp_path / "model")
    source, heads = tmp_path / "model" / "model.safetensors", model.config.n_head
    found = {layer.prefix: layer for layer in survey_file(source).layers}
    prefix = next(prefix for prefix in found if prefix.endswith("h.1.crossattention"))
    assert found[prefix].layouts == ("gpt2-cross",)
    assert found[prefix.replace("crossattention", "attn")].layouts == ("gpt2",)

    out = tmp_path / "cross.safetensors"
    done = convert(source, to_layout=layout, out=out, prefix=prefix, num_heads=heads)
    assert done.layers[0].from_layout == "gpt2-cross"
    convert(out, from_layout=layout, to_layout="canonical", out=tmp_path / "canonical.safetensors", num_heads=heads)
    config, weights = load_weights(tmp_path / "canonical.safetensors")
    rng = np.random.default_rng(0)
    queries, keys = (rng.normal(size=(2, length, config.query_dim)) for length in (5, 7))
    module = model.h[1].crossattention
    with torch.no_grad():
        wanted, _ = module(torch.from_numpy(queries), encoder_hidden_states=torch.from_numpy(keys))
    got = reference.run(config, weights, AttentionInputs(queries, keys, keys)).output
    np.testing.assert_allclose(got, wanted.numpy(), atol=1e-13)

    back = tmp_path / "back.safetensors"
    convert(out, from_layout=layout, to_layout="gpt2-cross", out=back, num_heads=heads)
    held = load_file(back)
    assert set(held) == set(module.state_dict())
    for name, array in held.items():
        assert array.tobytes() == module.state_dict()[name].numpy().tobytes(), name
