"""A new row of FEATURES is all that a feature needs to be asked for, refused and told, wherever that happens."""

import sys
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from conformance.cases.table import select
from conformance.runner import run_case
from conformance.subjects.function import known_options, subject_from_function
from conformance.subjects.load import load_subject
from mha.formats.layer import _plain
from mha_core import AttentionConfig, AttentionInputs, SpecError, features, init_weights, layouts, reference
from mha_core.features import FEATURES, Feature, Need
from mha_core.layouts.layout import plain_score
from mha_core.subject import EVERYTHING, OPERATION, Capabilities


@dataclass(frozen=True, init=False)
class Turned(AttentionConfig):
    """A config with one field more than this project's."""

    turn: float | None = None

    def __init__(self, *sizes, turn=None, **options):
        super().__init__(*sizes, **options)
        object.__setattr__(self, "turn", turn)


ROW = Feature(
    "turn",
    "a turn of the heads",
    lambda config, inputs: getattr(config, "turn", None) is not None,
    options={"turn": lambda config, inputs: getattr(config, "turn", None)},
    needs=(Need("turned heads", ("turn",)),),
    plain={"turn": None},
)

X = np.zeros((1, 2, 6))
PLAIN, TURNED = AttentionConfig(6, 1), Turned(6, 1, turn=0.5)


@pytest.fixture
def row(monkeypatch):
    monkeypatch.setattr(features, "FEATURES", (*FEATURES, ROW))


def function(weights, queries, keys, values, mask):
    return queries


@pytest.mark.usefixtures("row")
def test_a_layer_that_does_not_list_it_is_not_asked():
    for capabilities in (Capabilities(), OPERATION):
        assert capabilities.why_not(PLAIN) is None
        assert capabilities.why_not(TURNED) == "a turn of the heads"
        assert capabilities.but("turn").why_not(TURNED) is None


@pytest.mark.usefixtures("row")
def test_a_function_is_told_if_it_asks_and_else_is_not_asked():
    inputs = AttentionInputs(X, X, X)
    assert "turn" in known_options()
    assert subject_from_function(function).supports(TURNED, inputs) == (
        "turned heads (the function has no parameter turn)"
    )
    seen = []

    def asking(weights, queries, keys, values, mask, *, turn):
        seen.append(turn)
        return queries

    subject = subject_from_function(asking)
    assert subject.supports(TURNED, inputs) is None
    for config in (TURNED, PLAIN):
        subject.prepare(config, init_weights(config, seed=0))(inputs)
    assert seen == [0.5, None]


@pytest.mark.usefixtures("row")
def test_no_layout_holds_it_and_no_array_tells_it():
    layout = SimpleNamespace(name="mine")
    plain_score(layout, PLAIN)
    with pytest.raises(
        SpecError, match=r"^layout 'mine' belongs to layers without a turn of the heads. Got turn=0.5.$"
    ):
        plain_score(layout, TURNED)
    with pytest.raises(SpecError, match="layout 'linen' belongs to layers without a turn of the heads"):
        layouts.get("linen").write(TURNED, init_weights(TURNED, seed=0))
    assert _plain(TURNED) == replace(TURNED, turn=None)


def test_without_its_row_nobody_knows_it():
    assert Capabilities().why_not(TURNED) is None
    assert "turn" not in known_options()
    with pytest.raises(SpecError, match=r"feature 'turn' is not known \(known: heads, additive, dot, scale, "):
        Capabilities("turn")


@pytest.mark.parametrize(
    ("name", "known"), [("num_kv_heads", "grouped"), ("rope", "rotary"), ("heads_dim", "head_dim")]
)
def test_a_feature_by_another_name_is_told_its_own(name, known):
    with pytest.raises(SpecError, match=rf"feature '{name}' is not known .*; did you mean {known}\?$"):
        Capabilities(name)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": "dot"}, "belongs to layers that scale by 1 / sqrt(head_dim). Got score='dot'."),
        ({"score": "additive"}, "belongs to layers that scale by 1 / sqrt(head_dim). Got score='additive'."),
        ({"scale": 0.5}, "belongs to layers that scale by 1 / sqrt(head_dim). Got scale=0.5."),
        ({"projections": False}, "holds projections. Got a layer without any."),
        ({"softcap": 5}, "belongs to layers without a softcap. Got softcap=5.0."),
        ({"dropout": 0.5}, None),
    ],
)
def test_what_no_layout_holds_is_refused_in_the_same_words_everywhere(changes, said):
    config = AttentionConfig(6, 1, **changes)
    if said is None:
        plain_score(layouts.get("torch"), config)
        return
    for name in ("torch", "llama", "keras", "linen", "gpt2"):
        with pytest.raises(SpecError) as error:
            plain_score(layouts.get(name), config)
        assert str(error.value) == f"layout {name!r} {said}"


def test_names_and_options_are_given_once():
    names = [row.name for row in FEATURES]
    assert len(set(names)) == len(names)
    assert len(set(known_options())) == len(known_options())
    for row in FEATURES:
        assert row.words or row.needs, row.name
        assert {option for need in row.needs for option in need.options} <= set(known_options())


class Old:
    """An object that was written before rotary positions and the query-key norm were part of the definition."""

    def prepare(self, config, weights):
        return lambda inputs: reference.run(config, weights, inputs)


class Careful(Old):
    def supports(self, config, inputs):
        return "no windows here" if inputs.mask.window is not None else None


class Listing(Old):
    capabilities = EVERYTHING.but(without=("bias", "query_key_norm"))


class CarefulAndListing(Careful):
    capabilities = Capabilities("rotary")


@pytest.mark.parametrize(
    ("kind", "wanted"),
    {
        Old: {"prime": None, "bias-per-head": None, "rotary": "rotary positions", "query-key-norm": "query-key norm"},
        Careful: {"window": "no windows here", "rotary": "rotary positions", "query-key-norm": "query-key norm"},
        Listing: {
            "prime": None,
            "bias-per-head": "an additive bias",
            "rotary": None,
            "query-key-norm": "query-key norm",
        },
        CarefulAndListing: {"bias-per-head": None, "rotary": None, "query-key-norm": "query-key norm"},
    }.items(),
)
def test_an_object_is_asked_what_it_declares_and_what_the_definition_had_at_first(kind, wanted, monkeypatch):
    module = ModuleType("mine")
    module.Kind = kind
    monkeypatch.setitem(sys.modules, "mine", module)
    loaded = load_subject("mine:Kind", "float64")
    for case, reason in wanted.items():
        problem = select((case,))[0].build()
        found = loaded.supports(problem.config, problem.inputs)
        assert found is None if reason is None else found.startswith(reason), (case, found)
    loaded = replace(loaded, original=SimpleNamespace(capabilities=EVERYTHING, prepare=kind().prepare))
    for case in ("rotary", "query-key-norm", "bias-per-head"):
        assert run_case(select((case,))[0], loaded).status == "equal"
