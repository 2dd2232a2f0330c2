"""`mha.diagnose`: live layers of every framework are asked, and left as they were."""

import pytest

import mha
from conformance.diagnosis.brief import describe
from conformance.measure.asker import Asker
from conformance.measure.probes import PROBES
from conformance.measure.search import Probing
from conformance.subjects.live import LiveSubject
from mha_core import SpecError
from mha_core.live.probe import examining

torch = pytest.importorskip("torch")
native = pytest.importorskip("backends.torch.native")

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there


class Plain(torch.nn.MultiheadAttention):
    """A subclass that changes nothing."""


class OfTwiceTheQuery(torch.nn.MultiheadAttention):
    def forward(self, query, key, value, **rest):
        return super().forward(2.0 * query, key, value, **rest)


def layer(kind, dtype=torch.float64):
    torch.manual_seed(0)
    made = kind(6, 2, batch_first=True, dtype=dtype).eval()
    with torch.no_grad():
        made.in_proj_bias.normal_()
        made.out_proj.bias.normal_()
    return made


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_of_a_right_layer_there_is_nothing_to_explain(dtype):
    found = mha.diagnose(layer(Plain, dtype))
    assert list(found) == [""]
    assert not found[""].failing
    assert len(found[""].passing) == 25


def test_every_probe_of_a_right_layer_finds_it_right():
    """Masks that no argument of the layer stands for are not tried, or their translation would be judged."""
    found = []

    def examine(reading):
        asker = Asker(LiveSubject(reading), configs=(reading.config,))
        found.append(Probing(asker, ()).run(probes=[probe for probe in PROBES if probe.id in MASKS]))

    with examining(examine):
        native.from_native(layer(Plain))
    assert [outcome.probe.id for outcome in found[0].outcomes if outcome.differing] == []
    asked = {outcome.probe.id for outcome in found[0].outcomes if outcome.asked}
    assert {"lengths", "causal", "allowed", "mask-of-items", "masked-scores"} <= asked
    assert "window" not in asked


MASKS = ("lengths", "causal", "window", "allowed", "sources", "mask-of-items", "masked-scores")


class OfTwoKeys(OfTwiceTheQuery):
    def forward(self, query, key, value, **rest):
        if key.shape[1] == 1:
            raise SystemExit("one key")
        return super().forward(query, key, value, **rest)


def test_a_layer_that_ends_the_process_at_some_calls_is_asked_the_others():
    found = mha.diagnose(layer(OfTwoKeys), seconds=0.0)[""]
    assert len(found.failing) > 10
    assert set(found.left_out.values()) == {"SystemExit: one key"}


def test_a_layer_in_a_model_is_found_by_its_name_and_left_as_it_was():
    model = torch.nn.ModuleDict({"right": layer(Plain), "wrong": layer(OfTwiceTheQuery)}).train()
    before = {name: array.clone() for name, array in model.state_dict().items()}
    found = mha.diagnose(model)
    assert [name for name, one in found.items() if one.failing] == ["wrong"]
    assert found["wrong"].measured is not None
    assert found["wrong"].measured.first is not None
    assert "The inputs that queries are projected from are multiplied by 2." in describe(found["wrong"])
    assert model["wrong"].training
    assert all(torch.equal(before[name], array) for name, array in model.state_dict().items())
    assert list(mha.diagnose(model, layers=["right"])) == ["right"]


def test_names_that_are_not_there():
    with pytest.raises(SpecError, match="no attention layer of these names"):
        mha.diagnose(layer(Plain), layers=["decoder.*"])
