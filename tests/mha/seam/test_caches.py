"""`mha where` of two recordings at the attention function, of decoding with a cache."""

import pytest
import torch

import mha
from mha.coverage import UnreadWarning
from tests.mha.seam.faults import LLAMA, UPDATE
from tests.mha.seam.planting import Steps, function, inputs_of, line, model_of, setting

pytestmark = [
    pytest.mark.same_on_newest,  # the releases of transformers and PyTorch are the same there
    pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning"),  # that projections are not recorded
]

LAYERS = tuple(f"model.{LLAMA[:13]}{layer}.self_attn#" for layer in (0, 1))
REPEATED = "torch.cat([t[:, :, :-2], t[:, :, -1:], t[:, :, -1:]], 2) if input_shape[1] == 1 else t"


def recorded(path, plant=None, target=LLAMA):
    model = model_of("gpt_oss")
    with (plant or setting(lambda module: None))(model, target), torch.no_grad():
        whole = Steps(model)
        with mha.capture(whole, path):
            whole(**inputs_of())
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("cache") / "original.safetensors")


def statuses(original, port):
    return {one.name: one.status for one in mha.where(original, port).results}


def test_the_same_decoding_is_equal(original, tmp_path):
    assert mha.where(original, recorded(tmp_path / "port.safetensors")).equal


@pytest.mark.nightly("a wrong cache is named in the call where it is first wrong", every=2)
@pytest.mark.parametrize(
    ("plant", "target", "first"),
    [
        (line(UPDATE, UPDATE.replace("(key_states", "(1.01 * key_states")), LLAMA, f"{LAYERS[1]}1"),
        (
            line(UPDATE, f"{UPDATE}; key_states, value_states = ({REPEATED} for t in (key_states, value_states))"),
            LLAMA,
            f"{LAYERS[1]}2",
        ),
        (
            line("position_ids[..., None]", "(position_ids - int(position_ids.shape[1] == 1))[..., None]"),
            "model.rotary_emb",
            f"{LAYERS[0]}2",
        ),
    ],
    ids=["other keys are left", "off by one", "turned by other angles"],
)
def test_a_wrong_cache_is_named_in_the_call_that_made_it(original, tmp_path, plant, target, first):
    found = statuses(original, recorded(tmp_path / "port.safetensors", plant, target))
    assert [name for name, status in found.items() if status == "wrong"] == [first]
    assert found[f"{LAYERS[1]}3"] == "caused upstream"


def test_a_layer_with_a_wrong_call_is_left_out_so_that_no_later_call_passes_for_it(original, tmp_path):
    """The third call of the original's layer was held against the port's second one, and its keys said to be wrong."""
    prefill = function("* scaling", "* scaling * (1.1 if query.shape[2] > 1 else 1.0)")
    with pytest.warns(UnreadWarning, match="self_attn: what its attention function gives is not"):
        port = recorded(tmp_path / "port.safetensors", prefill)
    found = statuses(original, port)
    assert not any(name.startswith(LAYERS[1][:-1]) for name in found)
    assert [found[f"{LAYERS[0]}{call}"] for call in (1, 2, 3)] == ["equal"] * 3
