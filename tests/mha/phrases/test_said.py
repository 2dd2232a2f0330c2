"""What the phrase book of layers says is so: its code runs, and gives what the definition gives."""

from dataclasses import replace
from itertools import permutations

import pytest

from mha.phrases.said import CONCEPTS, STATEMENTS, Calling, Making, Mask
from mha.phrases.table import NATIVES, deviations_of, rule_of, warnings_of
from mha.phrases.text import recorded
from tests.mha.phrases import measure, running

pytestmark = pytest.mark.filterwarnings("ignore")  # what other people's layers warn of

PADDED, CLOSED = Mask("padded", "bk", attend=False), Mask("closed", "qk", attend=False)
BY_ITEM, BY_HEAD, ADDED = Mask("by_item", "bqk"), Mask("by_head", "bhqk"), Mask("added", "qk")

TOGETHER = {
    "inverted padding and mask": Calling(padding=PADDED, allowed=CLOSED),
    "a mask of each item, causal": Calling(allowed=BY_ITEM, causal=True),
    "a mask of each head and padding": Calling(padding=Mask("valid", "bk"), allowed=BY_HEAD),
    "a mask that is broadcast": Calling(allowed=Mask("allowed", "bhqk")),
    "numbers for each key, and padding": Calling(padding=PADDED, added=Mask("added_by_key", "bk")),
    "everything": Calling(padding=PADDED, allowed=CLOSED, added=ADDED, causal=True, weights="heads"),
}


def expressible(native, calling: Calling) -> Calling:
    """The call without what the framework lacks."""
    nothing = {"padding": None, "allowed": None, "added": None, "causal": False}
    calling = replace(calling, **{name: value for name, value in nothing.items() if name in native.lacks})
    return replace(calling, weights="") if "weights" in native.lacks else calling


def natives(backend_name: str):
    return [native for native in NATIVES.values() if native.framework == backend_name]


# The releases of PyTorch and TensorFlow are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
@pytest.mark.nightly("the phrasebook says what the frameworks do")
def test_what_is_said_gives_what_was_measured(backend_name):
    for native in natives(backend_name):
        found, committed = measure.of_native(native), recorded()["said"][native.id]
        assert list(found) == list(committed), native.id
        for concept, by_dtype in found.items():
            for dtype, (ratio, distance) in by_dtype.items():
                was_equal = committed[concept][dtype][0] <= 1
                assert (ratio <= 1) == was_equal, (native.id, concept, dtype, ratio)
                if not was_equal:
                    assert 0.1 < distance / committed[concept][dtype][1] < 10, (native.id, concept, dtype)


@pytest.mark.nightly("the phrasebook says what the frameworks do", every=4)
@pytest.mark.parametrize("name", TOGETHER)
def test_masks_work_together_and_either_way_round(name, backend_name):
    for native in natives(backend_name):
        making, calling = Making(), expressible(native, TOGETHER[name])
        if native.id == "linen":
            making = replace(making, bias=False)  # once without
        if native.id == "mxnet" and name == "a mask that is broadcast":
            continue  # its arrays must have as many axes: it raises
        outcome = running.said(native, making, calling, "float32")
        assert outcome.ratio <= 1, (native.id, outcome)


def test_dropout_acts_where_it_is_said_to(backend_name):
    for native in natives(backend_name):
        if "dropout" not in native.lacks:
            assert running.said(native, *STATEMENTS["dropout"], "float32").largest > 0.01, native.id


def test_what_is_missing_is_missing_in_the_installed_release(backend_name):
    for native in natives(backend_name):
        for concept in native.lacks:
            assert running.is_lacking(native, concept), (native.id, concept)
            assert native.lacks[concept].words.startswith("has none"), (native.id, concept)


def test_a_wrong_mask_or_shape_is_seen(backend_name, monkeypatch):
    for native in natives(backend_name):
        upside_down = replace(STATEMENTS["padding"][1], padding=Mask("valid", "bk", attend=False))
        found = _run(native, upside_down)
        right = running.judged(Making(), STATEMENTS["padding"][1], "float32", found)
        assert right.largest > 0.01, native.id


def _run(native, calling):
    with running.scope(native, "float32"):
        space = running.made(native, Making(), "float32")
        running.execute(native.call(Making(), calling), space)
        return space


@pytest.mark.nightly("the phrasebook says what the frameworks do")
def test_every_pair_carries_the_parameters_and_is_equal(backend_names):
    here = [native for native in NATIVES.values() if native.framework in backend_names]
    for old, new in permutations(here, 2):
        ratio, _ = measure.of_pair(old, new)
        assert ratio <= 1, (old.id, new.id)


@pytest.mark.parametrize("end", ["read", "write"])
def test_a_transposed_matrix_on_the_way_is_seen(end, backend_names, monkeypatch):
    if "torch" not in backend_names:
        pytest.skip("the pair is of PyTorch")
    old, new = NATIVES["torch-mha"], NATIVES["torch-sdpa"]
    kind = type(old if end == "read" else new)
    right = getattr(kind, end)

    def wrong(self, making, name):
        return replace(held := right(self, making, name), axes={**held.axes, "q": "i (h d)"})

    monkeypatch.setattr(kind, end, wrong)
    with pytest.raises(AssertionError, match="q_proj.weight is not the same"):
        running.carry(old, new, *measure.PAIR, "float32")


def test_everything_is_recorded_and_said_in_words():
    found = recorded()
    assert list(found["said"]) == list(found["pairs"]) == list(NATIVES)
    for native in NATIVES.values():
        assert set(found["pairs"][native.id]) == set(NATIVES) - {native.id}
        assert {*native.words, *native.lacks} <= set(CONCEPTS)
        assert {"made", "called", "padding", "allowed", "causal", "parameters", "state"} <= set(native.words), native.id


def test_every_deviation_of_a_layer_stands_with_a_concept():
    for native in NATIVES.values():
        shown = {rule_of(entry) for concept in CONCEPTS for entry in warnings_of(native, concept)}
        assert shown == {rule_of(entry) for entry in deviations_of(native)}, native.id
        assert bool(deviations_of(native)) == (not native.id.startswith("ours")), native.id
